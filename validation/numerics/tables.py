"""Tables of the finished trials, in Markdown."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import version

from benchmarks.__main__ import processor
from validation.convergence import bounds
from validation.numerics.benign import SEEDS, SETUPS
from validation.numerics.fault import Fault, Location
from validation.numerics.faults import FAULTS
from validation.numerics.trials import CurveTrial, FaultTrial, PartsTrial, Trials

ALARM = "different"


_PAGE = """# Planted faults

What `trainyard numerics` finds in trainings with a planted fault, each a published bug as a small script, and in
trainings that differ by rounding only. {dates}, torch {torch}, Python {python}, {cores} cores of an {processor}, one
thread a process, two trials at a time.

## Faults

Both variants of a fault are recorded and compared. *Named*: the first difference, or an operation from which it
follows and that only one side computes, is at a module or operation that was stated before the comparison was written
(*amended*: a condition was dropped later). *Step*: the first step that is reported, and the first in which a tensor
differs. *Reproducer*: the inputs with which the script of `numerics reproduce` shows the fault, or the reason for
which there is none. *Seconds*: to record both sides, and to compare them. *Loss curves*: the verdict of
`gate convergence` on 80 steps with four seeds, and the difference of the final loss.

{faults}
## Rounding only

Each set-up is tried with {seeds} seeds, which have other weights, data and shapes. *Undetectable*: the largest share
of a pair's tensors that rounding makes useless.

{benign}
## Parts, each from the values of the other run

`numerics bisect --swap outputs` on each fault, and on one pair of each set-up that differs by rounding only (seed 0).
*Named*: one of the parts is at a location that was stated for the fault. A pair whose sides divide their batches
differently cannot be compared in this way.

{parts}
`OMP_NUM_THREADS=1 python -m validation.numerics --jobs 2 --page docs/planted-faults.md` repeats the trials and writes
this page. [How the comparison decides](explanation/numerics.md).
"""


def page(trials: Trials) -> str:
    """The tables as a page of the documentation."""
    days = sorted({trial.when[:10] for trial in trials.by_key.values() if not trial.error})
    return _PAGE.format(
        dates=" to ".join(dict.fromkeys((days[0], days[-1]))) if days else "Not tried",
        torch=version("torch"),
        python=platform.python_version(),
        cores=os.cpu_count(),
        processor=processor(),
        faults=fault_table(trials),
        seeds=SEEDS,
        benign=benign_table(trials),
        parts=parts_table(trials),
    )


def fault_table(trials: Trials) -> str:
    """One row per fault, and the totals. Loss curves have 80 steps."""
    lines = [
        "| | fault | source | verdict | named | step (first) | reported | reproducer | seconds | loss curves |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_fault_row(fault, trials.fault(fault.id), trials.curve(fault.id)) for fault in FAULTS),
    ]
    finished = [trial for fault in FAULTS if (trial := trials.fault(fault.id)) and not trial.error]
    alarms, named = sum(trial.verdict == ALARM for trial in finished), sum(trial.named for trial in finished)
    shown = sum(trial.reproduced.endswith(" inputs") for trial in finished)
    of_bugs = [(fault.number, trial) for fault in FAULTS if (trial := trials.fault(fault.id)) and trial.named]
    bugs = len({number for number, _ in of_bugs})
    with_script = len({number for number, trial in of_bugs if trial.reproduced.endswith(" inputs")})
    counts = f"{alarms} with an alarm, {named} named, {shown} shown by a reproducer"
    all_bugs = len({fault.number for fault in FAULTS})
    of_all = f"{bugs} of {all_bugs} bugs are named, {with_script} of them with a reproducer"
    lines.append(f"\n{len(finished)} of {len(FAULTS)} faults tried: {counts}. {of_all}.\n")
    return "\n".join(lines)


def benign_table(trials: Trials) -> str:
    """One row per set-up: false alarms of its pairs, and the largest share of undetectable tensors; and the rate of all
    alarms with its 95 % interval."""
    lines = ["| pairs | model | tried | false alarms | undetectable tensors | reported |", "|---|---|---|---|---|---|"]
    alarms = tried = 0
    for setup in SETUPS:
        finished = [trial for trial in trials.benign(setup.id) if not trial.error]
        raised = [trial for trial in finished if trial.verdict == ALARM]
        alarms, tried = alarms + len(raised), tried + len(finished)
        reported = "; ".join(sorted({_describe(trial.location) for trial in raised}))
        unseen = f"{100 * max(trial.undetectable for trial in finished):.1f} %" if finished else ""
        lines.append(_row((setup.title, setup.model, len(finished), len(raised), unseen, reported)))
    if tried:
        low, high = bounds(alarms, tried)
        lines.append(
            f"\n{alarms} false alarms in {tried} pairs: {100 * alarms / tried:.1f} % "
            f"(95 % interval {100 * low:.1f} to {100 * high:.1f} %).\n"
        )
    return "\n".join(lines)


_NO_PART = "no part of B differs"
"""First words of the message without a part that differs; other messages say why two runs cannot be compared."""


def parts_table(trials: Trials) -> str:
    """One row per fault and set-up that was tried, and the totals."""
    lines = ["| fault or set-up | parts that differ | named | seconds |", "|---|---|---|---|"]
    faults = [(fault.title, trial) for fault in FAULTS if (trial := trials.parts(fault.id)) and not trial.error]
    setups = [(setup.title, trial) for setup in SETUPS if (trial := trials.parts(setup.id)) and not trial.error]
    for title, trial in faults:
        lines.append(_row((title, _parts(trial), _yes(trial.named), f"{trial.seconds:.0f}")))
    for title, trial in setups:
        lines.append(_row((title, _parts(trial), "", f"{trial.seconds:.0f}")))
    named = sum(trial.named for _, trial in faults)
    alone = sum(trial.named and len(trial.parts) == 1 for _, trial in faults)
    alarms = sum(bool(trial.parts) for _, trial in setups)
    compared = sum(bool(trial.parts) or trial.reason.startswith(_NO_PART) for _, trial in setups)
    lines.append(
        f"\n{named} of {len(faults)} faults are named, {alone} of them as the only part. "
        f"{alarms} false alarms in {compared} pairs; {len(setups) - compared} pairs cannot be compared.\n"
    )
    return "\n".join(lines)


def _parts(trial: PartsTrial) -> str:
    """The first parts of a trial, or the reason for which there is none."""
    if not trial.parts:
        return trial.reason
    more = f", and {len(trial.parts) - 3} more" if len(trial.parts) > 3 else ""
    return ", ".join(trial.parts[:3]) + more


def list_errors(trials: Trials) -> str:
    """A Markdown list of the trials without a result."""
    failed = [trial for trial in trials.by_key.values() if trial.error]
    return "".join(f"- {trial.id}: {_main_line(trial.error)}\n" for trial in failed)


def _main_line(error: str) -> str:
    """The line of a command's output that says what failed: its error, otherwise the last line."""
    lines = error.splitlines()
    return next((line for line in lines if line.startswith("error")), lines[-1])


