"""Prints a `View`, the content of a report as plain data, to a terminal: the ledger, the findings, the top kernels.
Imports Rich. Widths are in characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from trainyard import units, words
from trainyard.ledger import Ledger
from trainyard.printable import printable
from trainyard.report.view.next_step import NextStep
from trainyard.report.view.price_text import explain_price
from trainyard.report.view.view import Bar, Cell, Column, KernelRow, KeyFigure, View
from trainyard.report.view.view import Table as Facts

_BAR, _NARROW_BAR = 30, 14
"""Width of the bars in characters, on a wide and on a narrow terminal."""
_WIDE = 120
"""Width of a wide terminal in characters."""
_PROSE = 24
"""Minimum width of a prose column, in characters."""
_FIRST_NAME, _NAME, _LEAST_NAME = 44, 28, 8
"""Width of names in characters: maximum in the first column, maximum in other columns, minimum in any column."""
_KERNEL = 60
"""Maximum width of a kernel's or a module's name, in characters."""
_LONG_COMMAND = 50
"""Width of a command in characters from which it has a line of its own if its purpose does not fit on the line."""
_LONGEST = 2000  # characters of any text: a name in a file may be a megabyte


def print_view(view: View, console: Console, kernels: int = 8) -> None:
    """Prints the whole report with at most `kernels` rows of each table. Names come from files: they are printed as
    text, never as markup."""
    console.print(Group(*_parts(view, kernels, _BAR if console.width >= _WIDE else _NARROW_BAR, console.width)))


def print_parts(ledgers: Sequence[Ledger], console: Console) -> None:
    """Prints the time in ms of each step of each rank by kind of account (category of time). `ledgers`: one for each
    rank and step; others are ignored. Columns that do not fit are left out, the smallest kinds first, and named."""
    parts = [ledger for ledger in ledgers if ledger.scope.reduce == "one" and ledger.scope.ranks]
    if not parts:
        return
    totals = {kind: sum(ledger.by_kind().get(kind, 0) for ledger in parts) for kind in words.KINDS}
    kinds = [kind for kind in words.KINDS if totals[kind]]
    by_size = sorted(kinds, key=lambda kind: -totals[kind])
    steps = [f"{ledger.scope.steps[0]}{' (partial)' if ledger.scope.partial else ''}" for ledger in parts]
    columns = [
        Part("rank", [Text(str(ledger.scope.ranks[0])) for ledger in parts], right=True),
        Part("step", [Text(plain(step)) for step in steps], name=True),
        Part("wall", [Text(f"{ledger.wall_ns / 1e6:,.3f}") for ledger in parts], right=True),
        *(
            Part(
                _HEADS.get(kind, kind),
                [Text(f"{ns / 1e6:,.3f}" if (ns := ledger.by_kind().get(kind)) else "") for ledger in parts],
                drop_order=1 + by_size.index(kind),
                right=True,
            )
            for kind in kinds
        ),
    ]
    shown = fitting(columns, console.width)
    left_out = [part.head for part in columns if part not in shown]
    console.print()
    console.print(Text("each step of each rank, in ms", style="dim"))
    console.print(fitted(shown, console.width))
    if left_out:
        console.print(Text(f"left out at this width: {', '.join(left_out)}; --json has them", style="dim"))


_HEADS = {"launch_gap": "idle", "data_wait": "data wait"}
"""Kind of account -> head of its column, where that is not the kind."""


def print_table(table: Facts, console: Console, top: int | None = None) -> None:
    """Prints one table, as far as its columns fit the terminal: all of its rows, or the first `top`. Names the columns
    left out, except those marked `spare`."""
    console.print(_table(table, len(table.rows) if top is None else top, console.width))
    fitting_heads = {column.head for column in _fitting(table, console.width).columns}
    if left_out_heads := [
        column.head for column in table.columns if column.head not in fitting_heads and not column.spare
    ]:
        names = ", ".join(left_out_heads)
        console.print(Text(plain(f"left out at this width: {names}; --json has all columns"), style="dim"))


def _parts(view: View, max_rows: int, bar_width: int, width: int) -> list[RenderableType]:
    """The content of `--full`, in order. `max_rows`: of each table, half as many for modules; `bar_width`, `width`: in
    characters."""
    parts: list[RenderableType] = [
        Text(plain(sentence(view.title)), style="bold"),
        joined_line((view.subtitle, *view.chips)),
    ]
    parts.extend(Text(plain(warning), style="bold yellow") for warning in view.warnings)
    if view.figures:
        parts.append(figures_line(view.figures))
        parts.extend(Text(plain(figure.line), style="dim") for figure in view.figures if figure.line)
    if view.wall_ns:
        parts.append(Padding(_ledger(view, bar_width, width), (1, 0, 0, 0)))
        parts.append(Padding(phases_line(view), (1, 0, 0, 0)))
    if view.kernels:
        parts.append(Padding(_rows("Top kernels", view.kernels[:max_rows], width), (1, 0, 0, 0)))
    if view.modules:
        parts.append(Padding(_rows("Top modules", view.modules[: max_rows // 2], width), (1, 0, 0, 0)))
    parts.extend(Padding(_table(table, max_rows, width), (1, 0, 0, 0)) for table in view.tables)
    for finding in view.findings:
        line = Text("\n" if finding is view.findings[0] else "")
        line.append("▲ ", style=words.SEVERITIES[finding.severity].colour)
        line.append(plain(f"{sentence(finding.summary)} "))
        line.append(f"{finding.severity.capitalize()}, {100 * finding.confidence:.0f} % sure. ", style="dim")
        price = explain_price(finding)
        line.append(plain(f"{price[:1].upper()}{price[1:]}. "), style="dim")
        if finding.evidence:
            line.append(plain(f"{finding.evidence[:1].upper()}{finding.evidence[1:]}. "), style="dim")
        if finding.remedy:
            line.append(plain(finding.remedy.description))
        parts.append(line)
    parts.extend(Text(f"note: {plain(note)}", style="dim") for note in view.notes)
    return parts


def sentence(text: str) -> str:
    """The text with a full stop at its end."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def joined_line(texts: Sequence[str]) -> RenderableType:
    """A line of texts separated by dots, wrapped between texts only."""
    return _Flow([Text(plain(text), style="dim") for text in texts if text], Text(" · ", style="dim"))


