"""The comparison of designs as a picture: a heat map of gains, with the mean of each change as a bar. SVG."""

from __future__ import annotations

from math import log
from xml.sax.saxutils import escape

from trainyard.printable import printable_xml, storable_xml
from trainyard.report.plans.design_comparison import ALL, Design, DesignComparison, show_gain

_LABEL_WIDTH, _CELL_WIDTH, _BAR_WIDTH, _ROW_HEIGHT, _HEAD_HEIGHT = 190, 112, 200, 30, 64
_FULL_COLOUR = (31, 111, 178)
"""Red, green and blue of the largest gain; no gain is white."""
_DARK = 0.6
"""Share of the full colour above which text is white."""


def draw(result: DesignComparison) -> str:
    """The picture as the text of an SVG file: a row for each change, a column for each training."""
    single = [design for design in result.designs if design.name != ALL]
    columns = len(result.trainings)
    width = _LABEL_WIDTH + columns * _CELL_WIDTH + _BAR_WIDTH
    height = _HEAD_HEIGHT + len(result.designs) * _ROW_HEIGHT + 16
    largest = max((step.speedup or 1.0 for design in single or result.designs for step in design.steps), default=1.0)
    title = f"Steps faster by, %: designs of {result.machine} ({result.device})"
    head = [_text(8, 22, title, size=15)]
    head += [
        _text(_LABEL_WIDTH + (index + 0.5) * _CELL_WIDTH, _HEAD_HEIGHT - 10, training.name, anchor="middle")
        for index, training in enumerate(result.trainings)
    ]
    head.append(_text(_LABEL_WIDTH + columns * _CELL_WIDTH + 12, _HEAD_HEIGHT - 10, "geometric mean"))
    rows = [part for row, design in enumerate(result.designs) for part in _row(design, row, columns, largest)]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif">',
            f"<title>{_escaped(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *head,
            *rows,
            "</svg>\n",
        )
    )


def _row(design: Design, row: int, columns: int, largest: float) -> list[str]:
    """The label, the cells and the bar of one design. `largest`: the speed-up that has the full colour and length."""
    top = _HEAD_HEIGHT + row * _ROW_HEIGHT
    parts = [_text(8, top + 20, design.label)]
    for index, step in enumerate(design.steps):
        share, left = _share(step.speedup, largest), _LABEL_WIDTH + index * _CELL_WIDTH
        parts.append(_rectangle(left + 1, top + 1, _CELL_WIDTH - 2, _colour(share)))
        colour = "#ffffff" if share > _DARK else "#1b1f24"
        parts.append(
            _text(left + _CELL_WIDTH / 2, top + 20, show_gain(step.speedup) or "–", anchor="middle", colour=colour)
        )
    left, room = _LABEL_WIDTH + columns * _CELL_WIDTH + 12, _BAR_WIDTH - 60
    length = _share(design.mean_speedup, largest) * room
    parts.append(_rectangle(left, top + 6, length, _colour(1.0), height=_ROW_HEIGHT - 12))
    parts.append(_text(left + length + 6, top + 20, show_gain(design.mean_speedup) or "–"))
    return parts


def _share(speedup: float | None, largest: float) -> float:
    """The logarithm of a speed-up over that of the largest, from 0 to 1; 0 if unknown."""
    return min(max(log(speedup) / log(largest), 0.0), 1.0) if speedup and largest > 1 else 0.0


def _colour(share: float) -> str:
    """White at 0 to the full colour at 1."""
    return "#" + "".join(f"{round(255 + share * (full - 255)):02x}" for full in _FULL_COLOUR)


def _rectangle(left: float, top: float, width: float, colour: str, height: float = _ROW_HEIGHT - 2) -> str:
    return f'<rect x="{left:g}" y="{top:g}" width="{width:.1f}" height="{height:g}" fill="{colour}"/>'


def _text(left: float, base: float, text: str, anchor: str = "start", size: int = 13, colour: str = "#1b1f24") -> str:
    return (
        f'<text x="{left:.1f}" y="{base:g}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">'
        f"{_escaped(text)}</text>"
    )


def _escaped(text: str) -> str:
    """Text for XML, of which no character can change the picture."""
    return printable_xml(escape(storable_xml(text)))
