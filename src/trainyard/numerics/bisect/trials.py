"""Runs trials of a bisection, and keeps their results in a file."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from trainyard.errors import BadFile, BadInput, TrainyardError
from trainyard.numerics.bisect.bisection_result import Trial
from trainyard.numerics.bisect.configuration import Change
from trainyard.numerics.bisect.delta_debugging import Outcome
from trainyard.numerics.compare.compare_records import compare_records
from trainyard.numerics.record_files import variants

_TRIALS = "trials.jsonl"
_OUTCOMES: Mapping[str, Outcome] = {"same": "same", "different": "different", "cannot tell": "unresolved"}


class Trials:
    """Records trainings with some of the changes, and compares them with the record in folder `a`."""

    def __init__(
        self,
        a: Path,
        folder: Path,
        changes: Sequence[Change],
        record: Callable[[tuple[Change, ...], Path], object],
        say: Callable[[str], object],
    ) -> None:
        """`folder`: finished trials are kept there, and are not repeated. `record`: records a training with some of the
        changes into a folder. Raises `BadFile` for trials with other changes than `changes`, `BadInput` if the record
        in folder `a` has no float64 reference."""
        if "float64" not in variants(a):
            raise BadInput(
                f"{a} has no float64 reference, with which each trial is compared.",
                "Pass the record of the program that is right, recorded without --replicas 0.",
            )
        self._a, self._changes, self._record, self._say = a, tuple(changes), record, say
        self._path = folder / _TRIALS
        folder.mkdir(parents=True, exist_ok=True)
        self._known: dict[tuple[Change, ...], Trial] = {}
        self.finished: list[Trial] = []
        for line in self._path.read_bytes().splitlines() if self._path.exists() else ():
            try:
                trial = msgspec.json.decode(line, type=Trial)
            except msgspec.DecodeError:
                continue  # a line cut short by an interruption
            if not set(trial.changes) <= set(changes):
                raise BadFile(f"{self._path} has trials of other commands.", "Pass another folder, or remove the file.")
            self._known[trial.changes] = trial

    def outcome(self, chosen: Sequence[Change]) -> Outcome:
        return self.get(chosen).outcome

    def reason(self, chosen: Sequence[Change]) -> str:
        trial = self.get(chosen)
        return trial.failure or trial.outcome

    def get(self, chosen: Sequence[Change]) -> Trial:
        """The trial with some of the changes, which is run if it is not known."""
        key = tuple(change for change in self._changes if change in chosen)
        trial = self._known.get(key)
        if trial is None:
            trial = self._run(key)
            with self._path.open("ab") as lines:
                lines.write(msgspec.json.encode(trial) + b"\n")
            self._known[key] = trial
        if trial not in self.finished:
            self.finished.append(trial)
            changes = f"A with {', '.join(change.name for change in key)} of B" if key else "A again"
            self._say(f"trial {len(self.finished)}, {changes}: {trial.outcome}")
        return trial

    def _run(self, chosen: tuple[Change, ...]) -> Trial:
        folder = Path(tempfile.mkdtemp(prefix="trial-", dir=self._path.parent))
        try:
            self._record(chosen, folder / "record")
            comparison = compare_records(self._a, folder / "record")
        except TrainyardError as error:
            return Trial(changes=chosen, outcome="unresolved", failure=str(error))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return Trial(
            changes=chosen,
            outcome=_OUTCOMES[comparison.verdict],
            first=comparison.first,
            failure=comparison.reason if comparison.verdict == "cannot tell" else "",
        )
