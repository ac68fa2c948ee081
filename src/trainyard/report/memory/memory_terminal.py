"""Prints a MemoryView: allocation over time, the holders of the peak, fragmentation. Imports Rich."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainyard import units, words
from trainyard.report.memory.memory_view import MemoryCurve, MemoryView
from trainyard.report.render.terminal import figures_line, plain

_LEVELS = " ▁▂▃▄▅▆▇█"
_WIDE = 72


def print_memory(view: MemoryView, console: Console, top: int = 12) -> None:
    """Prints the whole report, with the `top` largest holders of the peak."""
    console.print(Text(plain(view.title), style="bold"))
    console.print(Text(plain(" · ".join([view.subtitle, *view.chips])), style="dim"))
    console.print(figures_line(view.figures))
    for warning in view.warnings:
        console.print(Text(plain(warning), style="bold yellow"))
    if view.curve.moments > 1:
        console.print()
        console.print(Text(sparkline(view.curve)))
        length = units.show_time(view.wall_ns) if view.curve.timed else f"{view.curve.moments - 1:,} events"
        console.print(Text(f"allocated over {length}; a full column is the peak", style="dim"))
    console.print()
    console.print(_kinds(view))
    console.print()
    console.print(_holders(view, top))
    for label, fragments in view.fragments:
        size = units.show_size
        console.print()
        console.print(
            f"{label}: {size(fragments.reserved)} reserved in {fragments.segments:,} segments, "
            f"{size(fragments.unused)} unused in {fragments.pieces:,} pieces, the largest {size(fragments.largest)}; "
            f"{size(fragments.split)} of it in segments that are in use, {size(fragments.rounding)} lost to rounding"
        )
    for note in view.notes:
        console.print(Text(f"note: {plain(note)}", style="dim"))


def sparkline(curve: MemoryCurve, wide: int = _WIDE) -> str:
    """The maximum allocated in each of `wide` time intervals, in eighths of the peak."""
    allocated = [sum(column) for column in zip(*curve.kinds)] or [0] * len(curve.ns)
    most, end, start = max(allocated) or 1, curve.ns[-1] - curve.ns[0] + 1, curve.ns[0]
    heights, now, at = [], 0, 0
    for column in range(wide):
        height = now
        while at < len(curve.ns) and (curve.ns[at] - start) * wide < (column + 1) * end:
            now = allocated[at]
            height = max(height, now)
            at += 1
        heights.append(height)
    return "".join(_LEVELS[-(-8 * height // most)] for height in heights)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        left = name in ("held at the peak", "where", "category")
        table.add_column(name, justify="left" if left else "right", no_wrap=True, overflow="ellipsis")
    return table


def _kinds(view: MemoryView) -> Table:
    table = _table("held at the peak", "size", "share", "bytes")
    whole = sum(view.held.values())
    colours = {kind.label: kind.colour for kind in view.kinds}
    for label, size in sorted(view.held.items(), key=lambda item: -item[1]):
        table.add_row(
            Text("■ ", style=colours[label]) + Text(label, style="default"),
            units.show_size(size),
            units.show_share(size, whole),
            f"{size:,}",
        )
    table.add_row(Text("allocated", style="bold"), units.show_size(whole), "", f"{whole:,}")
    return table


def _holders(view: MemoryView, top: int) -> Table:
    table = _table("where", "category", "size", "blocks", "age")
    for holder in view.holders[:top]:
        table.add_row(
            Text(plain(holder.where) or "(no stack)"),
            words.MEMORY[holder.category].label,
            units.show_size(holder.size),
            f"{holder.count:,}",
            units.show_time(holder.age_ns) if holder.age_ns >= 0 else "–",
        )
    left, size, count = view.rest
    left += len(view.holders[top:])
    if left:
        size += sum(holder.size for holder in view.holders[top:])
        count += sum(holder.count for holder in view.holders[top:])
        table.add_row(Text(f"{left:,} more places", style="dim"), "", units.show_size(size), f"{count:,}", "")
    return table
