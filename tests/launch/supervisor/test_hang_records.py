"""Flight records between agents and the supervisor: each record is read once, and judged with the state of its rank."""

from __future__ import annotations

from tests.hangs.nccl_job import Job, Slot, dumps_of, encode
from trainyard.launch.supervisor.hang_records import StoredRecords, judge_hang, publish_record
from trainyard.launch.supervisor.messages import RankReport
from trainyard.launch.supervisor.signed_store import SignedStore


class CountingStore(SignedStore):
    """Keeps values in memory. `reads`: keys in the order in which they were read."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.reads: list[str] = []

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        self.reads.append(key)
        return self.values[key]


def report(rank: int, recorded_ns: int, state: str = "S") -> RankReport:
    return RankReport(rank=rank, pid=1, at=1, recorded_ns=recorded_ns, state=state)


def dump(kind: str, rank: int) -> bytes:
    """The dump of a rank of three, of which rank 1 has the fault."""
    return encode(dumps_of(Job(3, [(0, 1, 2)], [Slot("all_reduce", 0, 64)], kind, 1, 2, 0))[rank], "pickle")


def test_a_record_is_read_again_only_if_it_is_new() -> None:
    store = CountingStore()
    records = StoredRecords(store)
    assert records.read(0, [report(0, 0)]) == {}
    publish_record(store, 0, 0, dump("network", 0))
    first = records.read(0, [report(0, 5), report(1, 0)])
    assert list(first) == [0]
    assert records.read(0, [report(0, 5)])[0] is first[0]
    publish_record(store, 0, 0, b"damaged")
    assert records.read(0, [report(0, 6)])[0].operations == ()
    publish_record(store, 1, 0, dump("network", 0))
    assert records.read(1, [report(0, 6)])[0].operations == first[0].operations
    assert len(store.reads) == 3


def test_the_state_of_a_process_completes_its_record() -> None:
    store = CountingStore()
    for rank in (0, 2):
        publish_record(store, 0, rank, dump("stopped_process", rank))
    reports = [report(0, 5), report(1, 0, "T"), report(2, 5)]
    analysis = judge_hang(reports, StoredRecords(store).read(0, reports))
    assert analysis is not None
    assert (analysis.kind, analysis.ranks) == ("stopped_process", (1,))
    assert judge_hang(reports, {}) is None
