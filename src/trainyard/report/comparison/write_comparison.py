"""Writes the comparison of two or more runs to a file in the format of its suffix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainyard.errors import BadInput
from trainyard.formats.atomic import write_text
from trainyard.printable import encode_json, printable_json
from trainyard.report.comparison.build_comparison import compare_runs
from trainyard.report.comparison.compared_run import ComparedRun


def comparison_suffix(path: Path) -> str:
    """The suffix that selects the format, in lower case. Raises `BadInput` for an unsupported one, before anything is
    read."""
    if path.suffix.lower() not in _TEXTS:
        raise BadInput(
            f"{path}: a comparison of runs has no format for {path.suffix or 'a name without a suffix'}.",
            f"Use one of {', '.join(_TEXTS)}, or write a report on each run.",
        )
    return path.suffix.lower()


def write_comparison(runs: Sequence[ComparedRun], path: Path) -> None:
    """Writes the comparison of each run with the first. Raises `BadInput`, `PlaceUnwritable`."""
    write_text(_TEXTS[comparison_suffix(path)](runs), path)


def _html(runs: Sequence[ComparedRun]) -> str:
    from trainyard.report.comparison.comparison_page import page

    return page(runs)


def _markdown(runs: Sequence[ComparedRun]) -> str:
    from trainyard.report.comparison.comparison_tables import markdown_text

    return markdown_text(compare_runs(runs))


def _csv(runs: Sequence[ComparedRun]) -> str:
    from trainyard.report.comparison.comparison_tables import csv_text

    return csv_text(compare_runs(runs))


def _json(runs: Sequence[ComparedRun]) -> str:
    return printable_json(encode_json(compare_runs(runs)).decode()) + "\n"


_TEXTS: Mapping[str, Callable[[Sequence[ComparedRun]], str]] = {
    ".html": _html, ".md": _markdown, ".csv": _csv, ".json": _json,
}  # fmt: skip
