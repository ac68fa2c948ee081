"""rocprofv3's JSON beyond the golden step: every API's calls, directions of copies, missing and unreadable records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refused import refused
from tests.trace.readers import reader_fixtures as make
from trainyard.errors import BadFile
from trainyard.events import CALL, NOTE, OP
from trainyard.trace.measure import measure
from trainyard.trace.readers.rocprof import Rocprof


def read_process(tmp_path, process):
    (events,) = Rocprof().read(make.write_rocprof(tmp_path / "r.json", process))
    return events


def host_rows(events, kind):
    return [events.names[name] for name in events.host.name[events.host.what == kind].tolist()]


def numbered(*ids):
    """Dispatches 10 ns long, 20 ns apart, with these dispatch ids."""
    records = [make.dispatch(1, 20 * index, 20 * index + 10, index + 1) for index in range(len(ids))]
    for record, ident in zip(records, ids):
        record["dispatch_info"]["dispatch_id"] = ident
    return records


def test_calls_of_every_traced_api_are_host_spans(tmp_path):
    process = make.rocprof_step()
    process["strings"]["buffer_records"] = [
        *make.KINDS,
        {"kind": "HSA_CORE_API", "operations": ["hsa_signal_store_screlease"]},
        {"kind": "ROCDECODE_API", "operations": ["rocDecCreateDecoder"]},
    ]
    process["buffer_records"] |= {
        "hsa_api": [make.api(4, 0, 916, 920, 21)],
        "rocdecode_api": [make.api(5, 0, 901, 902, 22)],
    }
    events = read_process(tmp_path, process)
    calls = host_rows(events, CALL)
    assert {"hsa_signal_store_screlease", "rocDecCreateDecoder", "ncclAllReduce"} <= set(calls)
    assert calls.count("hipLaunchKernel") == 3


def test_each_kernel_refers_to_the_call_of_its_correlation_id(tmp_path):
    events = read_process(tmp_path, make.rocprof_step())
    launches = {
        events.names[name]: int(events.host.start[call])
        for name, call in zip(events.work.name.tolist(), events.work.call.tolist())
    }
    assert launches == {
        "Cijk_Ailk_Bljk_BBS": 915,
        "ncclDevKernel_Generic": 950,
        "Memcpy HtoD": 961,
        "vectorized_elementwise_kernel": 1310,
    }


def test_correlation_id_zero_is_none(tmp_path):
    process = make.rocprof_process(
        hip_api=[make.api(1, 0, 1, 2, 0)], kernel_dispatch=[make.dispatch(1, 10, 20, 0), make.dispatch(3, 30, 40, 0)]
    )
    assert read_process(tmp_path, process).work.call.tolist() == [-1, -1]


def test_roctx_ranges_are_steps_ops_and_annotations(tmp_path):
    process = make.rocprof_step()
    process["strings"]["marker_api"].append({"key": 3, "value": "evaluate"})
    process["buffer_records"]["marker_api"].append(make.api(3, 0, 1400, 1450, 3))
    events = read_process(tmp_path, process)
    assert [(mark.label, mark.start, mark.stop) for mark in events.marks] == [("3", 900, 1500)]
    assert "evaluate" in host_rows(events, NOTE)
    assert "aten::mm" in host_rows(events, OP)


@pytest.mark.parametrize(
    ("operation", "source", "target", "name"),
    [
        ("HOST_TO_DEVICE", 1, 2, "Memcpy HtoD"),
        ("DEVICE_TO_HOST", 1, 2, "Memcpy DtoH"),
        ("DEVICE_TO_DEVICE", 1, 2, "Memcpy DtoD"),
        ("HOST_TO_HOST", 1, 2, "Memcpy HtoH"),
        ("NONE", 1, 2, "Memcpy DtoD"),
        ("HOST_TO_DEVICE", make.GPU, make.CPU, "Memcpy DtoH"),  # agents that the file lists decide
    ],
)
def test_direction_of_a_copy(operation, source, target, name, tmp_path):
    kinds = [
        *make.KINDS,
        {"kind": "X", "operations": []},
        {"kind": "MEMORY_COPY", "operations": ["", f"MEMORY_COPY_{operation}"]},
    ]
    process = make.rocprof_process(memory_copy=[make.copied(10, 20, 1, source, target, 64)])
    process["strings"]["buffer_records"] = kinds
    events = read_process(tmp_path, process)
    assert [events.names[row] for row in events.work.name.tolist()] == [name]
    assert events.work.bytes.tolist() == [64]


@given(st.sets(st.integers(0, 60), min_size=1, max_size=40))
def test_missing_dispatches_are_counted_between_first_and_last(tmp_path_factory, ids):
    folder = tmp_path_factory.getbasetemp()
    events = read_process(folder, make.rocprof_process(kernel_dispatch=numbered(*sorted(ids))))
    missing = len(set(range(min(ids), max(ids))) - ids)
    assert any(f"{missing:,} kernels are missing" in note for note in events.notes) == bool(missing)


def test_absurd_dispatch_ids_are_not_counted(tmp_path):
    events = read_process(tmp_path, make.rocprof_process(kernel_dispatch=numbered(1, 10**30, -5, 2)))
    assert not any("missing" in note for note in events.notes)


def test_records_without_a_time_do_not_stretch_the_window(tmp_path):
    process = make.rocprof_process(kernel_dispatch=[make.dispatch(1, 0, 0, 1), make.dispatch(1, 10**12, 10**12 + 5, 2)])
    events = read_process(tmp_path, process)
    assert measure([events]).mean.wall_ns == 5
    assert "1 events with an unreadable or negative time were left out." in events.notes


def test_a_file_without_calls_says_how_to_record_them(tmp_path):
    silent = read_process(tmp_path, make.rocprof_process(kernel_dispatch=numbered(1)))
    assert any("rocprofv3 --runtime-trace" in note for note in silent.notes)
    assert not any("--runtime-trace" in note for note in read_process(tmp_path, make.rocprof_step()).notes)


def test_a_file_of_calls_alone_is_refused(tmp_path):
    path = make.write_rocprof(tmp_path / "r.json", make.rocprof_process(hip_api=[make.api(1, 0, 0, 5, 1)]))
    with refused(BadFile, path, "--kernel-trace --memory-copy-trace"):
        Rocprof().read(path)
