"""Finds the differences between two commands from which their trainings differ numerically."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from trainyard.errors import BadFile, BadInput, NotEnoughEvidence, TrainyardError
from trainyard.numerics.bisect.configuration import Change, Changes, Configuration
from trainyard.numerics.bisect.delta_debugging import Outcome, minimise
from trainyard.numerics.compare.compare_records import compare_records
from trainyard.numerics.compare.comparison_result import Divergence
from trainyard.numerics.compare.read_run import read_run
from trainyard.numerics.record.record_command import record_command
from trainyard.numerics.record_files import variants
from trainyard.numerics.record_state import RecordOptions
from trainyard.redact import HIDDEN, redact_command

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRIALS = "trials.jsonl"
_OUTCOMES: Mapping[str, Outcome] = {"same": "same", "different": "different", "cannot tell": "unresolved"}


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A training with some of the changes. `first`: its first divergence; `failure`: why it has no outcome."""

    changes: tuple[Change, ...]
    outcome: Outcome
    first: Divergence | None = None
    failure: str = ""


class NumericsBisection(msgspec.Struct, frozen=True, kw_only=True):
    """`changes`: all differences; `causes`: those that together make the training differ, none of which can be left
    out. `first`: the first divergence with the causes alone. `trials`: in order."""

    schema: Literal["trainyard/numerics-bisection/1"] = "trainyard/numerics-bisection/1"
    changes: tuple[Change, ...]
    causes: tuple[Change, ...]
    first: Divergence | None
    trials: tuple[Trial, ...]

    @property
    def exit_code(self) -> int:
        """0 for one cause, 1 for several that act together."""
        return 0 if len(self.causes) == 1 else 1


def bisect_configuration(
    a: Path,
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, tuple[str | None, str | None]],
    say: Callable[[str], object] = lambda text: None,
) -> NumericsBisection:
    """Runs commands between that of the record in folder `a` and `command`, and compares each with the record.

    `variables`: environment variables with their values in A and B. `folder`: finished trials are kept there, and are
    not repeated. Raises `BadInput` if nothing differs or the record's command has hidden words, `NotEnoughEvidence` if
    A differs from itself, or B does not differ.
    """
    header = read_run(a, "plain", variants(a)).header
    for name, words in (("A", header.command), ("B", redact_command(command))):
        if not words or any(HIDDEN in word for word in words):
            raise BadInput(
                f"the command of {name} cannot be run from its record: {shlex.join(words) or 'it is empty'}.",
                "Pass secrets in environment variables.",
            )
    changes = Changes(header.command, command, variables)
    options = RecordOptions(steps=header.steps, level=header.level, replicas=0)
    trials = _Trials(a, changes, options, folder, say)
    if trials.outcome(()) != "same":
        raise NotEnoughEvidence(
            f"A differs from its own record when it is run again: {trials.reason(())}.",
            "Make it reproducible first (`trainyard numerics triage`).",
        )
    if trials.outcome(changes.changes) != "different":
        raise NotEnoughEvidence(
            f"B does not differ from A beyond rounding: {trials.reason(changes.changes)}.",
            "Record other steps, or compare them with `trainyard numerics compare`.",
        )
    causes = tuple(minimise(changes.changes, trials.outcome))
    return NumericsBisection(
        changes=changes.changes, causes=causes, first=trials.get(causes).first, trials=tuple(trials.finished)
    )


class _Trials:
    """Runs configurations, and keeps the results in a file."""

    def __init__(
        self, a: Path, changes: Changes, options: RecordOptions, folder: Path, say: Callable[[str], object]
    ) -> None:
        self._a, self._changes, self._options, self._say = a, changes, options, say
        self._path = folder / _TRIALS
        folder.mkdir(parents=True, exist_ok=True)
        self._known: dict[tuple[Change, ...], Trial] = {}
        self.finished: list[Trial] = []
        for line in self._path.read_bytes().splitlines() if self._path.exists() else ():
            try:
                trial = msgspec.json.decode(line, type=Trial)
            except msgspec.DecodeError:
                continue  # a line cut short by an interruption
            if not set(trial.changes) <= set(changes.changes):
                raise BadFile(f"{self._path} has trials of other commands.", "Pass another folder, or remove the file.")
            self._known[trial.changes] = trial

    def outcome(self, chosen: Sequence[Change]) -> Outcome:
        return self.get(chosen).outcome

    def reason(self, chosen: Sequence[Change]) -> str:
        trial = self.get(chosen)
        return trial.failure or trial.outcome

    def get(self, chosen: Sequence[Change]) -> Trial:
        """The trial with some of the changes, which is run if it is not known."""
        key = tuple(change for change in self._changes.changes if change in chosen)
        trial = self._known.get(key)
        if trial is None:
            trial = self._run(key)
            with self._path.open("ab") as lines:
                lines.write(msgspec.json.encode(trial) + b"\n")
            self._known[key] = trial
        if trial not in self.finished:
            self.finished.append(trial)
            names = ", ".join(change.name for change in key) or "none"
            self._say(f"trial {len(self.finished)}: of B {names}: {trial.outcome}")
        return trial

    def _run(self, chosen: tuple[Change, ...]) -> Trial:
        configuration = self._changes.configuration(chosen)
        record = Path(tempfile.mkdtemp(prefix="trial-", dir=self._path.parent))
        try:
            with _environment(configuration):
                record_command(configuration.command, record / "record", self._options)
            comparison = compare_records(self._a, record / "record")
        except TrainyardError as error:
            return Trial(changes=chosen, outcome="unresolved", failure=str(error))
        finally:
            shutil.rmtree(record, ignore_errors=True)
        return Trial(
            changes=chosen,
            outcome=_OUTCOMES[comparison.verdict],
            first=comparison.first,
            failure=comparison.reason if comparison.verdict == "cannot tell" else "",
        )


@contextmanager
def _environment(configuration: Configuration) -> Iterator[None]:
    """Sets the environment variables of a configuration."""
    before = {name: os.environ.get(name) for name in configuration.variables}
    _set(configuration.variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
