"""The critical path of a page: its segments are those of the command, to the nanosecond, on lanes that have them."""

import base64
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties.test_trace_properties import cpu_traces, rank_traces
from tests.trace.whatif.test_what_if import read_all
from trainyard import api, machine
from trainyard.report.render.packed_timeline import pack_timeline
from trainyard.report.view import path_overlay
from trainyard.report.view.build_what_if import shared_replay
from trainyard.report.view.critical_path import critical_path_of
from trainyard.report.view.path_overlay import add_path
from trainyard.report.view.timeline import timeline
from trainyard.trace.measure import measure, read
from trainyard.trace.whatif import grid
from trainyard.trace.whatif.replay import Replay

DEMO = Path(machine.__file__).parent / "data" / "demo"
TRACES = ["a100_ddp_resnet.json.gz", "h100_qwen_0.5b.json.gz", "v100_dlrm_8ranks", "cpu_gloo_3ranks"]


def unpacked(packed):
    """(start, stop, lane, share) of each segment of a packed path, read by its documentation."""
    values, number, shift = [], 0, 0
    for byte in zlib.decompress(base64.b64decode(packed["segments"])):
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(number)
            number, shift = 0, 0
    gaps, lengths, lanes, shares = np.array(values, np.int64).reshape(4, packed["count"])
    stops = np.cumsum(gaps + lengths)
    return stops - lengths, stops, lanes - 1, shares


def check(measured, result):
    """The packed path has the shares of the command's `result`, and so do its segments."""
    drawn = add_path(timeline(measured), shared_replay(measured, "full"))
    packed = pack_timeline(drawn)["path"]
    start, stop, lane, share = unpacked(packed)
    assert (start[1:] >= stop[:-1]).all()
    assert packed["merged"] == 0
    expected = {(item.resource, item.account): item.ns for item in result.shares}
    assert {(resource, account): ns for account, _, resource, ns in packed["shares"]} == expected
    sums = np.bincount(share, weights=stop - start, minlength=len(packed["shares"])).astype(np.int64)
    assert sums.tolist() == [ns for *_, ns in packed["shares"]]
    assert sums.sum() == packed["total_ns"] == result.total_ns
    of_rank = dict.fromkeys((item.rank for item in result.ranks), 0)
    for number, begin, end in zip(lane.tolist(), start.tolist(), stop.tolist()):
        if number >= 0:
            of_rank[drawn.lanes[number].rank] += end - begin
    assert of_rank == {item.rank: item.ns for item in result.ranks}
    return drawn, start, stop, lane, share


@given(
    st.one_of(st.tuples(rank_traces()), st.tuples(cpu_traces()), st.tuples(rank_traces(0, 2), rank_traces(1, 2))),
    st.sampled_from(["steps", "all"]),
)
def test_segments_add_up_to_the_shares_of_the_command(tmp_path_factory, documents, window):
    measured = measure(read_all(tmp_path_factory.mktemp("t"), *documents), window)
    if not measured.mean.wall_ns:
        assert add_path(timeline(measured), shared_replay(measured, "full")).path is None
        return
    check(measured, critical_path_of(Replay(measured)))


@pytest.mark.parametrize("name", TRACES)
def test_paths_of_public_traces_are_those_of_the_command(public_trace, name):
    check(measure(read([public_trace(name)])), api.critical_path(public_trace(name)))


def test_segments_of_work_lie_in_slices_of_their_account():
    measured = measure(read([DEMO]))
    drawn, start, stop, lane, share = check(measured, api.critical_path(DEMO))
    checked = 0
    for begin, end, number, own in zip(start.tolist(), stop.tolist(), lane.tolist(), share.tolist()):
        _, label, resource, _ = drawn.path.shares[own]
        target = drawn.lanes[number]
        if number < 0 or resource not in ("device", "host") or target.kind != "device":
            continue
        at = int(np.searchsorted(target.starts, begin, "right")) - 1
        assert target.starts[at] <= begin
        covered = [
            (first, first + ns) for first, ns, look in zip(target.starts[at:], target.lengths[at:], target.look[at:])
            if first < end and drawn.legend[look].label == label
        ]  # fmt: skip
        assert sum(min(end, last) - max(begin, first) for first, last in covered) == end - begin
        checked += 1
    assert checked > 20


@pytest.mark.parametrize("most", [3, 50])
def test_many_segments_are_merged_in_order(monkeypatch, most):
    measured = measure(read([DEMO]))
    exact = add_path(timeline(measured), shared_replay(measured)).path
    monkeypatch.setattr(path_overlay, "_MOST_SEGMENTS", most)
    merged = add_path(timeline(measured), shared_replay(measured)).path
    assert len(merged.starts) <= most < len(exact.starts)
    assert merged.merged == len(exact.starts) - len(merged.starts)
    assert (merged.shares, merged.total_ns) == (exact.shares, exact.total_ns)
    stops = np.add(merged.starts, merged.lengths)
    assert (np.array(merged.starts[1:]) >= stops[:-1]).all()
    assert (merged.starts[0], stops[-1]) == (exact.starts[0], exact.starts[-1] + exact.lengths[-1])


def test_pages_of_large_traces_have_no_path(monkeypatch):
    measured = measure(read([DEMO]))
    monkeypatch.setattr(grid, "_LIMITS", (grid._Limit(rows=10, points=1, ledgers=0),))
    assert add_path(timeline(measured), shared_replay(measured)).path is None
    assert pack_timeline(timeline(measured))["path"] is None
    assert add_path(timeline(measured), shared_replay(measured, "full")).path is not None
