"""Fit the planner's constants to published measurements: `python -m validation.fit` writes them to
src/trainyard/data/constants.

A quarter of the rows is held out (`is_fitted`). A constant stays near its value in the parent's set, or its assumed
value, unless the rows disagree: least squares of log(predicted / measured) with a prior. Needs the published data next
to the checkout.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from trainyard import machine as machines
from trainyard.formats import toml
from trainyard.predict.calibrate.least_squares import MAX_ITERATIONS, solve
from trainyard.predict.inputs import cases, hardware
from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constant_sets import ConstantSet, assumed
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.fitted_range import FittedRange, range_of
from trainyard.predict.inputs.hardware import COMMON, RankHardware
from trainyard.predict.time import step
from validation import rows
from validation.rows import Row
from validation.sources import source

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT.parent / "shared" / "data" / "published" / "training_runs.csv.gz"
MEGATRON = Path(__file__).parent / "megatron.csv"
"""Tables of Megatron's two papers."""
FSDP = Path(__file__).parent / "fsdp.csv"
"""Tables of trainings with sharded data parallelism: torchtitan, KempnerForge, fms-fsdp and NeMo AutoModel."""
CONSTANTS = ROOT / "src" / "trainyard" / "data" / "constants"
NOISE = 0.05
"""Standard deviation of the logarithm of a measured step time."""
PRIOR = 0.2
"""Standard deviation of a constant's logarithm around its prior. With 0.4, `matmul` and the links of Megatron on Hopper
went to their limit of 1, and the rows fitted to were predicted no better."""
_CERTAINTY = {"matmul": 0.5, "grouped": 2.0, "low_grouped": 2.0, "host_experts_s": 4.0}
"""Factor of the prior's standard deviation. Large 16-bit products attain nearly the same share of the peak under all
software, and few rows of mixtures of experts separate them from grouped products, whose share differs by library. The
host's time for experts differs by processor, library and compilation; that for other layers would otherwise
absorb errors of mixtures of experts."""
_GAIN = 1e-5
"""Relative decrease of the cost below which the fit ends."""
_ITERATIONS_FROM_START = 3
"""Iterations from a start that was fitted to most of the rows."""
_SMALL = 0.01
"""Change of a constant's logarithm with which the sensitivity of a prediction is computed."""
FEWEST = 3
"""Fewest rows that constants are fitted to."""
_UNSEEN = {
    "dense": {"grouped", "low_grouped", "dispatch", "host_experts_s"},
    "sequential": {"dispatch_units"},
    "flash": {"scores", "host_plain_s"},
    "unfused": {"attention", "attention_length", "attention_channels", "attention_backward"},
    "16 bit": {"low_matmul", "low_grouped"},
    "whole": {"adapted"},
    "attention": {"scan"},
    "resident": {"host_link", "host_update"},
}
"""Constants that cannot be fitted if no row depends on them, by the kind of row that is then missing or alone."""


_ATTENTION_HOPPER = {"attention": 0.6, "attention_channels": 56.0}
"""FlashAttention-3 on H100, head size 128: 590 to 621 TFLOP/s of 989 from 4,096 tokens (pytorch/benchmark, pull request
2391). Without a mask 497 TFLOP/s with heads of 64 channels, 648 with 128 (arXiv:2407.08608, figure 5)."""


_CUDA_GRAPHS = {"host_forward_s": 1e-3, "host_backward_s": 1e-3, "host_experts_s": 1e-3}
"""The host's time for a layer whose kernels it launches as a CUDA graph, as in NVIDIA's recipes for Blackwell: assumed,
and less than on Hopper."""


class Fit(NamedTuple):
    """A set of constants: the rows of these devices and of this software, or of `also`. `parent`: the set whose
    constants are the centre of the prior; if empty, these are the assumed ones. `products`: the set whose `matmul` is
    its centre instead; `centres`: constants with a centre of their own, as those that were measured in kernels alone.
    `prior`: standard deviation of a constant's logarithm around its centre; wider for a set whose hundreds of rows
    identify its constants, and for devices of which no product was measured."""

    name: str
    description: str
    devices: tuple[str, ...]
    software: str
    parent: str = ""
    also: tuple[str, ...] = ()
    products: str = ""
    centres: Mapping[str, float] = {}
    prior: float = PRIOR

    def wanted(self, row: Row) -> bool:
        return row.machine in self.devices and row.software in (self.software, *self.also)


