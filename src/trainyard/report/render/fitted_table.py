"""Tables that fit the width of a terminal: columns that do not fit are left out, and a line below the table names them.

Every table of the terminal output is drawn by `fitted`. Widths are in characters (cells of the terminal). Imports Rich.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainyard.printable import printable

_FIRST_NAME, _NAME = 24, 16
"""Minimum width of names before a column is left out: in the first column, in other columns."""
_PROSE = 24
"""Minimum width of a prose column."""
_GAP = 2
"""Spaces between columns."""
_LONGEST = 2000
"""Maximum characters of any text: a name in a file may have a megabyte."""


class Part(NamedTuple):
    """A column of a table. `drop_order`: the highest number is left out first, 0 never. `name`: cells are shortened in
    the middle to fit, to `min_width` at least before another column is left out, and never exceed `max_width`. `prose`:
    cells wrap, and `min_width` is their least width. Other cells are never cut. `right`: aligned to the right. `label`:
    the name of a column without a title in the line on the columns left out; without either it is not named."""

    title: str
    cells: Sequence[Text]
    drop_order: int = 0
    name: bool = False
    right: bool = False
    min_width: int | None = None
    max_width: int | None = None
    prose: bool = False
    label: str = ""

    @property
    def flexible(self) -> bool:
        """Whether the column may be narrower than its widest cell."""
        return self.name or self.prose


def fitted(parts: Sequence[Part], width: int) -> RenderableType:
    """A table of the columns that fit into `width` characters and, if some do not, a line that names them. Heads wrap
    if the table is too wide otherwise. Numbers are never cut. Columns without any cells are ignored."""
    filled = [part for part in parts if part.cells]
    kept = fitting(filled, width)
    widths = _widths(kept, width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for part, column_width in zip(kept, widths):
        head = Text(part.title, no_wrap=False, overflow="fold")  # the head wraps, the cells do not
        justify = "right" if part.right else "left"
        table.add_column(head, justify=justify, width=column_width, no_wrap=not part.prose)
    for row in zip(*(part.cells for part in kept), strict=True):
        cells = zip(kept, row, widths)
        table.add_row(*(_shorten_name(cell, cell_width) if part.name else cell for part, cell, cell_width in cells))
    names = [part.title or part.label for part in filled if not any(part is other for other in kept)]
    left_out = [name for name in names if name]
    if not left_out:
        return table
    needed = _total(_needs(filled, wrapped=True))
    line = f"left out at this width: {'; '.join(left_out)} (all columns fit {needed} characters; --json has them)"
    return Group(table, Text(plain(line), style="dim"))


def fitting(parts: Sequence[Part], width: int) -> list[Part]:
    """The columns that fit into `width` characters; those with the highest `drop_order` are left out first."""
    kept = list(parts)
    while kept and _total(_needs(kept, wrapped=True)) > width and max(part.drop_order for part in kept):
        kept.pop(max(range(len(kept)), key=lambda index: kept[index].drop_order))
    return kept


def _widths(parts: Sequence[Part], width: int) -> list[int]:
    """The width of each column. Names and prose share the space that is left, as equally as their widest cells allow,
    or are narrowed to one character if even all that may be left out does not suffice."""
    one_line = _needs(parts, wrapped=False)
    widths = one_line if _total(one_line) <= width else _needs(parts, wrapped=True)
    spare = width - _total(widths)
    wanted = [max(least, _most(part)) for least, part in zip(widths, parts)]
    growing = sorted(
        (index for index, part in enumerate(parts) if part.flexible), key=lambda index: wanted[index] - widths[index]
    )
    for position, index in enumerate(growing):
        share = spare // (len(growing) - position)
        change = min(wanted[index] - widths[index], share) if spare > 0 else max(1 - widths[index], share)
        widths[index] += change
        spare -= change
    return widths


def _needs(parts: Sequence[Part], wrapped: bool) -> list[int]:
    """The minimum width of each column. `wrapped`: a head needs the width of its longest word only."""
    return [_need(part, index == 0, wrapped) for index, part in enumerate(parts)]


def _need(part: Part, first: bool, wrapped: bool) -> int:
    """The minimum width of a column; `first`: it is the first of the table."""
    head = max(map(cell_len, part.title.split()), default=0) if wrapped else cell_len(part.title)
    widest = max(cell.cell_len for cell in part.cells)
    if part.flexible:
        widest = min(widest, part.min_width or (_PROSE if part.prose else _FIRST_NAME if first else _NAME))
    return max(head, widest)


def _most(part: Part) -> int:
    """The width at which no cell of a column is shortened or wrapped, at most its `max_width`."""
    widest = max(cell.cell_len for cell in (Text(part.title), *part.cells))
    return min(widest, part.max_width) if part.max_width else widest


def _total(widths: Sequence[int]) -> int:
    """The width of a table with columns of these widths."""
    return sum(widths) + _GAP * max(0, len(widths) - 1)


def _shorten_name(cell: Text, width: int) -> Text:
    """A cell on one line of `width` characters."""
    return Text(shortened(cell.plain, width), cell.style, no_wrap=True, overflow="crop")


def shortened(text: str, width: int) -> str:
    """The text within `width` terminal cells, with an ellipsis in the middle if it is longer: its beginning and its end
    identify a name."""
    if cell_len(text) <= width:
        return text
    head, tail = width // 2, max(0, width - width // 2 - 1)
    return set_cell_size(text, head).rstrip(" ") + "…" + set_cell_size(text[::-1], tail)[::-1].lstrip(" ")


def plain(text: str) -> str:
    """The text truncated and without control characters: a name from a file must not control the terminal."""
    return printable(text[:_LONGEST])
