"""Draws a View on a terminal: the ledger, what was found, the top kernels. Rich is loaded here."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trainyard import units, words
from trainyard.ledger import Ledger
from trainyard.printable import printable
from trainyard.report.view import Bar, Cell, Column, Figure, Row, View
from trainyard.report.view import Table as Facts

_BAR, _NARROW_BAR, _WIDE = 30, 14, 120
_PARTS = 12
_PROSE = 24
"""Characters that a column of text keeps, however narrow the terminal."""
_FIRST_NAME, _NAME, _LEAST_NAME = 44, 28, 8
"""Characters of a name in a table's first column and in others at most, and in any however narrow the terminal."""
_LONGEST = 2000  # characters of a text: a name may be a megabyte


def print_view(view: View, console: Console, kernels: int = 8) -> None:
    """Prints the whole report. Names come from files: they are printed as text, never as markup."""
    console.print(Group(*_parts(view, kernels, _BAR if console.width >= _WIDE else _NARROW_BAR)))


def print_parts(ledgers: Sequence[Ledger], console: Console, everything: bool = False) -> None:
    """Every rank's every step by kind of account, ms; the first dozen unless `everything`."""
    parts = [ledger for ledger in ledgers if ledger.scope.reduce == "one" and ledger.scope.ranks]
    kinds = [kind for kind in words.KINDS if any(kind in ledger.by_kind() for ledger in parts)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("rank", justify="right", min_width=4)
    table.add_column("step", min_width=4)
    for head in ("wall ns", *(words.KINDS[kind].label.lower() for kind in kinds)):
        table.add_column(head, justify="right", min_width=9)
    shown = parts if everything else parts[:_PARTS]
    for ledger in shown:
        by_kind = ledger.by_kind()
        table.add_row(
            str(ledger.scope.ranks[0]),
            Text(plain(ledger.scope.steps[0]) + (" (partial)" if ledger.scope.partial else "")),
            units.show_ns(ledger.wall_ns),
            *(f"{by_kind[kind] / 1e6:,.3f}" if kind in by_kind else "" for kind in kinds),
        )
    console.print()
    console.print(table)
    if len(shown) < len(parts):
        console.print(
            Text(f"{len(parts) - len(shown)} more: --top all lists them, --json has every entry.", style="dim")
        )


def print_table(table: Facts, console: Console, top: int | None = None) -> None:
    """One table by itself; all of its rows unless `top` says how many."""
    console.print(_table(_fitting(table, console.width), len(table.rows) if top is None else top))


def _parts(view: View, kernels: int, bar: int) -> list[RenderableType]:
    parts: list[RenderableType] = [
        Text(plain(view.title), style="bold"),
        _Flow([Text(plain(chip), style="dim") for chip in (view.subtitle, *view.chips)], Text(" · ", style="dim")),
    ]
    if view.figures:
        parts.append(figures_line(view.figures))
        parts.extend(Text(plain(figure.line), style="dim") for figure in view.figures if figure.line)
    parts.extend(Text(plain(warning), style="bold yellow") for warning in view.warnings)
    if view.wall_ns:
        parts.append(Padding(_ledger(view, bar), (1, 0, 0, 0)))
        parts.append(_phases(view))
    if view.kernels:
        parts.append(Padding(_rows("Top kernels", view.kernels[:kernels]), (1, 0, 0, 0)))
    if view.modules:
        parts.append(Padding(_rows("Top modules", view.modules[: kernels // 2]), (1, 0, 0, 0)))
    parts.extend(Padding(_table(table, kernels), (1, 0, 0, 0)) for table in view.tables)
    for finding in view.findings:
        line = Text("\n" if finding is view.findings[0] else "")
        line.append("▲ ", style=words.SEVERITIES[finding.severity].colour)
        line.append(plain(f"{finding.says}. "))
        line.append(f"{finding.severity.capitalize()}, {100 * finding.sure:.0f} % sure. ", style="dim")
        if finding.evidence:
            line.append(plain(f"{finding.evidence[:1].upper()}{finding.evidence[1:]}. "), style="dim")
        if finding.remedy:
            line.append(plain(finding.remedy.says))
        parts.append(line)
    parts.extend(Text(f"note: {plain(note)}", style="dim") for note in view.notes)
    return parts


def figures_line(figures: Sequence[Figure]) -> RenderableType:
    """One after the other; a line ends between two of them."""
    return _Flow(
        [
            Text.assemble(
                (f"{figure.value} {figure.unit}".strip(), "bold"),
                (f" {figure.label}" + (f" ({figure.change})" if figure.change else ""), "dim"),
            )
            for figure in figures
        ],
        Text("   "),
    )


class _Flow:
    """Texts in lines, none broken that fits into one."""

    def __init__(self, texts: Sequence[Text], between: Text) -> None:
        self.texts, self.between = texts, between

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text()
        for text in self.texts:
            if line and line.cell_len + self.between.cell_len + text.cell_len > options.max_width:
                yield line
                line = Text()
            line = Text.assemble(line, self.between, text) if line else text
        yield line


def _ledger(view: View, width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("account", no_wrap=True)
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, width=width)
    # The one column that gives way on a narrow terminal; its cells are cut, not wrapped.
    table.add_column("evidence", style="dim")
    for bar in view.bars:
        total = bar.role == "total"
        table.add_row(
            Text(plain(bar.label), style="bold" if total else ""),
            Text(f"{bar.ns / 1e6:,.3f}", style="bold" if total else ""),
            units.show_share(bar.ns, view.wall_ns),
            _drawn(bar, view.wall_ns, width),
            Text(
                f"{units.show_ns(bar.ns)} ns exactly" if total else plain(bar.evidence),
                no_wrap=True,
                overflow="ellipsis",
            ),
        )
    return table


def _drawn(bar: Bar, wall: int, width: int) -> Text:
    """A floating bar of half-cell precision; a cost that is there is never invisible."""
    if not wall:
        return Text("")
    begin = round(2 * width * bar.start_ns / wall)
    end = max(begin + 1, round(2 * width * (bar.start_ns + bar.ns) / wall))
    begin, end = min(begin, 2 * width - 1), min(max(end, begin + 1), 2 * width)
    text = " " * (begin // 2) + ("▐" if begin % 2 else "")
    text += "█" * (end // 2 - len(text)) + ("▌" if end % 2 and end // 2 >= len(text) else "")
    return Text(text, style=bar.colour if bar.role != "total" else "")


def _phases(view: View) -> Text:
    totals: dict[str, int] = {}
    for _, _, phase, ns, _, _ in view.table:
        totals[phase] = totals.get(phase, 0) + ns
    shown = " · ".join(f"{phase} {units.show_time(totals[phase])}" for phase in words.PHASES if totals.get(phase))
    return Text(f"\nby phase: {shown}", style="dim")


def _fitting(table: Facts, width: int) -> Facts:
    """Without the last columns that can be spared, as many as there is no room for."""
    while _needed(table) > width and (spare := [at for at, one in enumerate(table.columns) if one.spare]):
        left = [at for at in range(len(table.columns)) if at != spare[-1]]
        rows = tuple(tuple(row[at] for at in left) for row in table.rows)
        table = replace(table, columns=tuple(table.columns[at] for at in left), rows=rows)
    return table


def _needed(table: Facts) -> int:
    """Characters, with the gaps."""
    cells = [[_cell(row[at], column) for row in table.rows] for at, column in enumerate(table.columns)]
    widths = [
        _PROSE if column.prose else min(max(map(cell_len, [column.head, *some])), _most(column, at))
        for at, (column, some) in enumerate(zip(table.columns, cells, strict=True))
    ]
    return sum(widths) + 2 * (len(widths) - 1)


def _most(column: Column, at: int) -> int:
    """Characters that a cell of the column takes at most. `at`: its place."""
    if column.id or column.digits is not None:
        return _LONGEST
    return _FIRST_NAME if at == 0 else _NAME


def _table(table: Facts, most: int) -> Group:
    """The first rows; the columns of text give way on a narrow terminal. One row more costs no more than saying so."""
    most += len(table.rows) == most + 1
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, column in enumerate(table.columns):
        head = Text(plain(column.head if place else table.title))
        if column.prose:
            drawn.add_column(head, style="dim", min_width=_PROSE)
        elif column.id:
            drawn.add_column(head, no_wrap=True, min_width=max(len(str(row[place])) for row in table.rows))
        elif column.digits is None:
            drawn.add_column(head, max_width=_most(column, place), style="dim" if place else "")
        else:
            drawn.add_column(head, justify="right", no_wrap=True)
    for row in table.rows[:most]:
        drawn.add_row(*(_drawn_cell(cell, column) for cell, column in zip(row, table.columns)))
    left = [f"{len(table.rows) - most:,} more on the page."] if len(table.rows) > most else []
    return Group(drawn, *(Text(plain(note), style="dim") for note in (*table.notes, *left)))


def _drawn_cell(cell: Cell, column: Column) -> RenderableType:
    text = _cell(cell, column)
    return Text(text) if column.prose or column.id or column.digits is not None else Name(text)


class Name:
    """A name on one line, cut in its middle if it does not fit: its beginning and its end identify it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = cell_len(self.text)
        return Measurement(min(width, _LEAST_NAME), width).clamp(max_width=options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(shortened(self.text, options.max_width), no_wrap=True, overflow="crop")


def shortened(text: str, width: int) -> str:
    """The text within so many cells of a terminal: what is too long loses its middle to an ellipsis."""
    if cell_len(text) <= width:
        return text
    head, tail = width // 2, max(0, width - width // 2 - 1)
    return set_cell_size(text, head).rstrip(" ") + "…" + set_cell_size(text[::-1], tail)[::-1].lstrip(" ")


def _cell(cell: Cell, column: Column) -> str:
    if isinstance(cell, str) or cell is None:
        return plain(cell or "")
    return f"{cell:,.{column.digits}f}"


def _rows(title: str, rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(title, max_width=60)
    table.add_column("account", style="dim", no_wrap=True)
    table.add_column("phase", style="dim", no_wrap=True)
    table.add_column("ms a step", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("calls", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            Text(plain(row.name), no_wrap=True, overflow="ellipsis"),
            Text(plain(row.account)),
            row.phase,
            f"{row.ns / 1e6:,.3f}",
            f"{100 * row.share:.1f} %",
            f"{row.count:,}",
        )
    return table


def plain(text: str) -> str:
    """On one line, not too long, and printable: a name from a file must not steer the terminal."""
    return printable(text[:_LONGEST])
