"""A report as a file: its name's ending decides what is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from trainyard.errors import BadInput
from trainyard.formats.atomic import write_text
from trainyard.ledger import Ledger, to_json
from trainyard.printable import printable_json
from trainyard.record import Run
from trainyard.report.view.view import View
from trainyard.trace.measured_trace import MeasuredTrace


class Reported(NamedTuple):
    """What there is to report. `ledgers`: of each part, and the mean last. `measured`: where the traces are at hand;
    `run`: where one is stored."""

    view: View
    ledgers: tuple[Ledger, ...]
    measured: MeasuredTrace | None = None
    run: Run | None = None


def ending(path: Path) -> str:
    """The ending that decides: known before anything is read. Raises `BadInput` for one that nothing is written for."""
    if path.suffix.lower() not in _WRITERS:
        raise BadInput(f"{path}: nothing is written as {path.suffix or 'a name without an ending'}.",
                       f"End it in one of {', '.join(_WRITERS)}.")  # fmt: skip
    return path.suffix.lower()


def write(reported: Reported, path: Path) -> None:
    """Raises `BadInput`, `MissingLibrary`, `PlaceUnwritable`."""
    _WRITERS[ending(path)](reported, path)


def _html(reported: Reported, path: Path) -> None:
    from trainyard.report.render import html

    html.write(reported.view, path)


def _markdown(reported: Reported, path: Path) -> None:
    from trainyard.report.render import markdown

    write_text(markdown.text(reported.view), path)


def _csv(reported: Reported, path: Path) -> None:
    from trainyard.report.render import csv_tables
    from trainyard.trace.export.trace_tables import ledger_table

    write_text(csv_tables.text(ledger_table(reported.ledgers)), path)


def _json(reported: Reported, path: Path) -> None:
    write_text(printable_json(to_json(reported.ledgers).decode()) + "\n", path)


def _xlsx(reported: Reported, path: Path) -> None:
    from trainyard.report.render import xlsx

    xlsx.write(reported.view, reported.ledgers, reported.measured, path)


def _pftrace(reported: Reported, path: Path) -> None:
    from trainyard.report.render import perfetto

    if reported.measured is None:
        raise BadInput(
            f"{path}: a Perfetto file needs traces, but the run has none.", "Name a run that kept its traces."
        )
    perfetto.write(reported.measured, path)


def _mllog(reported: Reported, path: Path) -> None:
    from trainyard.report.render import mllog_export

    if reported.run is None:
        raise BadInput(
            "an MLLOG file is made of a stored run, and this is none.", "`trainyard runs` lists what is stored."
        )
    write_text(mllog_export.text(reported.run), path)


_WRITERS: Mapping[str, Callable[[Reported, Path], None]] = {
    ".html": _html,
    ".md": _markdown,
    ".csv": _csv,
    ".json": _json,
    ".xlsx": _xlsx,
    ".pftrace": _pftrace,
    ".mllog": _mllog,
}