def _fault_row(fault: Fault, trial: FaultTrial | None, curve: CurveTrial | None) -> str:
    cells: tuple[object, ...] = ("not tried", "", "", "", "", "")
    if trial and not trial.error:
        step = "" if trial.location.step is None else f"{trial.location.step} ({fault.first_step})"
        seconds = f"{trial.reference_s + trial.suspect_s:.0f} s + {trial.compare_s:.1f} s"
        named = _yes(trial.named) + (" (amended)" if trial.named and fault.amended else "")
        reported = "; after ".join(_describe(location) for location in (trial.location, *trial.causes))
        cells = (trial.verdict, named, step, reported, trial.reproduced, seconds)
    elif trial:
        cells = ("failed", "", "", "", "", "")
    return _row((fault.number, fault.title, _short(fault.source), *cells, _describe_curve(curve)))


def _describe(location: Location) -> str:
    """The parts of a location that a report names."""
    parts = (
        location.kind,
        location.phase,
        location.module,
        location.role,
        location.operation,
        location.line.rpartition("/")[2],
    )
    return " ".join(part for part in parts if part)


def _describe_curve(curve: CurveTrial | None) -> str:
    if curve is None or curve.result is None:
        return "" if curve is None else "failed"
    if curve.result.difference is None:
        return curve.result.verdict
    return f"{curve.result.verdict} ({100 * curve.result.difference:+.2g} %)"


def _short(source: str) -> str:
    """A Markdown link whose text is "owner/repository#number" on GitHub."""
    parts = source.removeprefix("https://").split("/")
    text = f"{parts[1]}/{parts[2]}#{parts[-1]}" if parts[0] == "github.com" else "/".join(parts)
    return f"[{text}]({source})"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
