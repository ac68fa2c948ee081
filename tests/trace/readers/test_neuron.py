"""neuron-profile's JSON: which instructions and packets are work, and the numbers in the notes."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refused import refused
from tests.trace.readers import reader_fixtures as make
from trainyard.errors import BadFile
from trainyard.events import PYTHON
from trainyard.trace.measure import measure
from trainyard.trace.readers.interval_sets import measure_union_ns, merge_intervals, parts_outside
from trainyard.trace.readers.neuron import Neuron
from trainyard.trace.readers.neuron_opcodes import class_of_opcode, is_drain, is_wait, moves_data

OPCODES = ("MATMUL", "ACTIVATE", "EVENT_SEMAPHORE", "EVENT_SEMAPHORE_RANGE_CLEAR", "DRAIN", "TENSOR_LOAD", "NOP")
LABELS = ("Tensor", "TensorMatrix", "Vector")


def instruction(start, length, opcode="ACTIVATE", label="Scalar", **more):
    return {"timestamp": start, "duration": length, "label": label, "opcode": opcode, **more}


def packet(start, length, row="q-Q1-E0", **more):
    return {"timestamp": start, "duration": length, "subgroup": row, "aggregated": "no", "is_cc_dma": "no", **more}


def read_document(folder, instructions, packets=(), **more):
    path = folder / "n.json"
    path.write_text(json.dumps({"instruction": list(instructions), "dma": list(packets), **more}))
    (events,) = Neuron().read(path)
    return events


def accounts(events):
    """account -> ns"""
    totals: dict[str, int] = {}
    for entry in measure([events]).mean.entries:
        totals[str(entry.account)] = totals.get(str(entry.account), 0) + entry.ns
    return totals


TIMES = st.tuples(st.integers(0, 60), st.integers(0, 25))


@given(
    st.lists(st.tuples(TIMES, st.sampled_from(OPCODES), st.sampled_from(LABELS)), max_size=14),
    st.lists(st.tuples(TIMES, st.sampled_from(("q-Q1-E0", "Q0-E2"))), max_size=8),
)
@settings(max_examples=40)
def test_work_is_what_runs_and_does_not_wait(tmp_path_factory, instructions, packets):
    """Against a brute-force timeline, a byte for each ns."""
    is_active = np.zeros(200, bool)
    for (start, length), opcode, _ in instructions:
        is_active[start : start + length] |= opcode != "EVENT_SEMAPHORE"
    for (start, length), _ in packets:
        is_active[start : start + length] = True
    always = instruction(100, 3, "MATMUL", "Tensor")
    is_active[100:103] = True
    events = read_document(
        tmp_path_factory.getbasetemp(),
        [always, *(instruction(*times, opcode, label) for times, opcode, label in instructions)],
        [packet(*times, row) for times, row in packets],
    )
    totals = accounts(events)
    work_ns = sum(ns for account, ns in totals.items() if account.startswith(("compute", "copy")))
    assert work_ns == int(is_active.sum())
    # Idle time is the queue's, but between instructions without a duration its cause is not known.
    assert {account for account in totals if not account.startswith("launch_gap/")} <= {
        "compute/matmul", "compute/elementwise", "compute/other", "copy/d2d",
    }  # fmt: skip
    streams = {events.streams[stream] for stream in events.work.stream.tolist()}
    assert streams <= {*LABELS, "q-Q1-E0", "Q0-E2"}


def test_a_drain_owns_only_the_rest_of_what_it_waits_for(tmp_path):
    events = read_document(
        tmp_path,
        [
            instruction(0, 100, "MATMUL", "Tensor"),
            instruction(50, 80, "DRAIN", "Tensor"),
            instruction(110, 5, "MATMUL", "Tensor"),
            instruction(140, 10, "DRAIN", "Vector"),
        ],
    )
    # 100 to 110, 115 to 130, 140 to 150
    assert accounts(events) == {"compute/matmul": 105, "compute/other": 35, "launch_gap/queue": 10}


def test_engine_that_the_file_counts_as_idle_waits(tmp_path):
    instructions = [
        instruction(0, 10, "ACTIVATE"),
        instruction(10, 500, "NEW_WAIT_OF_A_LATER_CHIP"),
        instruction(520, 10, "ACTIVATE"),
        instruction(600, 7, "ACTIVATE"),  # after the engine's last listed interval: its opcode decides
        instruction(100, 40, "UNKNOWN", "Vector"),  # no list for this engine
    ]
    active = [{"engine": "scalar", "start_ts": 0, "end_ts": 10}, {"engine": "scalar", "start_ts": 520, "end_ts": 530}]
    events = read_document(tmp_path, instructions, active_time=active)
    assert accounts(events) == {"compute/elementwise": 27, "compute/other": 40, "launch_gap/queue": 540}
    assert accounts(read_document(tmp_path, instructions))["compute/other"] == 500


def test_a_transfer_counts_once_by_its_packets(tmp_path):
    whole = packet(0, 100, "q", aggregated="yes", id=7, transfer_size=96)
    parts = [
        packet(0, 30, packet_aggregation_id=7, transfer_size=48),
        packet(80, 20, packet_aggregation_id=7, transfer_size=48),
    ]
    alone = packet(200, 10, "q", aggregated="yes", id=8, transfer_size=4)
    events = read_document(tmp_path, [instruction(0, 0, "NOP")], [whole, *parts, alone])
    assert accounts(events)["copy/d2d"] == 60
    assert int(events.work.bytes[events.work.bytes > 0].sum()) == 100


def test_dma_of_a_collective_is_communication(tmp_path):
    events = read_document(tmp_path, [instruction(0, 10, "MATMUL", "Tensor")], [packet(5, 15, is_cc_dma="yes")])
    assert accounts(events) == {"compute/matmul": 10, "comm/other": 10}


@pytest.mark.parametrize(
    ("row", "stream"),
    [
        ("Q0-E3", "qGpSimdDynamic-Q0-E3"),  # all engines' queues 0 have one name
        ("qSync0-Q1-E0", "qSync0-Q1-E0"),
        ("Q14-E8", "qScalarTable-Q14-E8"),
        ("Q14-E9", "Q14-E9"),
        ("ring", "ring"),
        ("", "DMA"),
    ],
)
def test_queues_have_the_names_of_the_file(row, stream, tmp_path):
    queues = [
        {"q_name": name, "q_idx": number, "q_eng_idx": engine}
        for name, number, engine in (
            ("qGpSimdDynamic", 0, 15), ("qSync0", 1, 15), ("qScalarTable", 14, 8), ("qDveTable", 14, 11),
        )
    ]  # fmt: skip
    events = read_document(tmp_path, [instruction(0, 0, "NOP", "Sync")], [packet(0, 5, row)], dma_queues_info=queues)
    assert set(events.streams) == {"Sync", stream}


def test_dropped_instructions_and_packets_are_counted(tmp_path):
    summary = {
        "tensor_engine_instruction_count": 5,
        "sync_engine_instruction_count": 2,
        "static_dma_packet_count": 1234,
    }
    events = read_document(tmp_path, [instruction(0, 5), instruction(5, 5)], [packet(0, 1)], summary=[summary])
    notes = " ".join(events.notes)
    assert "5 instructions are missing" in notes
    assert "1,233 DMA packets are missing" in notes
    complete = read_document(tmp_path, [instruction(0, 5)], summary=[{"scalar_engine_instruction_count": 1}])
    assert complete.notes == ()


def test_a_total_that_differs_from_the_file_is_a_note(tmp_path):
    def notes(seconds):
        return read_document(tmp_path, [instruction(0, 1000)], summary=[{"total_active_time": seconds}]).notes

    assert notes(1.0e-6) == notes(1.005e-6) == ()
    for stated in (2e-6, 0, 1e300, -1e300):
        (note,) = notes(stated)
        assert "1,000 ns" in note


@pytest.mark.parametrize(
    ("attributes", "frame"),
    [
        ('[{"op_type":"dot","source_file":"model.py","source_line":"12"}]', "model.py(12): dot"),
        ('[{"op_type":"","source_file":"","source_line":"0"}, {"source_file":"a/b.py","source_line":7}]', "a/b.py(7)"),
        ('[{"op_type":"dot","source_file":"","source_line":"0"}]', None),
        ("[5]", None),
        ("not JSON", None),
        (None, None),
    ],
)
def test_source_lines_are_python_frames(attributes, frame, tmp_path):
    events = read_document(tmp_path, [instruction(0, 5, hlo_attrs=attributes, layer="block.1")])
    frames = [events.names[name] for name in events.host.name[events.host.what == PYTHON].tolist()]
    assert frames == ([frame] if frame else [])
    assert accounts(events) == {"compute/elementwise": 5}


def test_a_profile_of_waits_is_refused(tmp_path):
    path = tmp_path / "n.json"
    path.write_text(json.dumps({"instruction": [instruction(0, 50, "EVENT_SEMAPHORE")] * 3}))
    with refused(BadFile, path, 3):
        Neuron().read(path)


def test_warnings_of_the_profiler_are_notes_once(tmp_path):
    warnings = [{"message": "dropped 17 events"}, {"message": "dropped 17 events"}, {"category": "x"}, 5]
    events = read_document(tmp_path, [instruction(0, 5)], warnings=warnings)
    assert [note for note in events.notes if "dropped 17 events" in note] == ["neuron-profile warns: dropped 17 events"]


def test_unreadable_instructions_are_counted_once(tmp_path):
    bad = [instruction(0, -5), instruction(2**63, 1), {"timestamp": 3}, "x", None]
    events = read_document(tmp_path, [instruction(0, 5), *bad])
    assert f"{len(bad)} events with an unreadable or negative time were left out." in events.notes
    assert accounts(events) == {"compute/elementwise": 5}


def test_sections_may_be_null(tmp_path):
    empty = dict.fromkeys(("summary", "dma_queues_info", "active_time", "warnings"))
    path = tmp_path / "n.json"
    path.write_text(json.dumps({"instruction": [instruction(0, 5)], "dma": None, **empty}))
    (events,) = Neuron().read(path)
    assert (events.device, events.notes) == ("NeuronCore", ())


def test_core_and_instance_name_the_device(tmp_path):
    path = tmp_path / "n.json"
    document = make.neuron_step()
    document["summary"][0]["instance_type"] = "trn2.48xlarge"
    path.write_text(json.dumps(document))
    (events,) = Neuron().read(path)
    assert (events.device_index, events.device) == (1, "NeuronCore of trn2.48xlarge")


@pytest.mark.parametrize(
    ("opcode", "wait", "drain", "moves", "op_class"),
    [
        ("EVENT_SEMAPHORE", True, False, False, None),
        ("EVENT_SEMAPHORE_RANGE_CLEAR", False, False, False, None),
        ("DRAIN", False, True, False, None),
        ("MATMUL", False, False, False, "matmul"),
        ("LDWEIGHTS", False, False, False, "matmul"),
        ("ACTIVATE_QUANTIZE", False, False, False, "elementwise"),
        ("TENSOR_TENSOR", False, False, False, "elementwise"),
        ("TENSOR_REDUCE", False, False, False, "reduction"),
        ("BN_STATS", False, False, False, "norm"),
        ("TENSOR_LOAD", False, False, True, None),
        ("DMA_DIRECT2D", False, False, True, None),
        ("ACT_TABLE_LOAD", False, False, True, None),
        ("COMPARE_BRANCH", False, False, False, None),
        ("SET_ORDERING_MODE", False, False, False, None),
        ("", False, False, False, None),
    ],
)
def test_opcodes(opcode, wait, drain, moves, op_class):
    assert (is_wait(opcode), is_drain(opcode), moves_data(opcode), class_of_opcode(opcode)) == (
        wait, drain, moves, op_class,
    )  # fmt: skip


def test_transposition_on_the_tensor_engine_is_no_product():
    assert class_of_opcode("MATMUL", "TRANSPOSE") == "elementwise"
    assert class_of_opcode("MATMUL", "REGULAR") == "matmul"


@given(st.lists(TIMES, max_size=8), TIMES)
def test_interval_sets_equal_a_timeline(intervals, own):
    covered = np.zeros(100, bool)
    for start, length in intervals:
        covered[start : start + length] = True
    pairs = [(start, start + length) for start, length in intervals]
    assert measure_union_ns(pairs) == int(covered.sum())
    start, stop = own[0], own[0] + own[1]
    outside = np.zeros(100, bool)
    for begin, end in parts_outside(start, stop, merge_intervals(pairs)):
        assert begin < end
        outside[begin:end] = True
    expected = np.zeros(100, bool)
    expected[start:stop] = True
    assert (outside == (expected & ~covered)).all()
