"""Owners of each instant, tables of columns, and their import by other libraries."""

import gc
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.page_views import HOSTILE
from tests.properties.test_trace_properties import cpu_traces, rank_traces
from tests.refused import refused
from tests.trace.booking.test_intervals import timelines
from tests.trace_maker import trace, write
from trainyard.errors import MissingLibrary
from trainyard.trace.booking.owners import tile_window
from trainyard.trace.export import arrow_stream
from trainyard.trace.export.arrow_stream import Words
from trainyard.trace.export.columns import Columns, mask_unknown, number_column, text_column, text_column_from_codes
from trainyard.trace.export.schema import TABLES
from trainyard.trace.export.trace_tables import build_tables
from trainyard.trace.measure import measure, read

MODULES = {"to_pandas": "pandas", "to_polars": "polars", "to_arrow": "pyarrow"}


@given(timelines())
def test_owners_match_a_walk_over_every_instant(timeline):
    intervals, bounds = timeline
    begin, end, row = tile_window(intervals, bounds)
    assert begin.tolist() == [bounds[0], *end[:-1].tolist()]
    assert end[-1] == bounds[-1]
    assert (end > begin).all()
    assert set(bounds.tolist()) <= {*begin.tolist(), bounds[-1]}
    owners = {now: owner for a, b, owner in zip(begin, end, row) for now in range(a, b)}
    for now in range(bounds[0], bounds[-1]):
        live = [
            (kind, max(start, bounds[0]), key, index)
            for index, (start, stop, kind, key) in enumerate(zip(*intervals))
            if start <= now < stop
        ]
        assert owners[now] == (min(live)[3] if live else -1)


def sums(table, ns, *by):
    total = Counter()
    for *key, value in zip(*(values(table[name]) for name in (*by, ns))):
        total[tuple(key)] += value
    return +total


def values(column):
    return (column.texts() if isinstance(column, Words) else column).tolist()


def balance(measured):
    """Verdicts tile each window and add up to the ledger; the time that intervals own agrees with the verdicts."""
    by_name = build_tables(measured)
    keys = ("rank", "step", "account", "phase")
    assert sums(by_name["verdicts"], "ns", *keys) == sums(by_name["ledger"], "ns", *keys)
    for rank in measured.ranks:
        mine = np.asarray(by_name["verdicts"]["rank"]) == rank.events.rank
        start, stop = by_name["verdicts"]["start_ns"][mine], by_name["verdicts"]["stop_ns"][mine]
        bounds = sorted({*start.tolist(), *stop.tolist()}) or [rank.parts[0].start]
        assert list(zip(start, stop)) == list(pairwise(bounds))
        assert (bounds[0], bounds[-1]) == (rank.parts[0].start, rank.parts[-1].stop)
    kinds = ("compute", "comm", "copy")
    owned, verdicts = sums(by_name["work"], "owned_ns", "rank", "kind"), sums(by_name["verdicts"], "ns", "rank", "kind")
    assert [owned[key] for key in sorted(verdicts) if key[1] in kinds] == [
        verdicts[key] for key in sorted(verdicts) if key[1] in kinds
    ]
    waits = sums(by_name["waits"], "owned_ns", "rank", "account", "late_rank")
    assert waits == +Counter({key: ns for key, ns in sums(
        by_name["verdicts"], "ns", "rank", "account", "late_rank").items() if key[2] is not None})  # fmt: skip


@settings(max_examples=200)
@given(st.one_of(rank_traces(), cpu_traces()), st.sampled_from(["steps", "all"]))
def test_verdicts_add_up_to_the_ledger(tmp_path_factory, document, window):
    balance(measure(read([write(tmp_path_factory.mktemp("t"), document)]), window))


@settings(max_examples=100)
@given(rank_traces(0, 2), rank_traces(1, 2))
def test_verdicts_of_random_ranks_add_up_to_the_ledger(tmp_path_factory, first, second):
    folder = tmp_path_factory.mktemp("t")
    balance(measure(read([write(folder, first, "0.json"), write(folder, second, "1.json")])))


@pytest.mark.parametrize("name", ["v100_dlrm_8ranks", "cpu_gloo_3ranks", "a100_ddp_resnet.json.gz"])
def test_verdicts_of_recorded_traces_add_up_to_the_ledger(name, public_trace):
    balance(measure(read([public_trace(name)])))


def test_tables_contain_the_values_of_the_file(tmp_path):
    device = [("gemm", 7, 100, 300, 50), ("Memcpy HtoD", 8, 200, 450, 60, {"bytes": 4096})]
    host = [("aten::mm", 100, 40, 58, "cpu_op"), ("aten::copy_", 100, 59, 70, "cpu_op")]
    by_name = build_tables(measure(read([write(tmp_path, trace(device=device, host=host))])))
    assert {name: table.names for name, table in by_name.items()} == {name: (*TABLES[name].columns,) for name in TABLES}
    work = by_name["work"]
    shown = ("name", "account", "stream", "op", "start_ns", "stop_ns", "owned_ns", "launch_ns", "bytes", "flops")
    assert list(zip(*(values(work[name]) for name in shown))) == [
        ("gemm", "compute/matmul", "stream 7", "aten::mm", 100, 300, 200, 50, None, None),
        ("Memcpy HtoD", "copy/h2d", "stream 8", "aten::copy_", 200, 450, 150, 60, 4096, 0),
    ]
    assert list(zip(*(values(by_name["verdicts"][name]) for name in ("start_ns", "stop_ns", "account", "name")))) == [
        (100, 300, "compute/matmul", "gemm"),
        (300, 450, "copy/h2d", "Memcpy HtoD"),
    ]


