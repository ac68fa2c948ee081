"""Sets of constants in data/constants/*.toml, each fitted to measurements of some devices and software.

Constants are the rates and overheads of the cost model besides the data sheet of a device (`constants.py`). A claim is
a figure with its unit, source and date.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from importlib import resources
from math import inf
from pathlib import Path

import msgspec

from trainyard.errors import BadFile, BadInput, described
from trainyard.formats import toml
from trainyard.machine import Claim, Machine, find_machine
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.fitted_range import FittedRange

_MAX_MATMUL_SHARE = 0.95
"""Largest share of the peak that is assumed from a measured product."""


class ConstantSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """`devices`: names of the machines it applies to. `software`: the framework whose overheads it has: "fsdp"
    (PyTorch's FSDP of 2026), "fsdp-25" (of 2024 and 2025), "fsdp-23" (of 2023 and early 2024, eager), "megatron"
    (Megatron Core of 2026), "megatron-25" (of 2025), "megatron-21" (of 2021, whose attention writes its scores), or
    "megatron-deepspeed" (Megatron-DeepSpeed). `rows`: number of measurements it was fitted to; `ranges`: kind of model
    (dense, experts, adapters) -> range of these; `moved_by`: constant -> number of these that move it, by more than
    their noise within its prior; `parent`: the set whose constants are the centre of the prior.
    `prediction_intervals`: kind of model -> (low, high), the 80 % prediction interval of measured over predicted, from
    runs of the machine itself."""

    name: str
    description: str
    devices: tuple[str, ...]
    software: str
    source: str
    date: str
    rows: int
    prediction_intervals: dict[str, tuple[float, float]] = {}
    ranges: dict[str, FittedRange] = {}
    parent: str = ""
    moved_by: dict[str, int] = {}
    constants: dict[str, float] = {}

    def __post_init__(self) -> None:
        """Raises `BadInput` for unknown constants and values that are not positive."""
        unknown = set(self.constants) - set(Constants._fields)
        if unknown:
            raise BadInput(f"unknown constant: {', '.join(sorted(unknown))}.")
        if any(not value > 0 for value in self.constants.values()):
            raise BadInput(f"the constants of {self.name} must be positive.")

    def values(self) -> Constants:
        """All constants: fitted values, and assumed values for the rest."""
        return Constants()._replace(**self.constants)

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """Each constant with its source."""
        return tuple(
            Claim(
                value=value,
                unit=f"{name} {'s' if name.endswith('_s') else ''}".strip(),
                date=self.date,
                source=self._source_of(name),
                measured=name in (self.moved_by or self.constants),
            )
            for name, value in self.values()._asdict().items()
        )

    def _source_of(self, name: str) -> str:
        """The source of a constant."""
        if name not in self.constants:
            return "assumed"
        if self.moved_by and name not in self.moved_by:
            return f"that of {self.parent}" if self.parent else "assumed"
        count = f"{self.moved_by[name]} of {self.rows}" if self.moved_by else f"{self.rows}"
        return f"{self.name}, fitted to {count} measurements of {self.source}"


@cache
def known() -> tuple[ConstantSet, ...]:
    """The sets in the package."""
    folder = Path(str(resources.files("trainyard") / "data" / "constants"))
    return tuple(load(path) for path in sorted(folder.glob("*.toml")))


def load(path: Path) -> ConstantSet:
    """Load a set from a TOML file. Raises `BadFile`."""
    try:
        return msgspec.convert(toml.loads(path.read_text("utf-8")), ConstantSet)
    except (OSError, UnicodeDecodeError, toml.DecodeError, msgspec.ValidationError) as error:
        message, next_step = described(error)
        raise BadFile(f"{path}: {message}.", next_step) from error


def _machines_own_set(machine: Machine, software: str) -> ConstantSet:
    """The constants measured on the machine itself (`machine.calibration`), as a set for `software`."""
    first_claim = next(iter(machine.calibration.values()))
    model_kinds = ("dense", "experts", "hybrid", "pictures")
    return ConstantSet(
        name=machine.name,
        description=f"Its own: {first_claim.source}.",
        devices=(machine.name,),
        software=software,
        date=first_claim.date,
        rows=0,
        source=first_claim.source,
        prediction_intervals=dict.fromkeys(model_kinds, machine.prediction_interval)
        if machine.prediction_interval
        else {},
        constants={name: claim.value for name, claim in machine.calibration.items()},
    )


def choose(machine: Machine, software: str, sets: Sequence[ConstantSet] | None = None) -> ConstantSet:
    """The set of this device and software, or of the newest release of the software; else of this device with other
    software. For a device without a set: assumed values, with its own best matrix-product rate if that was measured.
    `software`: as in `ConstantSet`, such as `megatron-25`; `sets`: to choose from, instead of those in the package. A
    machine with constants of its own (`machine.calibration`) uses those."""
    if machine.calibration:
        return _machines_own_set(machine, software)
    fitted_name = name_of_device(machine)
    sets_of_machine = [
        candidate for candidate in (known() if sets is None else sets) if fitted_name in candidate.devices
    ]
    family = family_of(software)
    same_family = [candidate for candidate in sets_of_machine if family_of(candidate.software) == family]
    for candidate in same_family:
        if candidate.software == software:
            return candidate
    if same_family:
        return max(same_family, key=_release)
    if sets_of_machine:
        return max(sets_of_machine, key=lambda candidate: candidate.rows)
    curve = machine.device.achieved.get("matmul")
    return ConstantSet(
        name="assumed",
        description=f"No training on {machine.device.name} was measured.",
        devices=(),
        software=software,
        date="",
        rows=0,
        source=curve.claim.source if curve and has_own_rate(machine) else "nobody",
        constants=_assumed_of_device(machine),
    )


def _release(candidate: ConstantSet) -> tuple[float, int]:
    """The year of a set's software, infinite for the newest release and 0 for a fork, and the number of its rows."""
    _, has_suffix, suffix = candidate.software.partition("-")
    return (float(suffix) if suffix.isdigit() else 0.0 if has_suffix else inf), candidate.rows


def name_of_device(machine: Machine) -> str:
    """The name of the machine in the package that has the same device, by which sets of constants know it, whatever the
    name of the machine is; empty if there is none."""
    shipped = find_machine(machine.device.name)
    return shipped.name if shipped else ""


def family_of(software: str) -> str:
    """The software of a release: `megatron` for `megatron-25`."""
    return software.partition("-")[0]


def _measured_matmul_shares(machine: Machine) -> dict[str, float]:
    """Attainable shares of the peaks by name of the constant (`matmul`, `low_matmul`), from the fastest matrix product
    of the machine file in bfloat16; empty if none was measured. The device's limits there (clocks, power) apply below
    16 bits too, so `low_matmul` is lowered in proportion, never raised."""
    curve, peak = machine.device.achieved.get("matmul"), machine.device.peak.get("bfloat16")
    if not curve or not peak:
        return {}
    share = min(_MAX_MATMUL_SHARE, max(flops_per_s for _, flops_per_s in curve.points) / peak.value)
    low = Constants().low_matmul * min(1.0, share / Constants().matmul)
    return {"matmul": share, "low_matmul": low}


def has_own_rate(machine: Machine) -> bool:
    """Whether the assumed rates of matrix products are those of the machine file."""
    return bool(_measured_matmul_shares(machine))


_WHOLE_STEP_COMPILERS = frozenset(("aws", "google"))
"""Vendors whose compilers (neuronx-cc, XLA) make a single program of all layers."""
_NO_HOST_S = dict.fromkeys(("host_forward_s", "host_backward_s", "host_experts_s", "host_collective_s"), 1e-9)
"""Host times of a layer in such a program, which the host launches as a whole."""


def assumed(machine: Machine) -> Constants:
    """The constants of a machine before anything is fitted."""
    return Constants()._replace(**_assumed_of_device(machine))


def _assumed_of_device(machine: Machine) -> dict[str, float]:
    """Constants of a device, by name, that differ from those of any device before anything is fitted."""
    host_s = _NO_HOST_S if machine.device.vendor in _WHOLE_STEP_COMPILERS else {}
    return {**host_s, **_measured_matmul_shares(machine)}
