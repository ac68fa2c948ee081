"""Planned layouts compared with those of published trainings: `python -m validation.authors`.

For each training: the ten fastest layouts of the whole space, the prediction for the authors' own layout (with the
fastest micro-batch, interleaving and recomputation that fit), and the measured step time.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from trainyard import machine
from trainyard.errors import BadJob
from trainyard.model import Model
from trainyard.models import presets
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.search.layout_cost import LayoutCost
from trainyard.predict.search.search import SearchResult, search

_MOST = 10


class Training(NamedTuple):
    """A published training. `fixed`: the authors' axes. `seconds`: of their step, None if not published; `source`: of
    the figure."""

    model: str
    machine: str
    devices: int
    samples: int
    seq_len: int
    dtype: str
    fixed: dict[str, int]
    seconds: float | None
    source: str


def _step_s(params: float, tokens: float, devices: int, rate: float, flops: int = 6) -> float:
    """Seconds of a step from the published FLOP/s per device. `flops`: per weight and token, as the authors count."""
    return flops * params * tokens / (devices * rate)


TRAININGS = (
    Training(
        "gpt3-175b", "a100", 1024, 1536, 2048, "bfloat16", {"tp": 8, "pp": 8, "cp": 1},
        _step_s(174.6e9, 1536 * 2048, 1024, 140e12, flops=8),
        "arXiv:2104.04473, section 5.1: 140 TFLOP/s per GPU in 2021, full recomputation (8 FLOPs per weight)",
    ),
    Training(
        "llama3-405b", "h100", 16384, 2048, 8192, "bfloat16", {"tp": 8, "pp": 16, "cp": 1},
        _step_s(405e9, 2048 * 8192, 16384, 400e12), "arXiv:2407.21783, table 4: 400 TFLOP/s per GPU",
    ),
    Training(
        "deepseek-v3", "h800", 2048, 15360, 4096, "float8", {"tp": 1, "pp": 16, "ep": 64, "cp": 1},
        180e3 * 3600 / 2048 / 1e12 * 15360 * 4096,
        "arXiv:2412.19437, table 1 and section 3.1: 180,000 GPU hours per trillion tokens",
    ),
    Training("llama3-70b", "mi300x", 512, 1024, 8192, "bfloat16", {}, None, ""),
    Training("llama3-70b", "trn2", 512, 1024, 4096, "bfloat16", {}, None, ""),
)  # fmt: skip


def model(name: str) -> Model:
    return msgspec.convert({"name": name, **presets.take(name, "model").keys}, Model)


def search_for(training: Training, fixed: dict[str, int]) -> SearchResult:
    where = machine.load(training.machine)
    wanted = PlannerInput(
        model(training.model),
        training.devices * where.device.ranks,
        where.ranks_per_node,
        training.samples,
        training.seq_len,
        training.dtype,
        fixed,
    )
    return search(wanted, where, FRAMEWORKS["megatron"], most=_MOST)


def line(choice: LayoutCost) -> str:
    plan, bill = choice.plan, choice.bill
    recipe = plan.job.recipe
    low, high = plan.low / 1e9, plan.high / 1e9
    return (
        f"  {plan.ledger.wall_ns / 1e9:7.2f} s ({low:.2f} to {high:.2f})  {100 * bill.mfu:4.1f} % MFU  "
        f"{choice.reserved / 1e9:5.1f} GB  {plan.job.layout}, micro-batch {recipe.micro_batch_size}, "
        f"activation checkpointing {recipe.activation_checkpoint}"
    )


def main() -> None:
    for training in TRAININGS:
        machines = f"{training.devices:,} x {training.machine}"
        tokens = f"{training.samples:,} x {training.seq_len:,} tokens"
        print(f"{training.model} on {machines}: {tokens}, {training.dtype}")
        for choice in search_for(training, {}).choices:
            print(line(choice))
        if training.fixed:
            axes = ", ".join(f"{axis} {value}" for axis, value in training.fixed.items())
            print(f"  the authors' {axes}:")
            try:
                print(line(search_for(training, training.fixed).choices[0]))
            except BadJob as why:
                print(f"  {why}")
        if training.seconds is not None:
            print(f"  {training.seconds:7.2f} s measured ({training.source})")
        print()


if __name__ == "__main__":
    main()
