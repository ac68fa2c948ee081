"""`trainyard run JOB.toml`: train, time, profile, book, record, show."""

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
    """Books a run's profiler files, and keeps what was concluded from them for the view."""

    def __init__(self, axis: str) -> None:
        self.axis = axis
        self.measured: MeasuredTrace | None = None

    def __call__(self, paths: list[Path]) -> Sequence[Ledger]:
        self.measured = measure_files(paths, axis=self.axis)
        return self.measured.ledgers


@click.command()
@click.argument("what", metavar="JOB.toml | -- COMMAND...", nargs=-1)
@click.option("--resume", metavar="RUN", help="Go on with a stored run that did not end; with JOB.toml in a new run.")
@click.option(
    "--chaos",
    metavar="PLAN.toml",
    type=InputFile(),
    help="Make this plan's faults in the job, and score how it takes them.",
)
@click.option("--against", metavar="RUN", help="Of --chaos: a stored run without faults to compare losses with.")
@click.option("--tag", help="Give the run this name.")
@click.option("--port", type=int, help="Port on 127.0.0.1 at which the ranks meet; without it a free one.")
@click.option(
    "--profile", type=click.IntRange(min=0), default=3, show_default=True, help="Steps of COMMAND to profile."
)
@click.option("--json", "as_json", is_flag=True, help="Print the stored run as JSON.")
@click.option("--quiet", is_flag=True, help="No progress and no talk.")
def command(
    what: tuple[str, ...],
    resume: str | None,
    chaos: str | None,
    against: str | None,
    tag: str | None,
    port: int | None,
    profile: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run the job that JOB.toml describes on this machine, and show where a step's time goes.

    Measured steps run without the profiler; then a few with it become the ledger. Everything is kept in the
    store, under $TRAINYARD_STORE or ~/.local/share/trainyard.

    Or run a training script of your own, unchanged: `trainyard run -- python my_train.py --lr 3e-4`, or
    `-- torchrun --nproc-per-node 2 my_train.py`. A step ends where its optimizer steps, or where
    `with trainyard.step():` ends, if the script says so.

    `--resume RUN` goes on with a run that was killed or failed, under its own id and with its own job, from its last
    good checkpoint ([checkpoint] in the job says how often one is saved); from its beginning where it has none.
    `--resume RUN JOB.toml` is a new run of JOB.toml that begins with that checkpoint: layout, precision and whatever
    else leaves a step what it was may differ.

    `--chaos PLAN.toml` runs the job twice, the second time with faults ([[fault]] kind, step, rank or node): killed,
    stopped, slow ranks, a full disk, a damaged checkpoint. It prints who was blamed for each, what it cost, and whether
    the losses are the same; the score is kept in the run's folder as chaos.json. Exit code 4 when the job was ended.
    """
    if not what and resume is None:
        raise click.UsageError("Give a JOB.toml, a COMMAND after --, or --resume RUN.")
    if resume is not None and len(what) > 1:
        raise click.UsageError("--resume takes no COMMAND: give RUN alone, or RUN and a JOB.toml.")
    if (chaos or against) and (not chaos or len(what) != 1 or resume is not None):
        raise click.UsageError("--chaos is for a JOB.toml, and --against for --chaos.")
    store = Store(say=say)
    score: experiment.ChaosResult | None = None
    if tag:
        check_tag(tag)
    talk = (lambda _: None) if quiet else say
    first, tag = next(iter(what), ""), tag or ""
    if resume is not None and not what:
        book = RunBooking(store.load(resume).job.layout.only_axis)
        with _shown(quiet) as progress:
            session = Session(store, book, progress=progress, say=talk, port=port)
            run = harness.resume(resume, session, tag=tag)
    elif not chaos and resume is None and (len(what) > 1 or _is_command(first)):
        book = RunBooking("")
        measure = Measure(warmup=3, steps=10, repeats=1, profiled=profile)
        run = run_command.execute(what, measure, Session(store, book, say=talk), tag=tag)
    else:
        first = regular(first)
        text = jobs.read(first)
        wanted = jobs.parse(text, first, Path(first).parent)
        faults = fault_plan.load(chaos) if chaos else None
        book = RunBooking(wanted.layout.only_axis)
        with _shown(quiet) as progress:
            session = Session(store, book, progress=progress, say=talk, port=port)
            if faults:
                score = experiment.execute(wanted, text, faults, session, against=against, tag=tag)
                run = score.run
            elif resume is not None:
                run = fork_run.execute(resume, wanted, text, session, tag=tag)
            else:
                run = harness.execute(wanted, text, session, tag=tag)
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
    """Of one that stands alone: a job file may have any name, but one that is not there ends in .toml."""
    return not word.endswith(".toml") and (which(word) is not None or not Path(word).exists())


def _raise(score: experiment.ChaosResult | None) -> None:
    """What ended the job, now that all is said of it."""
    if score and score.failure:
        raise score.failure


@contextmanager
def _shown(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Progress on stderr: a bar on a terminal, else a line a step, or nothing."""
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
