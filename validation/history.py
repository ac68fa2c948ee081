"""Detected change points against human annotations: `python -m validation.history FOLDER`.

FOLDER has one JSON file per series and `annotations.json` (series -> annotator -> places), in the format of the Turing
Change Point Dataset. Scores are those of van den Burg and Williams (arXiv:2003.06222, section 4): F1 with a margin of
5, and the cover. They are printed, and written to validation/out/history.json. All series use the default parameters,
and no series is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from trainyard.compare.history.detect_changes import detect
from trainyard.compare.history.series_changes import DetectedChanges
from trainyard.errors import BadFile, NotEnoughEvidence, TrainyardError

OUT = Path(__file__).parent / "out" / "history.json"
MARGIN = 5
Marks = Mapping[str, Sequence[int]]


class Scored(NamedTuple):
    series: str
    points: int
    f1: float
    cover: float
    reported: list[int]
    annotators: int


class _Series(msgspec.Struct):
    raw: list[float | None]


class _File(msgspec.Struct):
    name: str
    series: list[_Series]


def reported(seen: DetectedChanges) -> list[int]:
    """Places where the level changed from one point to the next: steps, and both ends of excursions."""
    steps = [change.at for change in seen.changes if change.kind == "step"]
    excursions = [change for change in seen.changes if change.kind == "excursion"]
    return sorted({*steps, *(end for change in excursions for end in (change.at, change.until))})


def matched(marked: Iterable[int], detected: Iterable[int], margin: int = MARGIN) -> int:
    """Number of `marked` places with a detected place within the margin; each detected place matches one mark."""
    left, count = set(detected), 0
    for mark in sorted(marked):
        near = [(abs(mark - candidate), candidate) for candidate in left if abs(mark - candidate) <= margin]
        if near:
            left.remove(min(near)[1])
            count += 1
    return count


def f1(marks: Marks, detected: Iterable[int]) -> float:
    """F1 of precision against the union of all annotators' marks, and recall averaged over annotators. The beginning
    of a series counts as a change point everywhere."""
    places = {0, *detected}
    each = [{0, *own} for own in marks.values()]
    precision = matched(set().union(*each), places) / len(places)
    recall = sum(matched(own, places) / len(own) for own in each) / len(each)
    return 2 * precision * recall / (precision + recall)


def cover(marks: Marks, detected: Iterable[int], points: int) -> float:
    """Covering metric: the Jaccard index of each annotated segment with its best detected segment, weighted by length
    and averaged over annotators."""
    own = _parts(detected, points)
    total = sum(
        (stop - start) * max(_jaccard((start, stop), part) for part in own)
        for marked in marks.values()
        for start, stop in _parts(marked, points)
    )
    return total / points / len(marks)


def _parts(places: Iterable[int], points: int) -> list[tuple[int, int]]:
    bounds = [0, *sorted({index for index in places if 0 < index < points}), points]
    return list(pairwise(bounds))


def _jaccard(first: tuple[int, int], second: tuple[int, int]) -> float:
    both = max(0, min(first[1], second[1]) - max(first[0], second[0]))
    return both / (max(first[1], second[1]) - min(first[0], second[0])) if both else 0.0


def read(folder: Path) -> dict[str, tuple[list[float], Marks]]:
    """Series -> its values, with gaps filled with the previous value, and its annotations. Only the first dimension is
    read. Raises `BadFile` if the folder has no annotations, or a file is not in the format."""
    path = folder / "annotations.json"
    try:
        marks = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, list[int]]])
        by_series: dict[str, tuple[list[float], Marks]] = {}
        for path in sorted(folder.glob("*.json")):
            if path.name == "annotations.json":
                continue
            file = msgspec.json.decode(path.read_bytes(), type=_File)
            if marks.get(file.name) and file.series:
                by_series[file.name] = _filled(file.series[0].raw), marks[file.name]
    except OSError as error:
        raise BadFile(f"{path}: cannot be read: {error.strerror}.", "Give a folder with annotations.json.") from error
    except msgspec.MsgspecError as error:
        raise BadFile(f"{path}: not in the format of the Turing Change Point Dataset: {error}.") from error
    if not by_series:
        raise BadFile(f"{folder}: no annotated series.")
    return by_series


def _filled(raw: Sequence[float | None]) -> list[float]:
    last = next((value for value in raw if value is not None), 0.0)
    values: list[float] = []
    for value in raw:
        last = last if value is None else value
        values.append(last)
    return values


def score(name: str, values: list[float], marks: Marks) -> Scored:
    try:
        places = reported(detect(values))
    except NotEnoughEvidence:
        places = []
    return Scored(name, len(values), f1(marks, places), cover(marks, places, len(values)), places, len(marks))


def main(folder: Path) -> None:
    rows = [score(name, values, marks) for name, (values, marks) in read(folder).items()]
    mean = {"f1": sum(row.f1 for row in rows) / len(rows), "cover": sum(row.cover for row in rows) / len(rows)}
    print(f"{'series':20} {'points':>6} {'annotators':>10} {'F1':>6} {'cover':>6}  reported")
    for row in rows:
        listed = " ".join(map(str, row.reported)) or "–"
        print(f"{row.series:20} {row.points:6} {row.annotators:10} {row.f1:6.3f} {row.cover:6.3f}  {listed}")
    print(f"{'mean':20} {'':6} {'':10} {mean['f1']:6.3f} {mean['cover']:6.3f}")
    OUT.parent.mkdir(exist_ok=True)
    document = {"margin": MARGIN, "series": [row._asdict() for row in rows], "mean": mean}
    OUT.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
    print(f"\n{OUT.relative_to(Path.cwd()) if OUT.is_relative_to(Path.cwd()) else OUT} written.")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("python -m validation.history FOLDER")
    try:
        main(Path(sys.argv[1]))
    except TrainyardError as error:
        raise SystemExit(f"error: {error}") from error