AMPERE, HOPPER = ("a100", "a100-40gb"), ("h100", "h200", "h800")
BLACKWELL = ("b200", "b300", "gb200", "gb300")
FITS = (
    Fit("ampere-megatron-21", "Megatron of 2021 and 2022 on A100: float16, attention that writes its scores.", AMPERE,
        "megatron-21", prior=0.4),
    Fit("ampere-megatron-deepspeed", "Megatron-DeepSpeed of 2022 on A100.", AMPERE, "megatron-deepspeed",
        parent="ampere-megatron-21"),
    Fit("ampere-fsdp", "PyTorch's FSDP on A100, of all releases.", AMPERE, "fsdp", also=("fsdp-23", "fsdp-25")),
    Fit("hopper-fsdp-23", "PyTorch's FSDP of 2023 and early 2024 on H100, eager.", HOPPER, "fsdp-23",
        parent="ampere-fsdp"),
    Fit("hopper-fsdp-25", "PyTorch's FSDP of 2024 and 2025 on Hopper, mostly compiled, FlashAttention-2.", HOPPER,
        "fsdp-25", parent="ampere-fsdp"),
    Fit("hopper-fsdp", "PyTorch's FSDP of 2026 on Hopper, mostly compiled.", HOPPER, "fsdp", parent="hopper-fsdp-25",
        centres={**_ATTENTION_HOPPER, "attention_backward": 2.9, "overlap": 0.9}),
    Fit("hopper-megatron", "Megatron Core on Hopper.", HOPPER, "megatron", also=("megatron-25",),
        products="hopper-fsdp-23", centres=_ATTENTION_HOPPER),
    Fit("blackwell-megatron-25", "Megatron Core on Blackwell, before June 2026.", BLACKWELL, "megatron-25",
        parent="hopper-megatron", centres=_CUDA_GRAPHS),
    Fit("blackwell-megatron", "Megatron Core on Blackwell, since June 2026.", BLACKWELL, "megatron",
        parent="blackwell-megatron-25"),
    Fit("cdna3", "Megatron and sharded data parallelism on MI300X.", ("mi300x",), "megatron", also=("fsdp",)),
    Fit("cdna3-1000w", "Megatron and sharded data parallelism on MI325X.", ("mi325x",), "megatron", parent="cdna3",
        also=("fsdp",)),
    Fit("trainium", "Neuron's libraries on Trainium1, taken for its successors too.", ("trn1", "trn2", "trn3"),
        "megatron", prior=0.4),
)  # fmt: skip


def is_fitted(row: Row) -> bool:
    """Whether constants are fitted to the row: not to those of sources that only judge, and not to a quarter of the
    others, always the same ones."""
    return source(row.source).role == "fit" and crc32(row.id.encode()) % 4 != 3


def columns(chosen: Sequence[Row]) -> tuple[Cases, RankHardware, Column]:
    """The rows as cases, their hardware, and the measured seconds."""
    batch = cases.build(**{name: [row.columns[name] for row in chosen] for name in chosen[0].columns})
    ranks: list[RankHardware] = []
    for row in chosen:
        machine = rows.machine_of(row)
        rank = hardware.of_machine(machine, *rows.precision_of(row.precision, machine))
        ranks.append(replace(rank, inter_node=cases.column(row.fabric)) if row.fabric else rank)
    networks = {(rank.torus, rank.algorithms) for rank in ranks}
    if len(networks) > 1:
        raise ValueError("rows of different tori or algorithms cannot be predicted at once")
    torus, algorithms = networks.pop()
    names = [field.name for field in fields(RankHardware) if field.name not in COMMON]  # no machine file has a fabric
    values: dict[str, Any] = {name: np.concatenate([getattr(rank, name) for rank in ranks]) for name in names}
    return batch, RankHardware(**values, torus=torus, algorithms=algorithms), np.array([row.seconds for row in chosen])


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
    fixed |= set() if any(row.columns["overlaps_dispatch"] for row in chosen) else _UNSEEN["sequential"]
    fixed |= _UNSEEN["flash"] if all(flash) else set()
    fixed |= _UNSEEN["unfused"] if not any(flash) else set()
    fixed |= set() if any(row.columns["low_precision"] for row in chosen) else _UNSEEN["16 bit"]
    fixed |= set() if any(row.kind == "adapters" for row in chosen) else _UNSEEN["whole"]
    fixed |= set() if any(row.kind == "hybrid" for row in chosen) else _UNSEEN["attention"]
    return [name for name in Constants._fields if name not in fixed]


def fit(chosen: Sequence[Row], centre: Constants, prior: float = PRIOR, start: Constants | None = None) -> Constants:
    """Constants fitted to rows, near their values in `centre`; `prior`: as in `Fit`. `start`: the first estimate."""
    batch, where, seconds = columns(chosen)
    noise = np.hypot(NOISE, [log_spread(row, centre) for row in chosen])

    def residuals(constants: Constants) -> npt.NDArray[np.float64]:
        errors = np.log(step.step(batch, where, constants).wall / seconds) / noise
        # Charbonnier loss: robust to a few outliers
        return np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors * errors) - 1))

    iterations = _ITERATIONS_FROM_START if start else MAX_ITERATIONS
    names = free(chosen)
    return solve(centre, names, residuals, deviations(names, prior), start=start, gain=_GAIN, iterations=iterations)


