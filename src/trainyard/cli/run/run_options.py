"""Options of `trainyard run` and its modes, and the session that they describe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from trainyard import units
from trainyard.cli.support.output import console, say

if TYPE_CHECKING:
    from trainyard.run.session import Progress, Session

TAG = click.option("--tag", default="", help="Name of the run.")
PORT = click.option("--port", type=int, help="Port on 127.0.0.1 for the ranks' rendezvous; default: a free port.")
COLLECT = click.option(
    "--collect",
    default="",
    envvar="TRAINYARD_COLLECT",
    metavar="FOLDER|URL",
    help="Where the nodes of a COMMAND exchange their parts; default: $TRAINYARD_COLLECT, else the job's network.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the stored run and its analysis as JSON.")
FULL = click.option("--full", is_flag=True, help="Print every table, not one screen.")
QUIET = click.option("--quiet", is_flag=True, help="Print no progress and no messages.")


@contextmanager
def session_of(tag: str, port: int | None, quiet: bool) -> Iterator[Session]:
    """The session of a command, with progress on stderr. `quiet`: no progress and no messages; `tag`, `port`: as in
    `Session`. Raises `BadInput` for a name that cannot be a tag."""
    from trainyard.run.session import Session
    from trainyard.store.store import Store

    with _progress_display(quiet) as progress:
        say_or_ignore = _ignore if quiet else say
        yield Session(Store(say=say), progress=progress, say=say_or_ignore, port=port, tag=tag)


def script_session_of(tag: str, quiet: bool, collect: str) -> Session:
    """The session of a user's own command, without a progress display. `tag`: name of the run, or empty; `quiet`: print
    no messages; `collect`: as in `Session`."""
    from trainyard.run.session import Session
    from trainyard.store.store import Store

    return Session(Store(say=say), say=_ignore if quiet else say, tag=tag, collect=collect)


def _ignore(_: object) -> None:
    """Print nothing."""


@contextmanager
def _progress_display(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Show progress on stderr: a bar on a terminal, else at most `_MOST_LINES` lines; nothing if `quiet`."""
    if quiet:
        yield _ignore
    elif sys.stderr.isatty():
        with _bar() as update:
            yield update
    else:
        yield _say_progress


_MOST_LINES = 10
"""Lines of progress of a job if stderr is not a terminal."""


def _say_progress(at: Progress) -> None:
    """Print a line at the steps that end a tenth of the job."""
    if at.step * _MOST_LINES // at.steps > (at.step - 1) * _MOST_LINES // at.steps:
        say(f"step {at.step}/{at.steps}  {_line(at)}")


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    """A progress bar on stderr; yields the function that moves it."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = [BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn()]
    with Bar(*columns, console=console(err=True), transient=True) as bar:
        task = bar.add_task("starting the ranks", total=None)
        yield lambda at: bar.update(task, completed=at.step, total=at.steps, description=_line(at))


def _line(at: Progress) -> str:
    """The loss and the throughput of a step as text."""
    loss = "" if at.loss is None else f"loss {at.loss:.4f}  "
    return f"{loss}{units.show_count(at.tokens_per_s)} {at.unit}/s"
