"""`trainyard trace memory SNAPSHOT`."""

from __future__ import annotations

from pathlib import Path

import click

from trainyard.cli.support.output import console, print_json, say
from trainyard.cli.support.pipes import InputFile
from trainyard.cli.trace.trace_options import FULL, JSON, LIMIT, PAGE

_HOLDERS = 8
"""Rows of the table of holders that fit one screen."""


@click.command()
@click.argument("snapshot", type=InputFile(Path))
@LIMIT
@PAGE
@FULL
@JSON
def command(snapshot: Path, limit: str, page: str | None, full: bool, as_json: bool) -> None:
    """Show what held the peak of a torch memory snapshot, how fragmented memory was, and why requests failed.

    SNAPSHOT is a file that torch.cuda.memory._dump_snapshot or an out-of-memory observer wrote: a pickle, plain or
    gzipped, or the same structure as JSON.
    """
    from trainyard.units import parse_size

    show_snapshot(snapshot, parse_size(limit), page, full, as_json)


def show_snapshot(path: Path, limit: int, page: str | None, full: bool, as_json: bool) -> None:
    """Print a memory snapshot of torch's allocator; write its page if `page` is a path."""
    from trainyard import __version__
    from trainyard.report.memory import memory_view
    from trainyard.report.memory.memory_terminal import print_memory
    from trainyard.report.view.trace_results import MemorySnapshot
    from trainyard.trace.memory.measure_snapshot import measure, record

    snapshot, devices = measure(path, limit)
    view = memory_view.view_of(snapshot, memory_view.busiest(devices), devices, f"trainyard {__version__}")
    if as_json:
        print_json(MemorySnapshot(devices=tuple(record(snapshot, device) for device in devices)))
    else:
        print_memory(view, console(full=full), None if full else _HOLDERS)
    if page:
        memory_view.write(view, Path(page))
        say(f"wrote {page}")
