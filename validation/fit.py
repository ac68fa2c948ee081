"""Fits a planner's constants to published measurements: `python -m validation.fit [NAME ...]` writes them to
src/trainyard/data/constants.

Of each kind of rows two quarters are fitted to, one gives the spread, and one is kept to report on (`part`). A constant
stays near what is assumed of it unless the rows say otherwise: least squares of log(predicted / measured) with a prior.
Needs the published data beside the checkout.
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
"""Of the logarithm of a measured step time."""
COVERED = 0.8
_UNSEEN = {
    "dense": {"grouped", "dispatch", "imbalance"},
    "flash": {"scores", "host_plain_s"},
    "unfused": {"attention", "attention_backward"},
    "16 bit": {"low_matmul"},
    "whole": {"adapted"},
    "attention": {"scan"},
    "resident": {"host_link", "host_update"},
}
"""What cannot be fitted where no row has it."""


class Fit(NamedTuple):
    name: str
    says: str
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
    """`fit`, `spread` or `report`; the same for a configuration whenever it is asked. Nothing is fitted to hybrids."""
    if row.kind == "hybrid":
        return "report"
    return ("fit", "fit", "spread", "report")[crc32(row.id.encode()) % 4]


def columns(some: Sequence[Row]) -> tuple[Cases, RankHardware, Column]:
    """The rows as cases, where they ran, and the seconds that were measured."""
    made = cases.build(**{name: [row.columns[name] for row in some] for name in some[0].columns})
    sites: list[RankHardware] = []
    for row in some:
        machine = rows.machine_of(row)
        one = hardware.of_machine(machine, *rows.precision_of(row, machine))
        sites.append(replace(one, between=cases.column(row.fabric)) if row.fabric else one)
    where = RankHardware(
        **{field.name: np.concatenate([getattr(one, field.name) for one in sites]) for field in fields(RankHardware)}
    )
    return made, where, np.array([row.seconds for row in some])


def predicted(some: Sequence[Row], tuned: Constants) -> tuple[Column, Column]:
    """Seconds predicted, and measured."""
    made, where, seconds = columns(some)
    return np.broadcast_to(step.step(made, where, tuned).wall, seconds.shape), seconds


def free(some: Sequence[Row]) -> list[str]:
    """The constants that these rows can say something about."""
    fixed: set[str] = set()
    fixed |= set() if any(row.columns.get("offload") for row in some) else _UNSEEN["resident"]
    flash = [row.columns["flash"] for row in some]
    fixed |= set() if any(row.kind == "experts" for row in some) else _UNSEEN["dense"]
    fixed |= _UNSEEN["flash"] if all(flash) else set()
    fixed |= _UNSEEN["unfused"] if not any(flash) else set()
    fixed |= set() if any(row.columns["low_precision"] for row in some) else _UNSEEN["16 bit"]
    fixed |= set() if any(row.kind == "adapters" for row in some) else _UNSEEN["whole"]
    fixed |= set() if any(row.kind == "hybrid" for row in some) else _UNSEEN["attention"]
    return [name for name in Constants._fields if name not in fixed]


def fit(some: Sequence[Row], names: Sequence[str], before: Constants, prior: float = PRIOR) -> Constants:
    """The constants of these names, near what they were."""
    made, where, seconds = columns(some)

    def off(constants: Constants) -> npt.NDArray[np.float64]:
        found = np.log(step.step(made, where, constants).wall / seconds) / NOISE
        return np.sign(found) * np.sqrt(2 * (np.sqrt(1 + found * found) - 1))  # Charbonnier: a few may be far off

    return solve(before, names, off, prior)


def spread(some: Sequence[Row], tuned: Constants) -> dict[str, tuple[float, float]]:
    """Kind -> bounds of measured over predicted: split conformal prediction (Vovk et al. 2005), both tails alike."""
    found: dict[str, tuple[float, float]] = {}
    for kind in sorted({row.kind for row in some}):
        own = [row for row in some if row.kind == kind]
        expected, seconds = predicted(own, tuned)
        ratios, tail = np.sort(seconds / expected), (1 - COVERED) / 2
        place = np.floor((len(own) + 1) * tail) - 1
        if place < 0:
            continue
        found[kind] = (round(float(ratios[int(place)]), 4), round(float(ratios[-1 - int(place)]), 4))
    return found


def tuned(one: Fit, every: Sequence[Row]) -> ConstantSet:
    mine = [row for row in every if one.wanted(row)]
    fitted = [row for row in mine if part(row) == "fit"]
    names = free(fitted)
    found = fit(fitted, names, assumed(rows.machine_of(fitted[0])))
    return ConstantSet(
        name=one.name, says=one.says, devices=one.devices, software=one.software, rows=len(fitted),
        source=", ".join(sorted({row.source for row in fitted})), date=datetime.now(UTC).date().isoformat(),
        spread=spread([row for row in mine if part(row) == "spread"], found),
        constants={name: float(f"{getattr(found, name):.4g}") for name in names},
    )  # fmt: skip


def write(one: ConstantSet) -> str:
    """As TOML."""
    return toml.dumps(msgspec.to_builtins(one), f"{one.says} Written by `python -m validation.fit`.")


def usable(every: Sequence[Row]) -> list[Row]:
    return [row for row in every if not row.reason and row.seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="which of them; all where none is named")
    wanted = parser.parse_args().names
    every = usable(rows.read(PUBLISHED))
    CONSTANTS.mkdir(exist_ok=True)
    for one in FITS:
        if not wanted or one.name in wanted:
            (CONSTANTS / f"{one.name}.toml").write_text(write(tuned(one, every)), "utf-8")
            print(one.name)


if __name__ == "__main__":
    main()
