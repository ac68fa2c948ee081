"""Finds the differences between two commands from which their trainings differ numerically."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainyard.errors import BadInput, NotEnoughEvidence
from trainyard.numerics.bisect.bisection_result import NumericsBisection
from trainyard.numerics.bisect.configuration import Change, Changes
from trainyard.numerics.bisect.delta_debugging import minimise
from trainyard.numerics.bisect.trials import Trials
from trainyard.numerics.compare.read_run import read_run
from trainyard.numerics.record.environment_variables import environment_variables
from trainyard.numerics.record.record_command import record_command
from trainyard.numerics.record_files import variants
from trainyard.numerics.record_state import RecordOptions, check_scripts
from trainyard.redact import HIDDEN, redact_command


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
    check_scripts(a)
    for name, words in (("A", header.command), ("B", redact_command(command))):
        if not words or any(HIDDEN in word for word in words):
            raise BadInput(
                f"the command of {name} cannot be run from its record: {shlex.join(words) or 'it is empty'}.",
                "Pass secrets in environment variables.",
            )
    changes = Changes(header.command, command, variables)
    options = RecordOptions(steps=header.steps, level=header.level, replicas=0)

    def record(chosen: tuple[Change, ...], record_folder: Path) -> None:
        configuration = changes.configuration(chosen)
        with environment_variables(configuration.variables):
            record_command(configuration.command, record_folder, options)

    trials = Trials(a, folder, changes.changes, record, say)
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
