"""Prints the causes of a numerical difference between two commands."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from trainyard import units
from trainyard.numerics.bisect.bisection_result import NumericsBisection
from trainyard.numerics.bisect.configuration import Change
from trainyard.report.numerics.sentences import describe, describe_tensor
from trainyard.report.render.fitted_table import plain

_OTHERS = {"eager": ", with no other module compiled", "float64": ", with all other operations in float64"}


def describe_change(change: Change) -> str:
    """A difference with both values: `option --norm-eps: --norm-eps 1e-5 in A, --norm-eps 1 in B`; of a module or an
    operation, the name."""
    if change.kind in ("module", "operation"):
        return f"{change.kind} {change.name}"
    if change.kind == "part":
        return change.name
    a, b = (shlex.join(words) if words else "not set" for words in (change.a, change.b))
    return f"{change.kind} {change.name}: {a} in A, {b} in B"


def _headline(result: NumericsBisection) -> str:
    """The number of causes, and how everything else is computed."""
    causes = units.counted(len(result.causes), result.causes[0].kind if result.swap else "change")
    of_all = "" if result.swap else f" of {len(result.changes)}"
    together, verb = (" together", "make") if len(result.causes) > 1 else ("", "makes")
    others = _OTHERS[result.swap] if result.swap else ""
    return f"{causes}{of_all}{together} {verb} B differ{others}:"


def print_bisection(result: NumericsBisection, console: Console) -> None:
    """Prints the causes, the first divergence with them, and the trials."""
    if result.swap == "outputs":
        _print_parts(result, console)
        return
    console.print(Text(plain(_headline(result)), style="bold"))
    for change in result.causes:
        console.print(Text(plain(f"  {describe_change(change)}")))
    if result.first is not None:
        console.print(Text(plain(f"first at {describe_tensor(result.first.tensor)}: {describe(result.first)}")))
    unresolved = [trial for trial in result.trials if trial.outcome == "unresolved"]
    failed = f", {len(unresolved)} of them without an outcome" if unresolved else ""
    console.print(Text(f"{len(result.trials)} trials{failed}", style="dim"))
    for trial in unresolved:
        names = ", ".join(change.name for change in trial.changes)
        console.print(Text(plain(f"  {names}: {trial.failure}"), style="dim"))


def _print_parts(result: NumericsBisection, console: Console) -> None:
    """Prints each part that differs although it starts from the values of A, with its first divergence."""
    count = units.counted(len(result.causes), "part")
    verb = "differ" if len(result.causes) > 1 else "differs"
    console.print(Text(plain(f"{count} of B {verb}, computed from the values of A:"), style="bold"))
    for trial in result.trials:
        if trial.first is not None:
            where = describe_tensor(trial.first.tensor)
            console.print(Text(plain(f"  {describe_change(trial.changes[0])}")))
            first = Text(plain(f"first at {where}: {describe(trial.first)}"), style="dim")
            console.print(Padding(first, (0, 0, 0, 4), expand=False))
