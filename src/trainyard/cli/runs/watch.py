"""`trainyard runs watch RUN`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from trainyard.run.live_run import LiveRun, LiveStep

_STEPS = 1_000
"""Steps that the panel shows at most."""


@click.command()
@click.argument("run")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds between two looks."
)
@click.option("--wait", type=click.FloatRange(min=0), default=0.0, help="Seconds to wait for a run that has not begun.")
@click.option("--json", "as_json", is_flag=True, help="Print each update as a line of JSON.")
@click.pass_context
def command(context: click.Context, run: str, interval: float, wait: float, as_json: bool) -> None:
    """Follow RUN until it ends: steps, losses, throughput, incidents, and the ledger of its profiled steps.

    On a terminal, a panel is redrawn with each update; in a pipe, each update is a line. The run may be on another
    machine that shares the store. Stopping the command does not stop the run.

    Exit codes: 0 if the run is complete, 2 if it is damaged, 4 if it failed or its process ended without finishing it.
    """
    from trainyard import api
    from trainyard.cli.support.output import say
    from trainyard.errors import BadInput, CommandFailed

    updates = api.watch_run(run, interval_s=interval, wait_s=wait, say=say)
    update = next(updates)
    with _display(as_json) as show:
        show(update)
        for update in updates:
            show(update)
    if update.state == "damaged":
        context.exit(BadInput.exit_code)
    if update.state != "complete":
        resumable = update.state == "stopped" and update.steps > 0
        say(
            f"`trainyard run resume {update.id}` resumes it."
            if resumable
            else f"`trainyard runs show {update.id}` shows the measurements so far."
        )
        context.exit(CommandFailed.exit_code)


@contextmanager
def _display(as_json: bool) -> Iterator[Callable[[LiveRun], None]]:
    """Yield the function that shows an update: as a line of JSON, in a panel on a terminal, else in lines."""
    from trainyard.cli.support.output import console, echo, print_json

    if as_json:
        yield print_json
    elif (screen := console()).is_terminal:
        with _panel(screen) as show:
            yield show
    else:
        from trainyard.report.render.live_terminal import LiveLines

        live = LiveLines()

        def print_lines(update: LiveRun) -> None:
            """Prints the lines of an update."""
            for line in live.lines(update):
                echo(line)

        yield print_lines


@contextmanager
def _panel(screen: Console) -> Iterator[Callable[[LiveRun], None]]:
    """Yield the function that redraws the panel with an update. The last panel stays on the terminal."""
    from rich.live import Live

    from trainyard.report.render.live_terminal import live_panel

    steps: deque[LiveStep] = deque(maxlen=_STEPS)

    def show(update: LiveRun) -> None:
        """Redraws the panel."""
        steps.extend(update.new_steps)
        live.update(live_panel(update, steps, screen.width), refresh=True)

    with Live(console=screen, auto_refresh=False) as live:
        yield show
