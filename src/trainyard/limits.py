"""Upper bounds on sizes in models, jobs, machines and commands, checked before anything is enumerated or allocated.

Each is far above the largest value that was published or announced, with the reason next to it. A larger value is a
typing error or an attack: planning it would take hours, or more memory than a machine has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from trainyard.errors import BadInput, BadJob


class Limit(NamedTuple):
    """The largest value of a quantity, and the largest that is known to have been used."""

    quantity: str
    most: int
    known: str


LAYERS = Limit("layers", 1 << 14, "1,000 in DeepNet, arXiv:2203.00555")
WIDTH = Limit("channels, or numbers in a state", 1 << 22, "102,400 in an MLP of 10^12 parameters, arXiv:2104.04473")
HEADS = Limit("heads", 1 << 20, "16,384 heads of one channel in Jamba 1.5 Large, arXiv:2408.12570")
VOCAB = Limit("rows of a vocabulary, classes", 1 << 26, "1,000,000 in XLM-V, arXiv:2301.10472")
EXPERTS = Limit("experts", 1 << 24, "1,048,576 in PEER, arXiv:2407.04153")
SIDE = Limit("pixels or latents a side", 1 << 17, "about 4,096 in image generation")
TOKENS = Limit("tokens a sequence", 1 << 32, "1,000,000,000 in LongNet, arXiv:2307.02486")
SAMPLES = Limit("samples a step", 1 << 26, "1,048,576 in SigLIP, arXiv:2303.15343")
STEP = Limit("tokens a step", 1 << 42, "60,000,000 in DeepSeek-V3, arXiv:2412.19437")
DEVICES = Limit("devices or ranks", 1 << 24, "announced clusters have about 1,000,000 accelerators")
WORKERS = Limit(
    "processes that load data, or batches ahead of the step", 1 << 12, "256 processors in a host of two sockets"
)
BUDGET = Limit("tokens of a training", 10**18, "about 4 * 10^13 in Llama 4 Scout")

LIMITS = (LAYERS, WIDTH, HEADS, VOCAB, EXPERTS, SIDE, TOKENS, SAMPLES, STEP, DEVICES, WORKERS, BUDGET)

LEAST_CLAIM, MOST_CLAIM = 1e-18, 1e24
"""Positive numbers about hardware, in SI units: a device computes 10^16 FLOP/s, and a latency is 10^-7 s."""


_LIMIT_OF_KEY: tuple[tuple[str, Limit], ...] = (
    (r".*layer.*|first_k_dense_replace|.*_interval|.*_virtual_stages_.*|.*_(period|offset)", LAYERS),
    (r".*vocab_size", VOCAB),
    (r".*seq_len(gth)?|n_positions|conv_kernel|mamba_d_conv|.*chunk.*", TOKENS),
    (r".*batch.*|gradient_accumulation_steps", SAMPLES),
    (r"(n|num)_.*experts.*|moe_router_.*|n_group|topk_group", EXPERTS),
    (r".*heads?|num_query_groups|.*n_groups|mamba_num_.*", HEADS),
    (r".*parallel.*|auto.p_size|.*(shard|partition)_size|stages|.*_instances", DEVICES),
)
"""Limits on the keys of other frameworks' configurations: a pattern of the key's last part, with underscores."""


def of_key(key: str) -> Limit:
    """The limit on a size that another framework's configuration gives by this key."""
    name = key.replace("-", "_").rpartition(".")[2]
    return next((limit for pattern, limit in _LIMIT_OF_KEY if re.fullmatch(pattern, name)), WIDTH)


def check(record: object, limits: Mapping[str, Limit], where: str = "") -> None:
    """Checks integer attributes of `record`, or lists of integers, against `limits` (attribute name -> limit); None is
    not checked. Raises `BadJob` whose message names the attribute, followed by `where` and the attribute again if
    `where` is given."""
    for name, limit in limits.items():
        value = getattr(record, name)
        for number in value if isinstance(value, list) else [value]:
            if number is not None and number > limit.most:
                raise BadJob(*_refusal_message(f"{name} = {show(number)}{where and where + name}", limit))


def check_value(name: str, value: float, limit: Limit) -> None:
    """Raises `BadInput` if `value` is above `limit` or not a number. `name`: of the value, in the message."""
    if not value <= limit.most:
        raise BadInput(*_refusal_message(f"{name} {show(value)}", limit))


def check_positive(values: object, *names: str) -> None:
    """Raises `BadJob` if one of the attributes `names` of `values` is not a positive, finite number."""
    for name in names:
        if not 0 < getattr(values, name) < inf:
            raise BadJob(f"{name} = {getattr(values, name)} must be a positive, finite number.")


def show(value: float) -> str:
    """Format a number of any size: exact up to 24 digits, a power of ten beyond that."""
    if isinstance(value, float) or abs(value) < 10**24:
        return f"{value:,}"
    return f"{'-' * (value < 0)}about 10^{int(value.bit_length() * 0.30103)}"  # log10(2) = 0.30103


def _refusal_message(subject: str, limit: Limit) -> tuple[str, str]:
    """(message, next step) for a value above `limit`; `subject`: its name and value."""
    return (
        f"{subject} is more than {limit.most:,}, the most {limit.quantity} that are planned or trained.",
        f"Correct it. The largest known: {limit.known}.",
    )
