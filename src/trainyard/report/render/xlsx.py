"""A report as an Excel workbook: a sheet each for the ledger, ranks, steps, findings, kernels, ops, collectives, notes.

Cell types are explicit, never guessed: text is written as text, so that a name cannot become a formula or a link. Times
are integer ns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainyard import words
from trainyard.errors import MissingLibrary
from trainyard.formats.atomic import replacing
from trainyard.ledger import Account, Ledger
from trainyard.printable import printable
from trainyard.report.view.account_times import per_rank
from trainyard.report.view.view import View
from trainyard.trace.align.bandwidth import Bandwidth
from trainyard.trace.align.traffic import PairTraffic
from trainyard.trace.flops.roofline import OpRow, op_roofline
from trainyard.trace.measured_trace import MeasuredTrace

_MOST_ROWS, _MOST_CHARACTERS = 1_048_576, 32_767
"""Maximum rows of a sheet and characters of a cell."""
_LARGEST_EXACT = 2**53
"""Largest exact integer of a spreadsheet."""
_TEXT_WIDTH, _NUMBER_WIDTH = 48, 16
"""Width of columns in characters."""
_COUNT, _SHARE, _RATE = "#,##0", "0.0%", "0.00E+00"
_FORMATS = {"share": _SHARE, "confidence": _SHARE, "flops_rate": _RATE, "bytes_rate": _RATE, "intensity": "#,##0.0"}
"""Head of a column -> number format; counts for others."""
_TEXT_HEADS = ("account", "label", "name", "summary", "evidence", "remedy", "op", "shape", "note")
"""Heads of the columns that hold text."""


class Sheet(NamedTuple):
    """A sheet with a column per head. Rows are plain values; None is unknown."""

    name: str
    heads: tuple[str, ...]
    rows: Iterable[Sequence[Any]]


def write(view: View, ledgers: Sequence[Ledger], measured: MeasuredTrace | None, path: Path) -> None:
    """Writes the workbook. `ledgers`: one for each rank and step, the mean last; `measured`: the traces, if available.
    Raises `MissingLibrary` without XlsxWriter, `PlaceUnwritable`."""
    try:
        import xlsxwriter
        from xlsxwriter.exceptions import FileCreateError
    except ImportError as error:
        raise MissingLibrary("An .xlsx needs XlsxWriter.", "Install it: pip install 'trainyard[xlsx]'.") from error
    with replacing(path) as partial:
        book = xlsxwriter.Workbook(str(partial), {"constant_memory": True})
        messages: list[str] = []
        for sheet in sheets(view, ledgers, measured):
            _add(book, sheet, messages)
        _add(book, Sheet("Notes", ("note",), [(note,) for note in _notes(view, messages)]), messages)
        try:
            book.close()
        except FileCreateError as error:  # it wraps the OSError, which `replacing` translates
            raise error.args[0] from error


def sheets(view: View, ledgers: Sequence[Ledger], measured: MeasuredTrace | None) -> Iterator[Sheet]:
    """The sheets of the workbook except its notes. `ledgers`: one for each rank and step, the mean last."""
    yield _ledger(ledgers[-1]) if ledgers else Sheet("Ledger", ("account",), [])
    ranks = per_rank(ledgers)
    accounts = sorted({account for ledger in ranks.values() for account in ledger.by_account()}, key=_precedence)
    yield Sheet(
        "Ranks",
        ("rank", "wall_ns", *(f"{account} ns" for account in accounts)),
        [
            (rank, ledger.wall_ns, *(ledger.by_account().get(account, 0) for account in accounts))
            for rank, ledger in ranks.items()
        ],
    )
    yield Sheet(
        "Steps",
        ("rank", "step", "partial", "wall_ns", *(f"{kind} ns" for kind in words.KINDS)),
        (
            (ledger.scope.ranks[0], ledger.scope.steps[0], ledger.scope.partial, ledger.wall_ns,
             *(ledger.by_kind().get(kind, 0) for kind in words.KINDS))
            for ledger in ledgers
            if ledger.scope.reduce == "one" and ledger.scope.ranks
        ),
    )  # fmt: skip
    yield Sheet(
        "Findings",
        (
            "severity",
            "rule",
            "summary",
            "account",
            "cost_ns",
            "priced",
            "low_ns",
            "high_ns",
            "booked_ns",
            "evidence",
            "remedy",
            "confidence",
            "change",
        ),
        [
            (
                finding.severity,
                finding.rule,
                finding.summary,
                str(finding.account),
                finding.cost_ns,
                finding.priced,
                *(finding.interval_ns or (None, None)),
                finding.booked_ns,
                finding.evidence,
                finding.remedy.description if finding.remedy else None,
                finding.confidence,
                finding.change.text if finding.change else None,
            )
            for finding in view.findings
        ],
    )
    yield Sheet(
        "Kernels",
        ("name", "account", "phase", "ns", "count", "share"),
        [(row.name, row.account, row.phase, row.ns, row.count, row.share) for row in view.kernels],
    )
    if measured is not None:
        yield Sheet("Ops", OpRow._fields, op_roofline(measured).rows)
        yield Sheet("Collectives", Bandwidth._fields, measured.bandwidths)
        yield Sheet("Traffic", PairTraffic._fields, measured.traffic)


def _ledger(mean: Ledger) -> Sheet:
    """The sheet of the mean step's entries, one row for each account and phase, then the whole step.

    `ns`: exposed time; `share`: `ns` as a fraction of the step; `hidden_ns`: time overlapped by work of other accounts,
    which is not part of the sum; `how`: whether the time was seen, inferred or modelled.
    """
    rows = [
        (
            str(entry.account),
            entry.account.label,
            entry.phase,
            entry.ns,
            entry.ns / mean.wall_ns if mean.wall_ns else None,
            entry.hidden_ns,
            entry.count,
            entry.flops,
            entry.bytes,
            entry.how,
        )
        for entry in mean.sorted_entries()
    ]
    heads = ("account", "label", "phase", "ns", "share", "hidden_ns", "count", "flops", "bytes", "how")
    return Sheet("Ledger", heads, [*rows, ("step", "the whole step", None, mean.wall_ns, 1.0, *[None] * 5)])


def _precedence(account: Account) -> tuple[int, int, str]:
    """Sort key of accounts, in the order in which they own an instant."""
    return account.rank


def _notes(view: View, cut: Sequence[str]) -> list[str]:
    """The lines of the sheet of notes; `cut`: messages about data that did not fit."""
    titled = [view.title, view.subtitle, *view.chips, *view.warnings, *view.notes, *view.limits, view.generated]
    return [note for note in (*titled, *cut) if note]


def _add(book: Any, sheet: Sheet, messages: list[str]) -> None:
    """Writes a sheet, and appends a message to `messages` if data did not fit."""
    page = book.add_worksheet(sheet.name)
    page.freeze_panes(1, 0)
    bold = book.add_format({"bold": True})
    formats = [book.add_format({"num_format": _FORMATS.get(head, _COUNT)}) for head in sheet.heads]
    for column, head in enumerate(sheet.heads):
        page.set_column(column, column, _TEXT_WIDTH if head in _TEXT_HEADS else _NUMBER_WIDTH)
        page.write_string(0, column, head, bold)
    dropped_rows, rounded = 0, False
    for number, row in enumerate(sheet.rows, 1):
        if number >= _MOST_ROWS:
            dropped_rows += 1
            continue
        for column, value in enumerate(row):
            rounded |= isinstance(value, int) and abs(value) > _LARGEST_EXACT
            _cell(page, number, column, value, formats[column])
    if dropped_rows:
        messages.append(f"Sheet {sheet.name}: {dropped_rows:,} more rows than a sheet holds were left out.")
    if rounded:
        messages.append(f"Sheet {sheet.name}: integers above 2^53 are rounded to 15 digits, as spreadsheets do.")


def _cell(page: Any, row: int, column: int, value: Any, number_format: Any) -> None:
    """Writes a value in its own type: boolean, number, or text shortened to the most that a cell holds; skips None."""
    if isinstance(value, bool):
        page.write_boolean(row, column, value)
    elif isinstance(value, int | float):
        page.write_number(row, column, value, number_format)
    elif value is not None:
        page.write_string(row, column, printable(str(value), keep="\t\r\n")[:_MOST_CHARACTERS])
