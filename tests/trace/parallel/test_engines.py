"""Many ranks in parallel: the same ledgers from every engine, in bounded memory."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.ranks import shifted_copies
from tests.refused import refused
from tests.trace_maker import trace, write
from trainyard.errors import BadFile, BadInput, MissingLibrary, PlaceUnwritable, UnknownName, WorkerDied
from trainyard.trace.align.matching import Meetings
from trainyard.trace.classify.kernels import Keys
from trainyard.trace.export.trace_tables import build_tables
from trainyard.trace.measure import measure, measure_files, read
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.parallel import engines, spill


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return shifted_copies(folder, 4, copies_of=[_document(rank) for rank in range(4)])


def _document(rank):
    args = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20, "dtype": "Float"}
    args |= {"Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]"}
    device, at = [], 1_000
    for step in range(6):
        device.append(("gemm", 7, at, at + 100 + 10 * rank, at - 50))
        device.append(
            ("ncclDevKernel_AllReduce_RING", 8, at + 100 + 10 * rank, at + 300, at - 40, args | {"Seq": step})
        )
        at += 400
    marks = [("1", 900, 2_000), ("2", 2_000, 3_600)]
    return trace(device=device, marks=marks, rank=rank, world=4, host_name="one")


def same(left: MeasuredTrace, right: MeasuredTrace):
    assert left.ledgers == right.ledgers
    assert left[3:] == right[3:]
    for mine, theirs in zip(left.ranks, right.ranks, strict=True):
        assert mine.events.names == theirs.events.names
        assert mine.keys.pairs == theirs.keys.pairs
        assert mine.classified.collectives == theirs.classified.collectives
        for a, b in zip(_columns(mine), _columns(theirs), strict=True):
            np.testing.assert_array_equal(a, b)


def _columns(rank):
    tables = (rank.context, rank.classified, rank.waits)
    columns = [part for table in tables for part in table if isinstance(part, np.ndarray)]
    return [*columns, rank.owned, rank.waited, rank.events.work.start, rank.events.host.stop]


@pytest.mark.parametrize("name", ["auto", "serial", "processes"])
def test_all_engines_give_the_same_result(files, name):
    expected = measure(read(files))
    assert expected.alignment.aligned == "collectives"
    same(measure_files(files, engine=name), expected)


@pytest.mark.slow
def test_a_real_ray_cluster_gives_the_same_result(files, monkeypatch, tmp_path):
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    same(measure_files(files, engine="ray"), measure(read(files)))
    assert not ray.is_initialized()
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with refused(BadFile, broken.name):
        measure_files([broken, *files], engine="ray", strict=True)
    assert not ray.is_initialized()


@pytest.mark.slow
def test_a_running_ray_cluster_is_joined_and_kept(files):
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=2, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False)
    try:
        same(measure_files(files, engine="ray"), measure(read(files)))
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def test_without_ray_the_extra_is_named(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with refused(MissingLibrary, "trainyard[ray]"):
        measure_files(files, engine="ray")


def test_an_unknown_engine_is_refused(files):
    with refused(UnknownName, "'proceses'", "'processes'"):
        measure_files(files, engine="proceses")


@pytest.mark.parametrize("name", ["serial", "processes"])
def test_engines_raise_the_same_errors(files, tmp_path, name):
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with refused(BadFile, broken.name):
        measure_files([broken, *files], engine=name, strict=True)
    again = tmp_path / "again.json"
    again.write_bytes(files[0].read_bytes())
    with refused(BadInput, again.name, files[0].name, "rank 0"):
        measure_files([again, *files], engine=name)


def _dies(_):
    os._exit(9)


def test_a_dead_worker_is_reported():
    with engines.engine("processes", 1) as run, refused(WorkerDied, "--engine serial"):
        run(_dies, [1, 2])


def test_spilled_files_are_deleted_with_the_last_reference(files, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    measured = measure_files(files, engine="serial")
    assert len(list(tmp_path.glob("*/*.booked"))) == 4
    assert not list(tmp_path.glob("*/*.classified"))
    start = measured.ranks[2].events.work.start
    assert not start.flags.writeable
    assert [rank.events.rank for rank in measured.ranks[1:3]] == [1, 2]
    del measured
    assert list(tmp_path.iterdir()) == []
    assert start[0] > 0  # still mapped


def test_a_full_disk_is_reported(tmp_path):
    with refused(PlaceUnwritable, tmp_path / "absent" / "x", "TMPDIR"):
        spill.save(tmp_path / "absent" / "x", (1,))


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9), min_size=5, max_size=5))
def test_spilled_columns_round_trip(tmp_path_factory, columns):
    path = tmp_path_factory.mktemp("t") / "x"
    meetings = Meetings(*(np.array(column, np.int64) for column in columns))
    spill.save(path, meetings)
    for loaded, other in zip(spill.load(path, Meetings), meetings, strict=True):
        np.testing.assert_array_equal(loaded, other)
        assert loaded.dtype == other.dtype


def test_spilled_keys_round_trip(files, tmp_path):
    keys = measure(read(files)).ranks[0].keys
    spill.save(tmp_path / "x", keys)
    assert spill.load(tmp_path / "x", Keys).pairs == keys.pairs


@pytest.mark.slow
def test_memory_does_not_grow_with_the_ranks(public_trace):
    """8 and 128 of the DLRM ranks, each with its own clock, on the serial engine in a separate process."""
    public_trace("v100_dlrm_8ranks")
    run = [sys.executable, "-m", "benchmarks.ranks", "8", "128"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    few, many = ([float(word) for word in line.split()] for line in done.stdout.splitlines())
    assert many[0] == 16 * few[0]
    assert many[1] < 3 * 16 * few[1]  # CPU seconds, start-up apart
    assert many[2] < few[2] + 60  # MB


DEEP = "[" * 100_000
HOSTILE = (
    {"Process Group Ranks": DEEP},
    {"Process Group Ranks": "[0, 1000000000000000000000000000000]"},
    {"Process Group Ranks": [True, 1]},
    {"Process Group Name": "deep"},
    {"Group size": True},
    {"Group size": 10**30},
    {"Seq": True},
    {"Seq": 2**63},
    {"Src Rank": True},
    {"Dst Rank": 10**30},
    {"In msg nelems": 9 * 10**18, "Out msg nelems": 1, "dtype": "Double"},
    {"In msg nelems": 10**30, "dtype": "Float"},
    {"Input Dims": [[2**61, 2**61], [2]], "Input type": ["float", "float"]},
    {"Input Dims": [[10**30], [True]], "Input type": ["float", "float"]},
)


@pytest.mark.parametrize("name", ["auto", "serial", "processes"])
def test_absurd_collective_values_are_treated_as_unknown(tmp_path, name):
    nccl = "ncclDevKernel_AllReduce_RING"
    device = [(nccl, 8, at, at + 80, at - 10, args) for at, args in zip(range(100, 9_000, 100), HOSTILE)]
    shapes = {"Input Dims": [[10**30, 2], [-1], [True], [2**62]], "Input type": ["float"] * 4}
    document = trace(device=device, host=[("aten::mm", 100, 0, 50, "cpu_op", shapes)], rank=0, world=2)
    document["distributedInfo"]["pg_config"] = [{"pg_name": "deep", "ranks": DEEP}]
    path = write(tmp_path, document)
    measured = measure_files([path], engine=name)
    same(measured, measure(read([path])))
    collectives = measured.ranks[0].classified.collectives.values()
    assert len(collectives) == len(HOSTILE)
    values = {(item.ranks, item.members, item.seq, item.peer, item.size) for item in collectives}
    assert values == {((), 0, -1, -1, 0)}
    assert len(build_tables(measured)["collectives"]) == len(HOSTILE)
    assert measured.ranks[0].events.shapes[-1].dims == ((), (), (), ())