def figures_line(figures: Sequence[KeyFigure]) -> RenderableType:
    """Key figures side by side, wrapped between figures only."""
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


def next_steps(steps: Iterable[NextStep], width: int = 80) -> list[RenderableType]:
    """Where to look next: a line for each step; a command that is too long for its purpose to follow has a line of its
    own, unbroken, so that it can be copied. Nothing without steps."""
    lines: list[RenderableType] = []
    for step in steps:
        command, purpose = plain(step.command), plain(step.purpose)
        if 2 + len(command) + 2 + len(purpose) <= width or len(command) < _LONG_COMMAND:
            lines.append(Padding(Text(f"{command}: {purpose}", style="dim"), (0, 0, 0, 2)))
        else:
            lines.append(Padding(Text(f"{purpose}:", style="dim"), (0, 0, 0, 2)))
            lines.append(Text(f"    {command}", style="dim", no_wrap=True, overflow="ignore"))
    return ["", Text("Where to look next", style="dim"), *lines] if lines else []


class _Flow:
    """Texts side by side, wrapped between texts if each fits a line."""

    def __init__(self, texts: Sequence[Text], between: Text) -> None:
        self.texts, self.between = texts, between

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields lines of texts with `between` before each, broken where a line gets too wide."""
        line = Text()
        for text in self.texts:
            if line and line.cell_len + self.between.cell_len + text.cell_len > options.max_width:
                yield line
                line = Text()
            line = Text.assemble(line, self.between, text) if line else text
        yield line


def _ledger(view: View, bar_width: int, width: int) -> Table:
    """The bars of the waterfall as rows: account, ms, share, bar of at most `bar_width` characters, evidence. On narrow
    terminals the bars are left out first, then the evidence."""
    total = [bar.role == "total" for bar in view.bars]
    bold = ["bold" if is_total else "" for is_total in total]
    evidence = [
        f"{units.show_ns(bar.ns)} ns exactly" if bar.role == "total" else plain(bar.evidence) for bar in view.bars
    ]
    evidence_texts = [Text(text, style="dim", no_wrap=True, overflow="ellipsis") for text in evidence]
    exact_width = max((len(text) for text, is_total in zip(evidence, total) if is_total), default=_LEAST_NAME)
    labels = [Text(plain(bar.label), style=style) for bar, style in zip(view.bars, bold)]
    return fitted(
        [
            Part("account", labels, name=True, min_width=_FIRST_NAME),
            Part("ms", [Text(f"{bar.ns / 1e6:,.3f}", style=style) for bar, style in zip(view.bars, bold)], right=True),
            Part("share", [Text(units.show_share(bar.ns, view.wall_ns)) for bar in view.bars], right=True),
            Part("", [_drawn(bar, view.wall_ns, bar_width) for bar in view.bars], drop_order=2, min_width=bar_width),
            Part("evidence", evidence_texts, drop_order=1, min_width=exact_width),
        ],
        width,
    )


class Part(NamedTuple):
    """A column of a table that must fit the terminal. `drop_order`: the highest number is left out first, 0 never.
    `name`: cells are shortened in the middle. `right`: cells are aligned to the right. `min_width`: in characters, if
    the column may be cut."""

    head: str
    cells: Sequence[Text]
    drop_order: int = 0
    name: bool = False
    right: bool = False
    min_width: int | None = None

    @property
    def needs(self) -> int:
        widest = max(cell.cell_len for cell in (Text(self.head), *self.cells))
        return min(widest, self.min_width or (_LEAST_NAME if self.name else widest))


def fitting(parts: Sequence[Part], width: int) -> list[Part]:
    """The columns that fit into `width` characters; those with the highest `drop_order` are left out first."""
    kept = [part for part in parts if part.cells]
    while sum(part.needs + 2 for part in kept) - 2 > width and max(part.drop_order for part in kept):
        kept.remove(max(kept, key=lambda part: part.drop_order))
    return kept


def fitted(parts: Sequence[Part], width: int, max_name_width: int | None = None) -> Table:
    """A table of the columns that fit into `width` characters. Numbers are never cut. `max_name_width`: of columns of
    names."""
    kept = fitting(parts, width)
    fits = sum(part.needs + 2 for part in kept) - 2 <= width
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for part in kept:
        table.add_column(
            Text(part.head, no_wrap=True),
            justify="right" if part.right else "left",
            no_wrap=not (part.name or part.min_width),
            min_width=part.needs if fits or not part.name else min(part.needs, _LEAST_NAME),
            max_width=max_name_width if part.name else None,
        )
    for row in zip(*(part.cells for part in kept), strict=True):
        table.add_row(*(Name(cell.plain, cell.style) if part.name else cell for part, cell in zip(kept, row)))
    return table


def _drawn(bar: Bar, wall_ns: int, width: int) -> Text:
    """A floating bar on a scale of `width` characters for `wall_ns`, of half-character precision, at least half a
    character wide."""
    if not wall_ns:
        return Text("")
    begin_half = round(2 * width * bar.start_ns / wall_ns)
    end_half = max(begin_half + 1, round(2 * width * (bar.start_ns + bar.ns) / wall_ns))
    begin_half, end_half = min(begin_half, 2 * width - 1), min(max(end_half, begin_half + 1), 2 * width)
    text = " " * (begin_half // 2) + ("▐" if begin_half % 2 else "")
    text += "█" * (end_half // 2 - len(text)) + ("▌" if end_half % 2 and end_half // 2 >= len(text) else "")
    return Text(text, style=bar.colour if bar.role != "total" else "")


def phases_line(view: View) -> Text:
    """A line with the time of each phase of the mean step, summed over its accounts."""
    ns_by_phase: dict[str, int] = {}
    for _, _, phase, ns, _, _ in view.table:
        ns_by_phase[phase] = ns_by_phase.get(phase, 0) + ns
    shown = " · ".join(
        f"{phase} {units.show_time(ns_by_phase[phase])}" for phase in words.PHASES if ns_by_phase.get(phase)
    )
    return Text(f"by phase: {shown}", style="dim")


def _fitting(table: Facts, width: int) -> Facts:
    """The table without the columns that do not fit into `width` characters: `spare` columns are dropped first, from
    the last one on, then others except ids and the first two columns."""
    while _needed(table) > width and (
        droppable := [at for at, column in enumerate(table.columns) if column.spare]
        or [at for at, column in enumerate(table.columns) if at > 1 and not column.id]
    ):
        kept = [at for at in range(len(table.columns)) if at != droppable[-1]]
        rows = tuple(tuple(row[at] for at in kept) for row in table.rows)
        table = replace(table, columns=tuple(table.columns[at] for at in kept), rows=rows)
    return table


def _needed(table: Facts, wrapped: bool = True) -> int:
    """Width of the table in characters, including gaps; `wrapped`: with heads of several lines."""
    widths = [_needs(column, _widest(table, at, wrapped)) for at, column in enumerate(table.columns)]
    return sum(widths) + 2 * (len(widths) - 1)


def _widest(table: Facts, at: int, wrapped: bool) -> int:
    """Width of the widest cell of a column, and of its head or, if that is `wrapped`, of its longest word. `at`: the
    index of the column."""
    column = table.columns[at]
    head = plain(column.head if at else table.title)
    return max(
        map(cell_len, [*(head.split() if wrapped else [head]), *(_cell(row[at], column) for row in table.rows), ""])
    )


def _needs(column: Column, widest: int) -> int:
    """Minimum width of the column in characters: names are cut before a column is left out."""
    if column.id or column.digits is not None:
        return widest
    return _PROSE if column.prose else min(widest, _LEAST_NAME)


def _most(column: Column, at: int) -> int:
    """Maximum width of a cell in characters. `at`: index of the column."""
    if column.id or column.digits is not None:
        return _LONGEST
    return _FIRST_NAME if at == 0 else _NAME


def _table(table: Facts, max_rows: int, width: int) -> Group:
    """The first `max_rows` rows, fitted to `width` characters; on a narrow terminal heads wrap and text columns shrink.
    A single further row is printed in place of the note about it."""
    max_rows += len(table.rows) == max_rows + 1
    table = _fitting(table, width)
    wrapped = _needed(table, wrapped=False) > width
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(table.columns):
        head = Text(plain(column.head if index else table.title))
        if column.prose:
            drawn.add_column(head, style="dim", min_width=_PROSE)
        elif column.id or column.digits is not None:
            head.no_wrap = False  # the head wraps, the cells do not
            justify = "left" if column.id else "right"
            drawn.add_column(head, justify=justify, no_wrap=True, width=_widest(table, index, wrapped))
        else:
            drawn.add_column(head, max_width=_most(column, index), style="dim" if index else "")
    for row in table.rows[:max_rows]:
        drawn.add_row(*(_drawn_cell(cell, column) for cell, column in zip(row, table.columns)))
    more = [f"{len(table.rows) - max_rows:,} more rows: --full"] if len(table.rows) > max_rows else []
    return Group(drawn, *(Text(plain(note), style="dim") for note in (*table.notes, *more)))


def _drawn_cell(cell: Cell, column: Column) -> RenderableType:
    """A cell for Rich; names are shortened in the middle to fit, other cells are not."""
    text = _cell(cell, column)
    return Text(text) if column.prose or column.id or column.digits is not None else Name(text)


class Name:
    """A name on one line, shortened in the middle to fit: its beginning and its end identify it."""

    def __init__(self, text: str, style: str | Style = "") -> None:
        self.text, self.style = text, style

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = cell_len(self.text)
        return Measurement(min(width, _LEAST_NAME), width).clamp(max_width=options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(shortened(self.text, options.max_width), self.style, no_wrap=True, overflow="crop")


def shortened(text: str, width: int) -> str:
    """The text within `width` terminal cells, with an ellipsis in the middle if it is longer."""
    if cell_len(text) <= width:
        return text
    head, tail = width // 2, max(0, width - width // 2 - 1)
    return set_cell_size(text, head).rstrip(" ") + "…" + set_cell_size(text[::-1], tail)[::-1].lstrip(" ")


def _cell(cell: Cell, column: Column) -> str:
    if isinstance(cell, str) or cell is None:
        return plain(cell or "")
    return f"{cell:,.{column.digits}f}"


def _rows(title: str, rows: Sequence[KernelRow], width: int) -> Table:
    """The table of kernels or modules with ms a step, share and calls, fitted to `width` characters."""
    return fitted(
        [
            Part(title, [Text(plain(row.name)) for row in rows], name=True),
            Part("account", [Text(plain(row.account), style="dim") for row in rows], drop_order=2),
            Part("phase", [Text(row.phase, style="dim") for row in rows], drop_order=3),
            Part("ms per step", [Text(f"{row.ns / 1e6:,.3f}") for row in rows], right=True),
            Part("share", [Text(f"{100 * row.share:.1f} %") for row in rows], right=True),
            Part("calls", [Text(f"{row.count:,}") for row in rows], drop_order=1, right=True),
        ],
        width,
        max_name_width=_KERNEL,
    )


def plain(text: str) -> str:
    """The text truncated and without control characters: a name from a file must not control the terminal."""
    return printable(text[:_LONGEST])
