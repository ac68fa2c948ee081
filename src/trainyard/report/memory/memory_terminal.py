"""Prints a MemoryView: allocation over time, the holders of the peak, fragmentation. Imports Rich."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.text import Text

from trainyard import units, words
from trainyard.report.memory.memory_view import MemoryView
from trainyard.report.render.blocks import EIGHTHS
from trainyard.report.render.fitted_table import Part, fitted, plain
from trainyard.report.render.terminal import NextStep, figures_line, next_steps
from trainyard.report.view.memory_curve import MemoryCurve

_SPARKLINE_WIDTH = 72
"""Width of the sparkline in characters."""
_LOCATION_WIDTH = 30
"""Width of a source location in characters from which columns are left out before it is shortened."""
_MOST_NOTES = 2
"""Notes on one screen."""


def print_memory(view: MemoryView, console: Console, top: int | None = 12) -> None:
    """Prints the report with the `top` largest holders of the peak, or with all. Unless all, one screen."""
    console.print(Text(plain(view.title), style="bold"))
    console.print(Text(plain(" · ".join([view.subtitle, *view.chips])), style="dim"))
    console.print(figures_line(view.figures))
    for warning in view.warnings:
        console.print(Text(plain(warning), style="bold yellow"))
    if view.curve.moments > 1:
        console.print()
        console.print(Text(sparkline(view.curve, min(_SPARKLINE_WIDTH, console.width))))
        length = units.show_time(view.wall_ns) if view.curve.timed else f"{view.curve.moments - 1:,} events"
        console.print(Text(f"allocated over {length}; a full column is the peak", style="dim"))
    console.print()
    console.print(_kinds(view, console.width))
    console.print()
    console.print(_holders(view, top, console.width))
    for label, fragments in view.fragments if top is None else view.fragments[:1]:
        size = units.show_size
        console.print()
        console.print(
            f"{label}: {size(fragments.reserved)} reserved in {fragments.segments:,} segments, "
            f"{size(fragments.unused)} unused in {fragments.pieces:,} pieces, the largest {size(fragments.largest)}; "
            f"{size(fragments.split)} of it in segments that are in use, {size(fragments.rounding)} lost to rounding"
        )
    for note in view.notes if top is None else view.notes[:_MOST_NOTES]:
        console.print(Text(f"note: {plain(note)}", style="dim"))
    if top is not None:
        counts = {"more place": len(view.holders[top:]), "more note": len(view.notes[_MOST_NOTES:])}
        listed = [units.counted(count, noun) for noun, count in counts.items() if count]
        steps = [NextStep("--full", ", ".join([*listed, "fragmentation at the end"]))]
        console.print(*next_steps([*steps, NextStep("--page FILE", "memory over time and by segment")]), sep="\n")


def sparkline(curve: MemoryCurve, width: int = _SPARKLINE_WIDTH) -> str:
    """The maximum allocated in each of `width` equal time intervals, one character each, in eighths of the peak."""
    allocated = [sum(column) for column in zip(*curve.kinds)] or [0] * len(curve.ns)  # bytes at each moment
    peak_bytes, end, start = max(allocated) or 1, curve.ns[-1] - curve.ns[0] + 1, curve.ns[0]
    heights, current_bytes, moment = [], 0, 0
    for column in range(width):
        height = current_bytes
        while moment < len(curve.ns) and (curve.ns[moment] - start) * width < (column + 1) * end:
            current_bytes = allocated[moment]
            height = max(height, current_bytes)
            moment += 1
        heights.append(height)
    return "".join(EIGHTHS[-(-8 * height // peak_bytes)] for height in heights)


def _kinds(view: MemoryView, width: int) -> RenderableType:
    """The table of bytes allocated at the peak by kind of block, largest first, with their sum."""
    held_bytes = sum(view.held.values())
    colours = {kind.label: kind.colour for kind in view.kinds}
    rows = sorted(view.held.items(), key=lambda item: -item[1])
    total = Text("allocated", style="bold")
    return fitted(
        [
            Part("", [*(Text("■", style=colours[label]) for label, _ in rows), Text("")]),
            Part("held at the peak", [*(Text(label) for label, _ in rows), total]),
            Part("MiB", [Text(_mib(size)) for size in (*(size for _, size in rows), held_bytes)], right=True),
            Part("share", [*(Text(units.show_share(size, held_bytes)) for _, size in rows), Text("")], right=True),
            Part(
                "bytes",
                [Text(f"{size:,}") for size in (*(size for _, size in rows), held_bytes)],
                drop_order=1,
                right=True,
            ),
        ],
        width,
    )


def _holders(view: MemoryView, top: int | None, width: int) -> RenderableType:
    """The table of the `top` largest holders of the peak (source locations that allocated blocks), all if None, and a
    row for the others, fitted to `width` characters."""
    shown = view.holders[:top]
    other_places, other_bytes, other_blocks = view.rest  # those that the view does not list
    hidden = view.holders[len(shown) :]
    other_places += len(hidden)
    other_bytes += sum(holder.size for holder in hidden)
    other_blocks += sum(holder.count for holder in hidden)
    rows = [
        (
            Text(plain(holder.location) or "(no stack)"),
            Text(words.MEMORY[holder.category].label),
            Text(_mib(holder.size)),
            Text(f"{holder.count:,}"),
            Text(f"{holder.age_ns / 1e6:,.1f}" if holder.age_ns >= 0 else "–"),
        )
        for holder in shown
    ]
    if other_places:
        others = Text(units.counted(other_places, "more place"), style="dim")
        rows.append((others, Text(""), Text(_mib(other_bytes)), Text(f"{other_blocks:,}"), Text("")))
    location, category, size, blocks, age = zip(*rows, strict=True) if rows else ((),) * 5
    return fitted(
        [
            Part("location", location, name=True, min_width=_LOCATION_WIDTH), Part("category", category, drop_order=1),
            Part("MiB", size, right=True), Part("blocks", blocks, drop_order=2, right=True),
            Part("age, ms", age, drop_order=3, right=True),
        ],
        width,
    )  # fmt: skip


def _mib(size: int) -> str:
    """Bytes as MiB, with one decimal."""
    return f"{size / 2**20:,.1f}"
