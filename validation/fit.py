"""Fit the planner's constants to published measurements: `python -m validation.fit [NAME ...]` writes them to
src/trainyard/data/constants.

For each set of constants, two quarters of the rows are fitted to, one quarter gives the spread, and one is held out for
the report (`part`). A constant stays near its assumed value unless the rows disagree: least squares of
log(predicted / measured) with a prior. Needs the published data next to the checkout.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from trainyard.formats import toml
from trainyard.predict.calibrate.least_squares import PRIOR, solve
from trainyard.predict.inputs import cases, hardware
from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constant_sets import ConstantSet, assumed
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.time import step
from validation import rows
from validation.rows import Row

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT.parent / "shared" / "data" / "published" / "training_runs.csv.gz"
CONSTANTS = ROOT / "src" / "trainyard" / "data" / "constants"
NOISE = 0.05
"""Standard deviation of the logarithm of a measured step time."""
COVERED = 0.8
"""Coverage of the prediction interval."""
_UNSEEN = {
    "dense": {"grouped", "dispatch", "imbalance"},
    "flash": {"scores", "host_plain_s"},
    "unfused": {"attention", "attention_backward"},
    "16 bit": {"low_matmul"},
    "whole": {"adapted"},
    "attention": {"scan"},
    "resident": {"host_link", "host_update"},
}
"""Constants that cannot be fitted if no row depends on them, by the kind of row that is then missing or alone."""


class Fit(NamedTuple):
    name: str
    description: str
    devices: tuple[str, ...]
    software: str
    wanted: Callable[[Row], bool]


HOPPER, BLACKWELL = ("h100", "h200", "h800"), ("b200", "b300", "gb200", "gb300")
FITS = (
    Fit("ampere-unfused", "Megatron of 2021 and 2022 on A100: float16, attention that writes its scores.",
        ("a100", "a100-40gb"), "unfused", lambda row: row.source == "VIA-Research/vTrain"),
    Fit("ampere-fsdp", "Sharded data parallelism on A100, eager, with fused attention.", ("a100", "a100-40gb"), "fsdp",
        lambda row: row.machine.startswith("a100") and row.software == "fsdp"),
    Fit("hopper-fsdp", "Sharded data parallelism on H100, eager, with fused attention.", HOPPER, "fsdp",
        lambda row: row.machine in HOPPER and row.software == "fsdp"),
    Fit("hopper-megatron", "Megatron Core on Hopper.", HOPPER, "megatron",
        lambda row: row.machine in HOPPER and row.software.startswith("megatron")),
    Fit("blackwell-megatron", "Megatron Core on Blackwell, since June 2026.", BLACKWELL, "megatron",
        lambda row: row.machine in BLACKWELL and row.software == "megatron"),
    Fit("blackwell-megatron-25", "Megatron Core on Blackwell, before June 2026.", BLACKWELL, "megatron-25",
        lambda row: row.machine in BLACKWELL and row.software == "megatron-25"),
    Fit("cdna3", "Megatron and sharded data parallelism on MI300X.", ("mi300x",), "megatron",
        lambda row: row.machine == "mi300x"),
    Fit("cdna3-1000w", "Megatron and sharded data parallelism on MI325X.", ("mi325x",), "megatron",
        lambda row: row.machine == "mi325x"),
    Fit("trainium", "Neuron's libraries on Trainium1, taken for its successors too.", ("trn1", "trn2", "trn3"),
        "megatron", lambda row: row.machine == "trn1"),
    Fit("blackwell-fsdp", "Sharded data parallelism on Blackwell.", BLACKWELL, "fsdp",
        lambda row: row.machine in BLACKWELL and row.software == "fsdp"),
)  # fmt: skip


def part(row: Row) -> str:
    """`fit`, `spread` or `report`; always the same for a configuration. Nothing is fitted to hybrids."""
    if row.kind == "hybrid":
        return "report"
    return ("fit", "fit", "spread", "report")[crc32(row.id.encode()) % 4]


def columns(chosen: Sequence[Row]) -> tuple[Cases, RankHardware, Column]:
    """The rows as cases, their hardware, and the measured seconds."""
    batch = cases.build(**{name: [row.columns[name] for row in chosen] for name in chosen[0].columns})
    ranks: list[RankHardware] = []
    for row in chosen:
        machine = rows.machine_of(row)
        rank = hardware.of_machine(machine, *rows.precision_of(row, machine))
        ranks.append(replace(rank, inter_node=cases.column(row.fabric)) if row.fabric else rank)
    where = RankHardware(
        **{field.name: np.concatenate([getattr(rank, field.name) for rank in ranks]) for field in fields(RankHardware)}
    )
    return batch, where, np.array([row.seconds for row in chosen])


def predicted(chosen: Sequence[Row], tuned: Constants) -> tuple[Column, Column]:
    """Predicted and measured seconds."""
    batch, where, seconds = columns(chosen)
    return np.broadcast_to(step.step(batch, where, tuned).wall, seconds.shape), seconds


def free(chosen: Sequence[Row]) -> list[str]:
    """Names of the constants that these rows depend on."""
    fixed: set[str] = set()
    fixed |= set() if any(row.columns.get("offload") for row in chosen) else _UNSEEN["resident"]
    flash = [row.columns["flash"] for row in chosen]
    fixed |= set() if any(row.kind == "experts" for row in chosen) else _UNSEEN["dense"]
    fixed |= _UNSEEN["flash"] if all(flash) else set()
    fixed |= _UNSEEN["unfused"] if not any(flash) else set()
    fixed |= set() if any(row.columns["low_precision"] for row in chosen) else _UNSEEN["16 bit"]
    fixed |= set() if any(row.kind == "adapters" for row in chosen) else _UNSEEN["whole"]
    fixed |= set() if any(row.kind == "hybrid" for row in chosen) else _UNSEEN["attention"]
    return [name for name in Constants._fields if name not in fixed]


def fit(chosen: Sequence[Row], names: Sequence[str], before: Constants, prior: float = PRIOR) -> Constants:
    """Constants with those of `names` fitted, near their values in `before`."""
    batch, where, seconds = columns(chosen)

    def residuals(constants: Constants) -> npt.NDArray[np.float64]:
        errors = np.log(step.step(batch, where, constants).wall / seconds) / NOISE
        # Charbonnier loss: robust to a few outliers
        return np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors * errors) - 1))

    return solve(before, names, residuals, prior)


def spread(chosen: Sequence[Row], tuned: Constants) -> dict[str, tuple[float, float]]:
    """Kind -> bounds of measured over predicted: split conformal prediction (Vovk et al. 2005) with equal tails."""
    bounds: dict[str, tuple[float, float]] = {}
    for kind in sorted({row.kind for row in chosen}):
        own = [row for row in chosen if row.kind == kind]
        expected, seconds = predicted(own, tuned)
        ratios, tail = np.sort(seconds / expected), (1 - COVERED) / 2
        rank = np.floor((len(own) + 1) * tail) - 1
        if rank < 0:
            continue
        bounds[kind] = (round(float(ratios[int(rank)]), 4), round(float(ratios[-1 - int(rank)]), 4))
    return bounds


def tuned(target: Fit, every: Sequence[Row]) -> ConstantSet:
    """The set of constants fitted to the rows of `target`."""
    mine = [row for row in every if target.wanted(row)]
    fitted = [row for row in mine if part(row) == "fit"]
    names = free(fitted)
    constants = fit(fitted, names, assumed(rows.machine_of(fitted[0])))
    return ConstantSet(
        name=target.name, description=target.description, devices=target.devices, software=target.software,
        rows=len(fitted),
        source=", ".join(sorted({row.source for row in fitted})), date=datetime.now(UTC).date().isoformat(),
        prediction_intervals=spread([row for row in mine if part(row) == "spread"], constants),
        constants={name: float(f"{getattr(constants, name):.4g}") for name in names},
    )  # fmt: skip


def write(constants: ConstantSet) -> str:
    """The set as TOML."""
    return toml.dumps(msgspec.to_builtins(constants), f"{constants.description} Written by `python -m validation.fit`.")


def usable(every: Sequence[Row]) -> list[Row]:
    """The rows that can be represented and have a step time."""
    return [row for row in every if not row.reason and row.seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="sets to fit; default: all")
    wanted = parser.parse_args().names
    every = usable(rows.read(PUBLISHED))
    CONSTANTS.mkdir(exist_ok=True)
    for target in FITS:
        if not wanted or target.name in wanted:
            (CONSTANTS / f"{target.name}.toml").write_text(write(tuned(target, every)), "utf-8")
            print(target.name)


if __name__ == "__main__":
    main()
