"""Finished trials, one per line of a file, so that the suite can be interrupted and resumed."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from validation.numerics.fault import Location
from validation.numerics.loss_curves import CurveVerdict


class FaultTrial(msgspec.Struct, frozen=True, kw_only=True, tag="fault"):
    """A planted fault. `verdict`, `undetectable`, `location`, `causes`: of the comparison. `named`: whether a reported
    location is accepted. `reproduced`: see `recorded_pair.reproduce`; empty without an alarm. `reference_s`,
    `suspect_s`, `compare_s`, `reproduce_s`: seconds to record both sides, to compare them and to reproduce the
    difference. `error`: the reason if there is no result."""

    id: str
    verdict: str = ""
    named: bool = False
    undetectable: float = 0.0
    location: Location = Location()
    causes: tuple[Location, ...] = ()
    reproduced: str = ""
    reference_s: float = 0.0
    suspect_s: float = 0.0
    compare_s: float = 0.0
    reproduce_s: float = 0.0
    error: str = ""
    when: str = ""


class BenignTrial(msgspec.Struct, frozen=True, kw_only=True, tag="benign"):
    """A benign pair of a set-up. `location`: of the false alarm, if there is one."""

    id: str
    seed: int
    verdict: str = ""
    undetectable: float = 0.0
    location: Location = Location()
    seconds: float = 0.0
    error: str = ""
    when: str = ""


class CurveTrial(msgspec.Struct, frozen=True, kw_only=True, tag="curve"):
    """Loss curves of a planted fault."""

    id: str
    result: CurveVerdict | None = None
    error: str = ""
    when: str = ""


class PartsTrial(msgspec.Struct, frozen=True, kw_only=True, tag="parts"):
    """A planted fault, or a benign pair with seed 0, of which each part starts from the values of the other run.
    `parts`: those that differ; `named`: whether one of them is at an accepted location. `reason`: why there is none."""

    id: str
    parts: tuple[str, ...] = ()
    named: bool = False
    reason: str = ""
    seconds: float = 0.0
    error: str = ""
    when: str = ""


Trial = FaultTrial | BenignTrial | CurveTrial | PartsTrial


class Trials:
    """The trials in a file; of repeated trials, the last one counts. Failed trials are repeated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self.by_key: dict[tuple[str, str, int], Trial] = {}
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                trial = msgspec.json.decode(line, type=Trial)
            except msgspec.MsgspecError:
                continue  # a line truncated by an interruption
            self.by_key[_key(trial)] = trial

    def append(self, trial: Trial) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, self.path.open("ab") as lines:
            lines.write(msgspec.json.encode(trial) + b"\n")
        self.by_key[_key(trial)] = trial

    def has_result(self, kind: str, id: str, seed: int = 0) -> bool:
        trial = self.by_key.get((kind, id, seed))
        return trial is not None and not trial.error

    def fault(self, id: str) -> FaultTrial | None:
        trial = self.by_key.get(("fault", id, 0))
        return trial if isinstance(trial, FaultTrial) else None

    def curve(self, id: str) -> CurveTrial | None:
        trial = self.by_key.get(("curve", id, 0))
        return trial if isinstance(trial, CurveTrial) else None

    def parts(self, id: str) -> PartsTrial | None:
        trial = self.by_key.get(("parts", id, 0))
        return trial if isinstance(trial, PartsTrial) else None

    def benign(self, id: str) -> list[BenignTrial]:
        return [trial for trial in self.by_key.values() if isinstance(trial, BenignTrial) and trial.id == id]


def _key(trial: Trial) -> tuple[str, str, int]:
    return str(trial.__struct_config__.tag), trial.id, trial.seed if isinstance(trial, BenignTrial) else 0