def test_idle_table_names_the_host_span(tmp_path):
    device = [("gemm", 7, 100, 200, 50), ("gemm", 7, 500, 600, 400)]
    host = [("torch.cuda.synchronize", 100, 150, 350, "python_function")]
    idle = build_tables(measure(read([write(tmp_path, trace(device=device, host=host))])))["idle"]
    assert sum(values(idle["owned_ns"])) == 300
    assert ("torch.cuda.synchronize", "gemm") in set(zip(values(idle["host"]), values(idle["next"])))


def table(*names):
    """A small table with a column of each type, with missing values."""
    return Columns(
        {
            "whole": np.array([2**62 + 1, -5, 0], np.int64),
            "small": np.array([1, 2, 3], np.int32),
            "unknown": mask_unknown(np.array([-1, 2**53 + 1, 7], np.int64)),
            "truth": np.array([True, False, True]),
            "real": np.array([0.5, 1.5, -2.0]),
            "rate": number_column([None, 1.5, None], "float64"),
            "text": text_column(names or ["a", None, "=b"]),
            "nothing": text_column([None, None, None]),
        }
    )


ROWS = [
    (2**62 + 1, 1, None, True, 0.5, None, "a", None),
    (-5, 2, 2**53 + 1, False, 1.5, 1.5, None, None),
    (0, 3, 7, True, -2.0, None, "=b", None),
]


def test_rows_are_plain_values():
    assert list(table().rows()) == ROWS
    assert len(table()) == 3
    assert list(Columns.joined([table(), table()]).rows()) == ROWS * 2


def test_joined_tables_keep_the_missing_values_of_any_part():
    complete = Columns({"ns": np.array([1, 2])})
    partial = Columns({"ns": mask_unknown([3, -1])})
    assert list(Columns.joined([complete, partial]).rows()) == [(1,), (2,), (3,), (None,)]
    assert list(Columns.joined([partial, complete]).rows()) == [(3,), (None,), (1,), (2,)]


def test_columns_are_immutable_and_of_equal_length():
    columns = table()
    for name in ("whole", "unknown"):
        assert not columns[name].flags.writeable
    with refused(ValueError, "[2, 3]"):
        Columns({"a": np.arange(2), "b": np.arange(3)})
    with refused(ValueError, "uint8"):
        Columns({"a": np.arange(2, dtype=np.uint8)})


def test_columns_do_not_copy_or_change_their_arrays():
    given_one = np.arange(4)
    columns = Columns({"a": given_one})
    given_one[0] = 9
    assert columns["a"][0] == 9


def test_a_dictionary_has_each_text_in_use_once():
    words = text_column_from_codes(np.array([3, 0, -1, 2], np.int32), ("x", "never", "x", "\ud800"))
    assert words.words == ("x", "?")
    assert words.texts().tolist() == ["?", "x", None, "x"]


def test_pandas_reads_every_value():
    pandas = pytest.importorskip("pandas")
    frame = table().to_pandas()
    rows = frame.itertuples(index=False)
    assert [tuple(None if pandas.isna(value) else value for value in row) for row in rows] == ROWS
    assert str(frame["unknown"].dtype) == "Int64"
    assert frame["unknown"].sum() == 2**53 + 8


def test_polars_reads_every_value():
    pytest.importorskip("polars")
    assert table().to_polars().rows() == ROWS
    assert table(*HOSTILE[:3]).to_polars()["text"].to_list() == list(HOSTILE[:3])


def test_arrow_reads_every_value():
    pytest.importorskip("pyarrow")
    arrow = table().to_arrow()
    arrow.validate(full=True)
    assert list(zip(*(column.to_pylist() for column in arrow.columns))) == ROWS


def test_duckdb_reads_every_value():
    duckdb = pytest.importorskip("duckdb", minversion="2.0")
    assert duckdb.connect().from_arrow(table()).fetchall() == ROWS


def test_imported_data_outlives_the_columns():
    duckdb = pytest.importorskip("duckdb", minversion="2.0")
    relation = duckdb.connect().from_arrow(Columns({"a": np.arange(100_000)}))
    gc.collect()
    assert relation.sum("a").fetchall() == [(100_000 * 99_999 // 2,)]


def test_an_unconsumed_stream_is_released():
    gc.collect()
    before = len(arrow_stream._kept_alive), len(arrow_stream._in_capsules)
    capsule = table().__arrow_c_stream__()
    assert "arrow_array_stream" in repr(capsule)
    assert len(arrow_stream._in_capsules) == before[1] + 1
    del capsule
    gc.collect()
    assert (len(arrow_stream._kept_alive), len(arrow_stream._in_capsules)) == before


def test_a_consumed_stream_is_released():
    duckdb = pytest.importorskip("duckdb", minversion="2.0")
    gc.collect()
    before = len(arrow_stream._kept_alive), len(arrow_stream._in_capsules)
    connection = duckdb.connect()
    assert len(connection.from_arrow(table()).fetchall()) == 3
    connection.close()
    gc.collect()
    assert (len(arrow_stream._kept_alive), len(arrow_stream._in_capsules)) == before


@pytest.mark.parametrize("method", MODULES)
def test_a_missing_library_is_named(method, monkeypatch):
    monkeypatch.setitem(sys.modules, MODULES[method], None)
    with refused(MissingLibrary, f"pip install {MODULES[method]}"):
        getattr(table(), method)()


def test_hostile_names_are_data_in_every_table(tmp_path):
    device = [(name, 7, 100 * i, 100 * i + 50, None) for i, name in enumerate(HOSTILE)]
    work = build_tables(measure(read([write(tmp_path, trace(device=device))])))["work"]
    assert values(work["name"]) == [name.encode("utf-8", "replace").decode() for name in HOSTILE]