def deviations(names: Sequence[str], prior: float) -> list[float]:
    """Standard deviation of the logarithm of each of these constants around its prior; `prior`: the usual one."""
    return [prior * _CERTAINTY.get(name, 1.0) for name in names]


def log_spread(row: Row, constants: Constants) -> float:
    """Root mean square of the logarithm of the prediction over what the source leaves open, relative to the setting
    that is assumed."""
    if not row.possibilities:
        return 0.0
    possible = [replace(row, columns=row.columns | columns) for columns in row.possibilities]
    expected, _ = predicted([row, *possible], constants)
    return float(np.sqrt(np.mean(np.log(expected[1:] / expected[0]) ** 2)))


class Fitted(NamedTuple):
    """A set of constants and the rows it was fitted to."""

    target: Fit
    rows: tuple[Row, ...]
    constants: Constants
    centre: Constants


def fit_all(every: Sequence[Row], starts: Mapping[str, Fitted] | None = None) -> dict[str, Fitted]:
    """Each set of constants with enough rows, by name, a parent before its children. `starts`: the same fits to more
    rows; one whose rows and centre are unchanged is not repeated."""
    fitted: dict[str, Fitted] = {}
    for target in FITS:
        chosen = tuple(row for row in every if target.wanted(row) and row.kind != "hybrid")
        if len(chosen) < FEWEST:
            continue
        parent, known = fitted.get(target.parent), (starts or {}).get(target.name)
        centre = parent.constants if parent else assumed(machines.load(chosen[0].machine))
        centre = centre._replace(**target.centres)
        if products := fitted.get(target.products):
            centre = centre._replace(matmul=products.constants.matmul)
        if known and (known.rows, known.centre) == (chosen, centre):
            fitted[target.name] = known
        else:
            constants = fit(chosen, centre, target.prior, known.constants if known else None)
            fitted[target.name] = Fitted(target, chosen, constants, centre)
    return fitted


def moved_by(fitted: Fitted) -> dict[str, int]:
    """Name of a constant -> number of rows that move it: whose prediction changes by more than the noise if the
    constant changes by one standard deviation of its prior."""
    batch, where, _ = columns(fitted.rows)
    wall = np.log(step.step(batch, where, fitted.constants).wall)
    counts: dict[str, int] = {}
    names = free(fitted.rows)
    for name, deviation in zip(names, deviations(names, fitted.target.prior), strict=True):
        nearer = fitted.constants._replace(**{name: getattr(fitted.constants, name) * np.exp(-_SMALL)})
        change = (wall - np.log(step.step(batch, where, nearer).wall)) / _SMALL * deviation
        counts[name] = int(np.sum(np.abs(change) > NOISE))
    return counts


def constant_set(fitted: Fitted) -> ConstantSet:
    """The set of constants as it is stored: those that some row moves, and those that its prior has from its parent."""
    target, chosen = fitted.target, fitted.rows
    moved = {name: count for name, count in moved_by(fitted).items() if count}
    values = fitted.constants._asdict()
    stored = [name for name in values if name in moved or values[name] != getattr(Constants(), name)]
    by_kind = {kind: [row for row in chosen if row.kind == kind] for kind in sorted({row.kind for row in chosen})}
    return ConstantSet(
        name=target.name, description=target.description, devices=target.devices, software=target.software,
        rows=len(chosen), source=", ".join(sorted({row.source for row in chosen})),
        date=datetime.now(UTC).date().isoformat(), ranges={kind: range_of_rows(own) for kind, own in by_kind.items()},
        parent=target.parent, moved_by=moved,
        constants={name: float(f"{values[name]:.4g}") for name in stored},
    )  # fmt: skip


def range_of_rows(chosen: Sequence[Row]) -> FittedRange:
    """The range of rows."""
    owners, machines, software = zip(*((row.owner, row.machine, row.software) for row in chosen), strict=True)
    return range_of(columns(chosen)[0], owners, machines, software)


def write(constants: ConstantSet) -> str:
    """The set as TOML."""
    return toml.dumps(msgspec.to_builtins(constants), f"{constants.description} Written by `python -m validation.fit`.")


def published() -> list[Row]:
    """The rows of all files that are there."""
    return [row for path in (PUBLISHED, MEGATRON, FSDP) if path.is_file() for row in rows.read(path)]


def usable(every: Sequence[Row]) -> list[Row]:
    """The rows that can be represented and have a step time."""
    return [row for row in every if not row.reason and row.seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    every = [row for row in usable(published()) if is_fitted(row)]
    for name, fitted in fit_all(every).items():
        (CONSTANTS / f"{name}.toml").write_text(write(constant_set(fitted)), "utf-8")
        print(name)


if __name__ == "__main__":
    main()
