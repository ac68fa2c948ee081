"""Arguments of `plan` that describe a fine-tuning: the method, its adapters, and the share of padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from trainyard.errors import BadInput, UnknownName, nearest
from trainyard.model import Model
from trainyard.predict.inputs.fine_tuning import FineTuning, Method, Targets
from trainyard.predict.inputs.vision_models import VisionModel

_DEFAULT_RANK = 16


@dataclass(frozen=True, kw_only=True)
class FineTune:
    """A fine-tuning, for `plan` and `check_plan`; without a method all weights are trained, as in pre-training.

    `method`: `sft` (all weights), `lora` (adapters only) or `qlora` (adapters, with the layers' matrices in NF4).
    `lora_rank`: of the adapters, 16 by default. `lora_targets`: the matrices with adapters: `attention`, `mlp`, or
    `all` of a layer (default). `padding`: share of the tokens that are padding, from which the
    throughput without padding follows."""

    method: Literal["", "sft", "lora", "qlora"] = ""
    lora_rank: int | None = None
    lora_targets: Literal["all", "attention", "mlp"] | None = None
    padding: float | None = None


def read_fine_tuning(flags: FineTune, model: Model | VisionModel) -> FineTuning | None:
    """The settings of a fine-tuning; None without a method. Raises `BadInput` for a flag without the method that it
    belongs to, a value out of range, or a model that is not predicted."""
    for name, known in (("method", get_args(Method)), ("lora_targets", get_args(Targets))):
        value = getattr(flags, name)
        if value and value not in known:
            raise UnknownName(f"there is no {name.replace('_', ' ')} {value!r}.", nearest(value, known))
    has_adapters = flags.method in ("lora", "qlora")
    for flag, value in (("--lora-rank", flags.lora_rank), ("--lora-targets", flags.lora_targets)):
        if value is not None and not has_adapters:
            raise BadInput(f"{flag} {value} applies to adapters only.", "Pass --fine-tune lora or --fine-tune qlora.")
    if flags.padding is not None:
        if not flags.method:
            raise BadInput(
                f"--padding {flags.padding:g} applies to fine-tuning only.", "Pass --fine-tune sft, lora or qlora."
            )
        if not 0 <= flags.padding < 1:
            raise BadInput(
                f"--padding {flags.padding:g} is not at least 0 and less than 1.",
                "Pass the share of the tokens that are padding: 0.25 for a quarter.",
            )
    if not flags.method:
        return None
    rank = (_DEFAULT_RANK if flags.lora_rank is None else flags.lora_rank) if has_adapters else 0
    settings = FineTuning(
        method=flags.method, rank=rank, targets=flags.lora_targets or "all", padding=flags.padding
    )  # fmt: skip
    settings.check(model)
    return settings
