"""The figures of one reader: how many inputs it was given, how far they got, and the defects they found."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Crash(msgspec.Struct):
    """An exception other than `BadInput`, or the end of the process; `file` holds the shortest input that causes it."""

    error: str
    file: str
    count: int = 0


class Figures(msgspec.Struct):
    """The sum over all workers of a reader. Times but `wall_s` are CPU seconds; `grown_mb` is the most that the peak of
    a process's memory rose by in one input."""

    inputs: int = 0
    decoded: int = 0
    accepted: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    slowest_s: float = 0.0
    grown_mb: float = 0.0
    peak_mb: float = 0.0
    crashes: dict[str, Crash] = {}


def read_figures(folder: Path) -> Figures:
    path = folder / "figures.json"
    return msgspec.json.decode(path.read_bytes(), type=Figures) if path.is_file() else Figures()


def write_figures(folder: Path, figures: Figures) -> None:
    (folder / "figures.json").write_bytes(msgspec.json.encode(figures))
