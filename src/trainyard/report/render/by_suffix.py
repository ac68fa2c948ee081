"""Writes a report to a file in the format of its suffix."""

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
    """The data of a report. `ledgers`: one for each rank and step, the mean last. `measured`: the traces, if available;
    `run`: the stored run, if any."""

    view: View
    ledgers: tuple[Ledger, ...]
    measured: MeasuredTrace | None = None
    run: Run | None = None


def ending(path: Path) -> str:
    """The suffix that selects the format, in lower case. Raises `BadInput` for an unsupported one, before anything is
    read."""
    if path.suffix.lower() not in _WRITERS:
        raise BadInput(
            f"{path}: no report format for {path.suffix or 'a name without a suffix'}.",
            f"Use one of {', '.join(_WRITERS)}.",
        )
    return path.suffix.lower()


def write(reported: Reported, path: Path) -> None:
    """Writes the report. Raises `BadInput`, `MissingLibrary`, `PlaceUnwritable`."""
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
    """Writes all ledgers as JSON."""
    write_text(printable_json(to_json(reported.ledgers).decode()) + "\n", path)


def _xlsx(reported: Reported, path: Path) -> None:
    from trainyard.report.render import xlsx

    xlsx.write(reported.view, reported.ledgers, reported.measured, path)


def _pftrace(reported: Reported, path: Path) -> None:
    """Writes the traces as a Perfetto file. Raises `BadInput` if there are none."""
    from trainyard.report.render import perfetto

    if reported.measured is None:
        raise BadInput(
            f"{path}: a Perfetto file needs traces, but the run has none.", "Choose a run that kept its traces."
        )
    perfetto.write(reported.measured, path)


def _mllog(reported: Reported, path: Path) -> None:
    """Writes the stored run as an MLLOG file. Raises `BadInput` for a report that is not of a stored run."""
    from trainyard.report.render import mllog_export

    if reported.run is None:
        raise BadInput(
            f"{path}: an MLLOG file needs a stored run.", "Pass the id of a run: `trainyard runs` lists them."
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
