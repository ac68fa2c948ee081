"""The grid of replays: its points are the predictions of what-if, and it states why points are missing."""

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties.test_trace_properties import cpu_traces, rank_traces
from tests.trace.whatif.test_what_if import read_all
from trainyard import machine
from trainyard.errors import BadInput
from trainyard.trace.measure import measure, measure_files
from trainyard.trace.whatif import grid
from trainyard.trace.whatif.assumptions import assumption
from trainyard.trace.whatif.grid import LEVERS, replay_grid
from trainyard.trace.whatif.what_if import what_if

DEMO = Path(machine.__file__).parent / "data" / "demo"


def assert_points_are_predictions(measured, points):
    for point in points:
        predicted = what_if(measured, point.changes)
        assert point.wall_ns == predicted.mean.wall_ns
        assert point.recovery == predicted.recovery
        if point.accounts is not None:
            assert point.accounts == predicted.mean.by_account()
            assert sum(point.accounts.values()) == point.wall_ns


@given(
    st.one_of(st.tuples(rank_traces()), st.tuples(cpu_traces()), st.tuples(rank_traces(0, 2), rank_traces(1, 2))),
    st.sampled_from(["steps", "all"]),
)
def test_points_are_the_predictions_of_what_if(tmp_path_factory, documents, window):
    measured = measure(read_all(tmp_path_factory.mktemp("t"), *documents), window)
    if not measured.mean.wall_ns:
        return
    replayed = replay_grid(measured, "short")
    assert_points_are_predictions(measured, replayed.points)
    refused = [lever for lever in replayed.levers if lever.unavailable and lever.key != "perfect-overlap"]
    for lever in refused:
        with pytest.raises(BadInput):
            what_if(measured, [lever.change(1)])


def test_short_grid_of_the_bundled_trace_has_every_lever():
    measured = measure_files([DEMO])
    replayed = replay_grid(measured, "short")
    assert {point.changes for point in replayed.points} >= {(lever.change(1),) for lever in LEVERS}
    with_ledger = [point.recovery.ns for point in replayed.points if point.accounts]
    assert with_ledger
    assert min(with_ledger) >= max(point.recovery.ns for point in replayed.points if not point.accounts)
    assert replayed.combinations == 2 * 2 * 2 * 3 * 3 * 3 - 1
    assert_points_are_predictions(measured, replayed.points)


def test_full_grid_has_every_combination_of_available_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "LEVERS", tuple(lever._replace(speeds=lever.speeds[:2]) for lever in LEVERS))
    measured = measure_files([DEMO / "rank0.json.gz"])
    replayed = replay_grid(measured, "full")
    # One rank has no stragglers to compare with.
    available = [lever for lever in replayed.levers if not lever.unavailable]
    assert "no-stragglers" not in [lever.key for lever in available]
    expected = {
        tuple(lever.change(setting) for lever, setting in zip(available, settings) if setting)
        for settings in product(range(2), repeat=len(available))
        if any(settings)
    }
    assert {point.changes for point in replayed.points} == expected
    assert all(point.accounts for point in replayed.points)
    assert_points_are_predictions(measured, replayed.points[-2:])


def test_large_traces_are_replayed_on_request_only(monkeypatch):
    monkeypatch.setattr(grid, "_LIMITS", (grid._Limit(rows=1000, points=12, ledgers=3),))
    measured = measure_files([DEMO / "rank0.json.gz"])
    replayed = replay_grid(measured, "short")
    assert not replayed.points
    assert "1,000" in replayed.not_replayed


def test_every_lever_states_its_own_assumption():
    stated = {assumption(lever.change(1)) for lever in LEVERS}
    assert len(stated) == len(LEVERS)
    assert assumption("network=4x") == assumption("network=0.5x")
    assert assumption("op:aten::mm=2x") == assumption("compute/matmul=2x")
    with pytest.raises(BadInput):
        assumption("network")
