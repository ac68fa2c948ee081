"""`trainyard run JOB.toml`: train, time, profile and record a job, and show its ledger."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import which

import click
from msgspec import to_builtins
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from trainyard import job_file as jobs
from trainyard import units
from trainyard.cli.runs import document
from trainyard.cli.support.output import console, echo, print_json, say
from trainyard.cli.support.pipes import InputFile, regular
from trainyard.job import Measure
from trainyard.ledger import Ledger
from trainyard.report.render.chaos_table import table as chaos_table
from trainyard.report.render.terminal import print_table, print_view
from trainyard.report.view.build_analysis import analyse_run
from trainyard.report.view.build_view import view_of
from trainyard.run.chaos import experiment, fault_plan
from trainyard.run.local import harness
from trainyard.run.resume import fork_run
from trainyard.run.script import run_command
from trainyard.run.session import Progress, Session
from trainyard.store.store import Store, check_tag
from trainyard.trace.measure import measure_files
from trainyard.trace.measured_trace import MeasuredTrace


class RunBooking:
    """Books a run's profiler files, and keeps the measured trace for the view."""

    def __init__(self, axis: str) -> None:
        self.axis = axis
        self.measured: MeasuredTrace | None = None

    def __call__(self, paths: list[Path]) -> Sequence[Ledger]:
        self.measured = measure_files(paths, axis=self.axis)
        return self.measured.ledgers


@click.command()
@click.argument("target", metavar="JOB.toml | -- COMMAND...", nargs=-1)
@click.option(
    "--resume", metavar="RUN", help="Resume an unfinished run; with JOB.toml: start a new run from its checkpoint."
)
@click.option(
    "--chaos",
    metavar="PLAN.toml",
    type=InputFile(),
    help="Inject the faults of this plan, and score the job's recovery.",
)
@click.option("--against", metavar="RUN", help="With --chaos: a stored run without faults to compare losses with.")
@click.option("--tag", help="Name of the run.")
@click.option("--port", type=int, help="Port on 127.0.0.1 for the ranks' rendezvous; default: a free port.")
@click.option(
    "--profile", type=click.IntRange(min=0), default=3, show_default=True, help="Number of steps of COMMAND to profile."
)
@click.option("--json", "as_json", is_flag=True, help="Print the stored run as JSON.")
@click.option("--quiet", is_flag=True, help="Print no progress and no messages.")
def command(
    target: tuple[str, ...],
    resume: str | None,
    chaos: str | None,
    against: str | None,
    tag: str | None,
    port: int | None,
    profile: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run the job in JOB.toml on this machine, and show where the time of a step goes.

    The step time is measured without the profiler; a few more steps with the profiler give the ledger. Runs are stored
    under $TRAINYARD_STORE, by default ~/.local/share/trainyard.

    To run a training script of your own, unchanged: `trainyard run -- python my_train.py --lr 3e-4`, or
    `-- torchrun --nproc-per-node 2 my_train.py`. A step ends when the optimizer steps, or at the end of
    `with trainyard.step():` if the script uses it.

    `--resume RUN` continues a run that was killed or failed, with its own id and job, from its last good checkpoint
    ([checkpoint] every = N in the job saves them) or, without one, from the beginning. `--resume RUN JOB.toml` starts a
    new run of JOB.toml from that checkpoint; layout, precision and other settings that do not change the training may
    differ.

    `--chaos PLAN.toml` runs the job twice, the second time with injected faults ([[fault]] kind, step, rank or node):
    killed, stopped or slow ranks, a full disk, a damaged checkpoint. It prints which rank or node was blamed for each
    fault, the time it cost, and whether the losses match, and stores the score as chaos.json in the run's folder. The
    exit code is 4 if the job did not recover.
    """
    if not target and resume is None:
        raise click.UsageError("Nothing to run. Pass a JOB.toml, a COMMAND after --, or --resume RUN.")
    if resume is not None and len(target) > 1:
        raise click.UsageError("--resume takes no COMMAND. Pass RUN alone, or RUN and a JOB.toml.")
    if (chaos or against) and (not chaos or len(target) != 1 or resume is not None):
        raise click.UsageError("--chaos needs a JOB.toml and no --resume; --against needs --chaos.")
    store = Store(say=say)
    score: experiment.ChaosResult | None = None
    if tag:
        check_tag(tag)
    talk = (lambda _: None) if quiet else say
    first, tag = next(iter(target), ""), tag or ""
    if resume is not None and not target:
        book = RunBooking(store.load(resume).job.layout.only_axis)
        with _progress_display(quiet) as progress:
            session = Session(store, book, progress=progress, say=talk, port=port)
            run = harness.resume(resume, session, tag=tag)
    elif not chaos and resume is None and (len(target) > 1 or _is_command(first)):
        book = RunBooking("")
        measure = Measure(warmup=3, steps=10, repeats=1, profiled=profile)
        run = run_command.execute(target, measure, Session(store, book, say=talk), tag=tag)
    else:
        first = regular(first)
        text = jobs.read(first)
        job = jobs.parse(text, first, Path(first).parent)
        faults = fault_plan.load(chaos) if chaos else None
        book = RunBooking(job.layout.only_axis)
        with _progress_display(quiet) as progress:
            session = Session(store, book, progress=progress, say=talk, port=port)
            if faults:
                score = experiment.execute(job, text, faults, session, against=against, tag=tag)
                run = score.run
            elif resume is not None:
                run = fork_run.execute(resume, job, text, session, tag=tag)
            else:
                run = harness.execute(job, text, session, tag=tag)
    if as_json:
        notes = _notes(book.measured) if book.measured else ()
        keys = ("rows", "strays", "against")
        rows = {"chaos": {key: to_builtins(getattr(score, key)) for key in keys}} if score else {}
        print_json({**document(run, store.runs / run.id), "notes": notes, **rows})
        _raise(score)
        return
    echo(f"run {run.id}  {store.runs / run.id}\n")
    print_view(view_of(analyse_run(run, book.measured)), console())
    if score:
        print_table(chaos_table(score.rows, score.strays), console())
    _raise(score)


def _notes(measured: MeasuredTrace) -> tuple[str, ...]:
    return (measured.left_out, *measured.notes) if measured.unread else measured.notes


def _is_command(word: str) -> bool:
    """Whether a single word is a command. A job file may have any name; a missing file is one if it ends in .toml."""
    return not word.endswith(".toml") and (which(word) is not None or not Path(word).exists())


def _raise(score: experiment.ChaosResult | None) -> None:
    """Raise the error that ended the job, after its results have been printed."""
    if score and score.failure:
        raise score.failure


@contextmanager
def _progress_display(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Show progress on stderr: a bar on a terminal, else one line per step; nothing if `quiet`."""
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        columns = [BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn()]
        with Bar(*columns, console=console(err=True), transient=True) as bar:
            task = bar.add_task("starting the ranks", total=None)
            yield lambda at: bar.update(task, completed=at.step, total=at.steps, description=_line(at))
    else:
        yield lambda at: say(f"step {at.step}/{at.steps}  {_line(at)}")


def _line(at: Progress) -> str:
    loss = "" if at.loss is None else f"loss {at.loss:.4f}  "
    return f"{loss}{units.show_count(at.tokens_per_s)} tokens/s"
