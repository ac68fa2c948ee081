"""Packs a timeline into the JSON of a page."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard import words
from trainyard.formats.protobuf import packed_varints
from trainyard.printable import printable_tree
from trainyard.report.view.slice_details import DETAILS
from trainyard.report.view.step_bounds import StepBounds
from trainyard.report.view.view import Lane, PathOverlay, Timeline


def pack_timeline(timeline: Timeline) -> dict[str, Any]:
    """The timeline as the page reads it, its slices packed: about 5 bytes each, exact to the ns.

    A kind is a pair of name and look (index into the legend). `looks[k]` and `names[k]` are the look and name of kind
    k, commonest first, so that most kinds fit one byte. `slices` is base64 of zlib of three columns of varints, lane
    after lane: gap to the slice before in ns, length in ns, kind. `details` is the same of the columns that `columns`
    names, of those lanes that have the column (its index is in the lane's last element). `stacks` is base64 of zlib of
    JSON: names, parents and numbers of names of the nodes of the stacks; `steps_of_ranks` of the distinct steps and, by
    rank, the numbers of its steps among these.
    """
    lanes, look_count = timeline.lanes, max(1, len(timeline.legend))
    gaps = _column([_gaps(lane) for lane in lanes])
    lengths = _column([lane.lengths for lane in lanes])
    pairs = _column([lane.name for lane in lanes]) * look_count + _column([lane.look for lane in lanes])
    # `pairs`: of each slice, name * looks + look. `kinds`: of each slice, the rank of its pair by frequency.
    counts = np.bincount(pairs)
    distinct = np.flatnonzero(counts)
    distinct = distinct[np.argsort(-counts[distinct], kind="stable")]
    rank_of_pair = np.zeros(len(counts), np.int64)
    rank_of_pair[distinct] = np.arange(len(distinct))
    kinds = rank_of_pair[pairs]
    names = [timeline.names[pair // look_count] for pair in distinct.tolist()]
    stacks, number_of_node = _used_stacks(timeline)
    return {
        "length": timeline.length_ns,
        "legend": msgspec.to_builtins(timeline.legend),
        "lanes": [
            [lane.rank, lane.label, len(lane.starts), lane.kind, lane.depth, list(map(DETAILS.index, lane.details))]
            for lane in lanes
        ],
        "looks": (distinct % look_count).tolist(),
        "names": _squeeze(compact_json(printable_tree(names)).encode()),
        "slices": _pack_columns((gaps, lengths, kinds)),
        "columns": DETAILS,
        "details": _pack_columns(_detail(lanes, name, number_of_node) for name in DETAILS),
        "stacks": _squeeze(compact_json(stacks).encode()),
        "shapes": _squeeze(compact_json(printable_tree(timeline.shapes)).encode()),
        "phases": timeline.phases,
        "path": _pack_path(timeline.path) if timeline.path else None,
        "steps": timeline.steps,
        "steps_of_ranks": _squeeze(compact_json(_number_steps(timeline.steps_of_ranks)).encode()),
        "events": timeline.events,
        "merged": timeline.merged,
        "aligned": timeline.aligned,
        "alignment": words.ALIGNMENTS[timeline.aligned].means,
    }


def _number_steps(steps_of_ranks: Mapping[int, Sequence[StepBounds]]) -> list[Any]:
    """[the distinct steps; by rank, the numbers of its steps]: ranks that share a clock share most steps."""
    numbers: dict[StepBounds, int] = {}
    by_rank = {
        rank: [numbers.setdefault(step, len(numbers)) for step in steps] for rank, steps in steps_of_ranks.items()
    }
    return [list(numbers), by_rank]


def _pack_path(path: PathOverlay) -> dict[str, Any]:
    """The critical path, its segments packed as four columns of varints: gap to the segment before in ns, length in ns,
    number of the lane plus one, number of the share."""
    starts, lengths = np.asarray(path.starts, np.int64), np.asarray(path.lengths, np.int64)
    gaps = np.diff(starts, prepend=0)
    gaps[1:] -= lengths[:-1]
    columns = (gaps, lengths, np.asarray(path.lane, np.int64) + 1, np.asarray(path.share, np.int64))
    return {
        "steps": path.steps,
        "total_ns": path.total_ns,
        "shares": path.shares,
        "ranks": path.ranks,
        "one_clock": path.one_clock,
        "merged": path.merged,
        "count": len(starts),
        "segments": _pack_columns(columns),
    }


def _detail(lanes: Sequence[Lane], name: str, number_of_node: NDArray[np.int64]) -> NDArray[np.int64]:
    """A detail of the slices of all lanes that have it. `number_of_node`: the packed number of each stack, plus one, by
    its number plus one."""
    column = _column(lane.details[name] for lane in lanes if name in lane.details)
    return number_of_node[column] if name == "stack" else column


def _used_stacks(timeline: Timeline) -> tuple[list[Any], NDArray[np.int64]]:
    """([names, parents, numbers of names] of the nodes that slices refer to and of those around them; of each node of
    the timeline, plus one, its number among these, plus one, and 0 if it is left out)."""
    count = len(timeline.stacks)
    parents, names = np.array(timeline.stacks, np.int64).reshape(count, 2).T
    used = np.zeros(count + 1, bool)
    frontier = np.unique(_column(lane.details["stack"] for lane in timeline.lanes if "stack" in lane.details))
    while len(frontier := frontier[(frontier > 0) & ~used[frontier]]):
        used[frontier] = True
        frontier = np.unique(parents[frontier - 1] + 1)
    number = np.cumsum(used) * used
    kept = np.flatnonzero(used) - 1
    used_names, name_number = np.unique(names[kept], return_inverse=True)
    texts = printable_tree([timeline.span_names[name] for name in used_names.tolist()])
    return [texts, (number[parents[kept] + 1] - 1).tolist(), name_number.tolist()], number


def _pack_columns(columns: Iterable[NDArray[np.int64]]) -> str:
    """Columns of non-negative integers as varints, one after the other."""
    return _squeeze(b"".join(packed_varints(column.astype(np.uint64)) for column in columns))


def _gaps(lane: Lane) -> NDArray[np.int64]:
    """Time in ns from the end of each slice's predecessor (0 for the first) to its start. Raises `ValueError` if slices
    overlap."""
    gaps = np.diff(np.asarray(lane.starts, np.int64), prepend=0)
    gaps[1:] -= np.asarray(lane.lengths, np.int64)[:-1]
    if len(gaps) and gaps.min() < 0:
        raise ValueError(f"slices of lane {lane.label!r} overlap or are out of order")
    return gaps


def _column(parts: Iterable[Sequence[int] | NDArray[np.int64]]) -> NDArray[np.int64]:
    """Concatenates columns, of which there may be none."""
    return np.concatenate([np.zeros(0, np.int64), *(np.asarray(part, np.int64) for part in parts)])


def compact_json(value: object) -> str:
    """Compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _squeeze(data: bytes) -> str:
    """The bytes compressed by zlib, as base64 text. Higher levels take up to three times as long for 1 to 4 % fewer
    bytes."""
    return base64.b64encode(zlib.compress(data, 5)).decode()
