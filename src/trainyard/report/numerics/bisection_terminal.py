"""Prints the causes of a numerical difference between two commands."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.text import Text

from trainyard import units
from trainyard.numerics.bisect.bisect_configuration import NumericsBisection
from trainyard.numerics.bisect.configuration import Change
from trainyard.report.numerics.sentences import describe, describe_tensor
from trainyard.report.render.fitted_table import plain


def describe_change(change: Change) -> str:
    """A difference with both values: `option --norm-eps: --norm-eps 1e-5 in A, --norm-eps 1 in B`."""
    a, b = (shlex.join(words) if words else "not set" for words in (change.a, change.b))
    return f"{change.kind} {change.name}: {a} in A, {b} in B"


def print_bisection(result: NumericsBisection, console: Console) -> None:
    """Prints the causes, the first divergence with them, and the trials."""
    together = " together" if len(result.causes) > 1 else ""
    text = f"{units.counted(len(result.causes), 'change')} of {len(result.changes)}{together} makes B differ:"
    console.print(Text(plain(text if len(result.causes) == 1 else text.replace("makes", "make")), style="bold"))
    for change in result.causes:
        console.print(Text(plain(f"  {describe_change(change)}")))
    if result.first is not None:
        console.print(Text(plain(f"first at {describe_tensor(result.first.tensor)}: {describe(result.first)}")))
    unresolved = [trial for trial in result.trials if trial.outcome == "unresolved"]
    console.print(Text(f"{len(result.trials)} trials, {len(unresolved)} of them without an outcome", style="dim"))
    for trial in unresolved:
        names = ", ".join(change.name for change in trial.changes)
        console.print(Text(plain(f"  {names}: {trial.failure}"), style="dim"))
