"""Memory from the allocations of a profile: against a replay event by event, and by its place in the step."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory_traces import KERNEL, MIB, STEP, memory_event
from tests.trace_maker import trace, write
from trainyard.events import MemoryEvents
from trainyard.trace.measure import measure, read
from trainyard.trace.memory.categories import KINDS
from trainyard.trace.memory.measure_profile import BEFORE_RECORDING, measure_profiled_memory
from trainyard.trace.readers.kineto.native import library
from trainyard.trace.readers.kineto.reader import Kineto


def measured(folder, memory, host=STEP, name="trace.json"):
    document = trace(device=KERNEL, host=host, marks=[("1", 500, 10_000)])
    document["traceEvents"][3:3] = memory
    path = write(folder, document, name)
    return measure(read([path]))


def test_categories_and_holders_follow_from_the_step(tmp_path):
    base = 100 * MIB
    rows = [
        (1200, 8, 1), (1300, 2, 2), (1400, -2, 2), (5300, 4, 3), (8700, 16, 4), (5400, -8, 1),
    ]  # fmt: skip
    total, events = base, []
    for time, mib, address in sorted(rows):
        total += mib * MIB
        events.append(memory_event(time, mib * MIB, address, total))
    memory = measure_profiled_memory(measured(tmp_path, events).ranks[0])
    assert memory.allocated.tolist() == [(100 + mib) * MIB for mib in (0, 8, 10, 8, 12, 4, 20)]
    held = {(holder.category, holder.operation): (holder.size // MIB, holder.count) for holder in memory.holders}
    assert held == {
        ("gradient", "AddmmBackward0"): (4, 1),
        ("optimizer_state", "aten::_foreach_add_"): (16, 1),
        ("unknown", BEFORE_RECORDING): (100, 0),
    }
    assert memory.by_kind[KINDS.index("activation")].tolist() == [0, 8 * MIB, 8 * MIB, 8 * MIB, 8 * MIB, 0, 0]
    assert memory.by_kind[KINDS.index("temporary")].tolist() == [0, 0, 2 * MIB, 0, 0, 0, 0]
    assert memory.mismatches == 0
    assert memory.reserved.tolist()[1:] == [2 * 1 * int(value) + MIB for value in memory.allocated[1:]]


def test_without_addresses_only_the_total_is_known(tmp_path):
    events = [memory_event(1200, 8), memory_event(1300, -24), memory_event(1400, 40)]
    memory = measure_profiled_memory(measured(tmp_path, events).ranks[0])
    assert memory.allocated.tolist() == [16, 24, 0, 40]
    assert memory.holders == ()
    assert len(memory.reserved) == 0


def test_memory_of_other_devices_and_files_without_any_are_left_out(tmp_path):
    events = [memory_event(1200, 8, 1, 8, device=3), memory_event(1250, 9, 1, 9, device=-1, device_type=0)]
    memory = measure_profiled_memory(measured(tmp_path, [*events, memory_event(1300, 5, 7, 5)]).ranks[0])
    assert memory.allocated.tolist() == [0, 5]
    assert measure_profiled_memory(measured(tmp_path, [], name="none.json").ranks[0]) is None
    # The device's number in memory events may differ from that of its kernels.
    memory = measure_profiled_memory(measured(tmp_path, events, name="other.json").ranks[0])
    assert (memory.device, memory.allocated.tolist()) == (3, [0, 8])


def test_totals_that_differ_are_counted(tmp_path):
    events = [memory_event(1200 + 10 * at, 8, at, 8 * (at + 1) + 100 * (at == 3)) for at in range(9)]
    memory = measure_profiled_memory(measured(tmp_path, events).ranks[0])
    assert (memory.mismatches, memory.mismatch_bytes) == (1, 100)


def test_memory_without_a_free_ends_when_its_address_is_allocated_again(tmp_path):
    # Totals that the profiler sums up itself are too high from then on.
    rows = [(8, 1, 8), (4, 2, 12), (6, 1, 18), (-6, 1, 12)]
    events = [memory_event(1200 + 10 * at, *row) for at, row in enumerate(rows)]
    memory = measure_profiled_memory(measured(tmp_path, events).ranks[0])
    assert memory.allocated.tolist() == [0, 8, 12, 10, 4]
    assert (memory.missing_frees, memory.mismatches, memory.mismatch_bytes) == (1, 2, 8)


SIZES = st.integers(1, 50)


@st.composite
def histories(draw):
    """(size, address) of the events of an allocator that reuses addresses, and the bytes allocated before them."""
    earlier = {100 + at: draw(SIZES) for at in range(draw(st.integers(0, 3)))}
    before, live, events = sum(earlier.values()), dict(earlier), []
    for _ in range(draw(st.integers(1, 25))):
        free = [address for address in range(6) if address not in live]
        if live and (not free or draw(st.booleans())):
            address = draw(st.sampled_from(sorted(live)))
            events.append((-live.pop(address), address))
        else:
            address, size = draw(st.sampled_from(free)), draw(SIZES)
            live[address] = size
            events.append((size, address))
    return before, events


@pytest.fixture(scope="module")
def bare_rank(tmp_path_factory):
    return measured(tmp_path_factory.mktemp("bare"), [memory_event(1200, 8, 1, 8)]).ranks[0]


@given(histories())
def test_a_replay_event_by_event_agrees(bare_rank, history):
    before, history_events = history
    sizes, addresses = (np.array(column, np.int64) for column in zip(*history_events))
    count = len(sizes)
    memory_events = MemoryEvents(
        time=1200 + 10 * np.arange(count), size=sizes, address=addresses, total=before + np.cumsum(sizes),
        reserved=np.full(count, -1), device=np.zeros(count, np.int32),
        thread=np.full(count, bare_rank.events.main, np.int32),
    )  # fmt: skip
    rank = bare_rank._replace(events=msgspec.structs.replace(bare_rank.events, memory=memory_events))
    memory = measure_profiled_memory(rank)
    allocated, live, course = before, {}, [(before, {})]
    for size, address in history_events:
        allocated += size
        live = {**live, address: size} if size > 0 else {key: value for key, value in live.items() if key != address}
        course.append((allocated, live))
    assert memory.allocated.tolist() == [total for total, _ in course]
    assert (memory.by_kind >= 0).all()
    peak_bytes, alive = course[memory.peak]
    assert peak_bytes == max(total for total, _ in course)
    assert sum(holder.size for holder in memory.holders) == peak_bytes
    known = [holder for holder in memory.holders if holder.operation != BEFORE_RECORDING]
    assert (sum(holder.size for holder in known), sum(holder.count for holder in known)) == (
        sum(alive.values()), len(alive),
    )  # fmt: skip


@pytest.mark.skipif(library() is None, reason="the compiled scanner was not built")
def test_both_scanners_read_the_same_memory_events(tmp_path, monkeypatch):
    document = trace(device=KERNEL, host=STEP, marks=[("1", 500, 10_000)])
    hostile = [
        memory_event(1200, 8, 1, 8), {**memory_event(1100, 8, 2, 16), "tid": "other thread"},
        memory_event(1300, 2**60, 3, 4), {**memory_event(1300, 5, 4, 5), "ts": "NaN"},
        {**memory_event(1400, 5, 4, 5), "args": {"Bytes": 3, "Addr": -5, "Total Allocated": "many"}},
        {**memory_event(1500, 5, 4, 5), "name": "[memory] "},
    ]  # fmt: skip
    document["traceEvents"][2:2] = hostile
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document).replace("[memory]", "[mem\\u006fry]", 1))
    (compiled,) = Kineto().read(path)
    monkeypatch.setenv("TRAINYARD_PURE", "1")
    (python,) = Kineto().read(path)
    for name in MemoryEvents.__struct_fields__:
        assert getattr(compiled.memory, name).tolist() == getattr(python.memory, name).tolist(), name
    assert compiled.memory.time.tolist() == [1100, 1200]
    assert compiled.memory.size.tolist() == [8, 8]
