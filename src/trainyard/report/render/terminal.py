"""Prints a `View`, the content of a report as plain data, to a terminal: the ledger, the findings, the top kernels.
Imports Rich. Widths are in characters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from trainyard import units, words
from trainyard.ledger import Ledger
from trainyard.report.render.fitted_table import Part, fitted, fitting, plain
from trainyard.report.render.rank_heat import rank_heat
from trainyard.report.view.next_step import NextStep
from trainyard.report.view.price_text import explain_price
from trainyard.report.view.view import Bar, Cell, Column, Heat, KernelRow, KeyFigure, View
from trainyard.report.view.view import Table as Facts

_BAR, _NARROW_BAR = 30, 14
"""Width of the bars in characters, on a wide and on a narrow terminal."""
_WIDE = 120
"""Width of a wide terminal in characters."""
_FIRST_NAME, _NAME = 44, 28
"""Maximum width of names in characters: in the first column, in other columns."""
_PROSE = 24
"""Minimum width of the column of evidence, in characters."""
_LEAST_KERNEL, _KERNEL = 40, 60
"""Width of a kernel's or a module's name in characters: minimum before a column is left out, and maximum."""
_LONG_COMMAND = 50
"""Width of a command in characters from which it has a line of its own if its purpose does not fit on the line."""


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
    console.print()
    console.print(Text("each step of each rank, in ms", style="dim"))
    console.print(fitted(columns, console.width))


_HEADS = {"launch_gap": "idle", "data_wait": "data wait"}
"""Kind of account -> head of its column, where that is not the kind."""


def print_table(table: Facts, console: Console, top: int | None = None) -> None:
    """Prints one table: all of its rows, or the first `top`. A line names the columns that do not fit the terminal."""
    console.print(_table(table, len(table.rows) if top is None else top, console.width))


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
    if view.heat is not None:
        parts.append(Padding(_heat_map(view.heat, view.wall_ns, width), (1, 0, 0, 0)))
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
    """Where to look next: a line for each step. A command that is too long for its purpose to follow has lines of its
    own, continued with backslashes if it does not fit one of `width` characters, so that it can be copied. Nothing
    without steps."""
    lines: list[RenderableType] = []
    for step in steps:
        command, purpose = plain(step.command), plain(step.purpose)
        if 2 + len(command) + 2 + len(purpose) <= width or len(command) < _LONG_COMMAND:
            lines.append(Padding(Text(f"{command}: {purpose}", style="dim"), (0, 0, 0, 2)))
        else:
            lines.append(Padding(Text(f"{purpose}:", style="dim"), (0, 0, 0, 2)))
            lines.extend(Text(line, style="dim", overflow="fold") for line in continued_command(command, width))
    return ["", Text("Where to look next", style="dim"), *lines] if lines else []


def continued_command(command: str, width: int) -> list[str]:
    """The lines of a shell command, indented, each but the last with a backslash at its end; a word that is longer than
    a line is not broken."""
    lines = ["   "]
    for word in _WORDS.findall(command):
        if len(lines[-1]) + len(word) + 3 > width and lines[-1].strip():
            lines[-1] += " \\"
            lines.append("     ")
        lines[-1] += f" {word}"
    return lines


_WORDS = re.compile(r"(?:'[^']*'|\"[^\"]*\"|\S)+")
"""Words of a shell command with their quotes."""


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


def _ledger(view: View, bar_width: int, width: int) -> RenderableType:
    """The bars of the waterfall as rows: account, ms, share, bar of at most `bar_width` characters, evidence. On narrow
    terminals the bars are left out first, then the evidence."""
    total = [bar.role == "total" for bar in view.bars]
    bold = ["bold" if is_total else "" for is_total in total]
    evidence = [
        f"{units.show_ns(bar.ns)} ns exactly" if bar.role == "total" else plain(bar.evidence) for bar in view.bars
    ]
    exact_width = max((len(text) for text, is_total in zip(evidence, total) if is_total), default=0)
    labels = [Text(plain(bar.label), style=style) for bar, style in zip(view.bars, bold)]
    return fitted(
        [
            Part("account", labels, name=True, min_width=_FIRST_NAME),
            Part("ms", [Text(f"{bar.ns / 1e6:,.3f}", style=style) for bar, style in zip(view.bars, bold)], right=True),
            Part("share", [Text(units.show_share(bar.ns, view.wall_ns)) for bar in view.bars], right=True),
            Part("", [_drawn(bar, view.wall_ns, bar_width) for bar in view.bars], drop_order=2),
            Part(
                "evidence",
                [Text(text, style="dim") for text in evidence],
                drop_order=1,
                prose=True,
                min_width=max(_PROSE, exact_width),
            ),
        ],
        width,
    )


def _drawn(bar: Bar, wall_ns: int, width: int) -> Text:
    """The floating bar of a row of the waterfall."""
    return floating_bar(bar.start_ns, bar.ns, wall_ns, width, bar.colour if bar.role != "total" else "")


def floating_bar(start_ns: int, ns: int, wall_ns: int, width: int, style: str) -> Text:
    """A floating bar on a scale of `width` characters for `wall_ns`, of half-character precision, at least half a
    character wide."""
    if not wall_ns:
        return Text("")
    begin_half = round(2 * width * start_ns / wall_ns)
    end_half = max(begin_half + 1, round(2 * width * (start_ns + ns) / wall_ns))
    begin_half, end_half = min(begin_half, 2 * width - 1), min(max(end_half, begin_half + 1), 2 * width)
    text = " " * (begin_half // 2) + ("▐" if begin_half % 2 else "")
    text += "█" * (end_half // 2 - len(text)) + ("▌" if end_half % 2 and end_half // 2 >= len(text) else "")
    return Text(text, style=style)


def _heat_map(heat: Heat, wall_ns: int, width: int) -> RenderableType:
    """The heat map of accounts by rank, as wide as the terminal allows, with its legend."""
    labels = [Text(plain(label)) for label in heat.labels]
    map_width = max(1, width - min(_FIRST_NAME, max((label.cell_len for label in labels), default=0)) - 2)
    drawn = rank_heat(heat, wall_ns, map_width)
    parts = [
        Part("Where ranks differ", labels, name=True, max_width=_FIRST_NAME),
        Part(drawn.title, [drawn.cells[account] for account in heat.accounts]),
    ]
    return Group(fitted(parts, width), Text(drawn.legend, style="dim"))


def phases_line(view: View) -> Text:
    """A line with the time of each phase of the mean step, summed over its accounts."""
    ns_by_phase: dict[str, int] = {}
    for _, _, phase, ns, _, _ in view.table:
        ns_by_phase[phase] = ns_by_phase.get(phase, 0) + ns
    shown = " · ".join(
        f"{phase} {units.show_time(ns_by_phase[phase])}" for phase in words.PHASES if ns_by_phase.get(phase)
    )
    return Text(f"by phase: {shown}", style="dim")


def _table(table: Facts, max_rows: int, width: int) -> Group:
    """The first `max_rows` rows, fitted to `width` characters, then notes on the table and on the columns printed. A
    single further row is printed in place of the note about it."""
    max_rows += len(table.rows) == max_rows + 1
    parts = _parts_of(table, max_rows)
    shown = fitting(parts, width) if table.rows else parts
    column_notes = [
        column.note for column, part in zip(table.columns, parts) if column.note and any(part is kept for kept in shown)
    ]
    more = [f"{len(table.rows) - max_rows:,} more rows: --full"] if len(table.rows) > max_rows else []
    notes = (*table.notes, *column_notes, *more)
    return Group(fitted(parts, width), *(Text(plain(note), style="dim") for note in notes))


def _parts_of(table: Facts, max_rows: int) -> list[Part]:
    """The columns of a table for `fitted`, with their first `max_rows` cells. Its title heads the first."""
    drop_orders = _drop_orders(table)
    parts: list[Part] = []
    for index, column in enumerate(table.columns):
        is_name = not (column.prose or column.id or column.digits is not None)
        style = "dim" if column.prose or (index and is_name) else ""
        parts.append(
            Part(
                plain(column.title if index else table.title),
                [Text(_cell(row[index], column), style=style) for row in table.rows[:max_rows]],
                drop_order=drop_orders[index],
                name=is_name,
                right=column.digits is not None,
                max_width=_NAME if is_name and index else _FIRST_NAME,
                prose=column.prose,
            )
        )
    return parts


def _drop_orders(table: Facts) -> list[int]:
    """For each column, the order in which it is left out, the highest first: empty columns, then those marked
    `optional`, then the others, each group from the last on. 0, never: the first column, ids that are not `optional`
    and, without such an id, the first other column of numbers, or the second of a table of texts."""
    columns = table.columns
    others = [at for at, column in enumerate(columns) if at and not column.optional]
    ids = [at for at in others if columns[at].id]
    numbers = [at for at in others if columns[at].digits is not None]
    lasting = {0, *(ids or numbers[:1] or others[:1])}
    orders: list[int] = []
    for index, column in enumerate(columns):
        if all(row[index] in (None, "") for row in table.rows) and index:
            orders.append(index + 2 * len(columns))
        elif column.optional:
            orders.append(index + len(columns))
        else:
            orders.append(0 if index in lasting else index)
    return orders


def _cell(cell: Cell, column: Column) -> str:
    if isinstance(cell, str) or cell is None:
        return plain(cell or "")
    return f"{cell:,.{column.digits}f}"


def _rows(title: str, rows: Sequence[KernelRow], width: int) -> RenderableType:
    """The table of kernels or modules with ms a step, share and calls, fitted to `width` characters."""
    names = [Text(plain(row.name)) for row in rows]
    return fitted(
        [
            Part(title, names, name=True, min_width=_LEAST_KERNEL, max_width=_KERNEL),
            Part("account", [Text(plain(row.account), style="dim") for row in rows], drop_order=3),
            Part("phase", [Text(row.phase, style="dim") for row in rows], drop_order=2),
            Part("ms per step", [Text(f"{row.ns / 1e6:,.3f}") for row in rows], right=True),
            Part("share", [Text(f"{100 * row.share:.1f} %") for row in rows], right=True),
            Part("calls", [Text(f"{row.count:,}") for row in rows], drop_order=1, right=True),
        ],
        width,
    )
