"""The part that a node's ranks recorded, and the end of a job on each node, without starting ranks."""

import msgspec
import pytest

from tests.run.parts.part_maker import make_part
from tests.run.parts.test_join import session
from trainyard.run.parts import network
from trainyard.run.parts.end_node import NodeRun, end_node
from trainyard.run.parts.node_part import build_part, read_node, shares
from trainyard.run.parts.part import ClockStamp, Part, joined_run_id, read_part
from trainyard.run.parts.rank_record import ClockBound, RankRecord, write_record
from trainyard.store.store import Store

CLOCK = ClockStamp(wall_ns=1, monotonic_ns=2)


def record(rank, node="node-a", world=4, job_id="job.1", **more):
    return RankRecord(
        job_id=job_id, agreed_by="process group", rank=rank, world_size=world, node=node, clock=CLOCK, **more
    )


@pytest.fixture
def run(tmp_path):
    store = tmp_path / "store"
    make_part(store, "aaaaaaaa", "node-a", (0, 1))
    return Store(store).load("aaaaaaaa")


def test_part_has_the_ranks_that_were_recorded_here(run):
    part = build_part(run, [record(0, hosts={0: "node-a", 2: "node-b"}), record(1)])
    assert (part.job_id, part.node, part.ranks, part.world_size, part.run) == ("job.1", "node-a", (0, 1), 4, run.id)
    assert part.hosts == {0: "node-a", 1: "node-a", 2: "node-b"}
    assert part.clocks == {0: CLOCK, 1: CLOCK}


@pytest.mark.parametrize(
    ("records", "ranks"),
    [
        ([], None),
        ([record(0, world=2), record(1, world=2)], None),
        ([record(0, world=2), record(1, "node-b", world=2)], (0, 1)),  # two nodes that share a folder
        ([record(0), record(3, job_id="job.2")], (0,)),
    ],
)
def test_a_job_on_one_node_has_no_part(run, records, ranks):
    part = build_part(run, records)
    assert (part and part.ranks) == ranks


def test_records_are_removed_once_they_are_read(tmp_path, run):
    bound = ClockBound(reference=0, low_ns=-5, high_ns=5, at_ns=9, rounds=3)
    written = [record(0, collector="head 1 secret"), record(1, bound=bound)]
    for each in written:
        write_record(tmp_path, each)
    part, records = read_node(tmp_path, run)
    assert (part.ranks, records) == ((0, 1), written)
    assert not (tmp_path / "job").exists()


def test_shares_list_every_rank_of_the_job_once():
    parts = [
        Part(job_id="j", node="b", ranks=(2, 5), world_size=8, run="bbbbbbbb"),
        Part(job_id="j", node="a", ranks=(0, 1), world_size=8, run="aaaaaaaa", hosts={1: "a2", 3: "c", 4: "c", 7: "d"}),
    ]
    assert [(share.node, share.ranks, share.missing) for share in shares(parts)] == [
        ("a", (0,), False), ("a2", (1,), False), ("b", (2, 5), False),
        ("c", (3, 4), True), ("", (6,), True), ("d", (7,), True),
    ]  # fmt: skip


def node_run(tmp_path, folder, ranks, failure="", **more):
    opened = session(tmp_path, **more)
    stored = opened.store.load(folder.name)
    part = msgspec.structs.replace(read_part(folder), ranks=ranks)
    return NodeRun(stored, part, [record(rank) for rank in ranks], folder, failure), opened


def test_node_without_a_way_to_send_keeps_its_part(tmp_path):
    folder = make_part(tmp_path / "store", "bbbbbbbb", "node-b", (2, 3), profiles=True)
    node, opened = node_run(tmp_path, folder, (2, 3))
    run = end_node(node, opened, network.Receiver())
    assert (run.id, run.missing_ranks, run.state) == ("bbbbbbbb", (0, 1), "complete")
    assert run.ledgers
    assert any("trainyard runs join" in message for message in opened.messages)


def test_unwritable_shared_folder_keeps_the_part(tmp_path):
    folder = make_part(tmp_path / "store", "bbbbbbbb", "node-b", (2, 3))
    (tmp_path / "file").write_text("in the way")
    node, opened = node_run(tmp_path, folder, (2, 3), collect=str(tmp_path / "file"))
    assert end_node(node, opened, network.Receiver()).missing_ranks == (0, 1)
    assert any(str(tmp_path / "file") in message for message in opened.messages)


def test_ranks_of_several_nodes_in_one_folder_are_one_run(tmp_path):
    folder = make_part(tmp_path / "store", "aaaaaaaa", "node-a", (0, 1, 2, 3), profiles=True, late=3)
    node, opened = node_run(tmp_path, folder, (0, 1, 2, 3))
    run = end_node(node, opened, network.Receiver())
    assert (run.id, run.missing_ranks) == (joined_run_id("job.1"), ())
    assert [path.name for path in opened.store.runs.iterdir() if path.name[0] != "."] == [run.id]


def test_failed_node_of_rank_zero_joins_what_there_is(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINYARD_COLLECT_S", "0")
    folder = make_part(tmp_path / "store", "aaaaaaaa", "node-a", (0, 1))
    node, opened = node_run(tmp_path, folder, (0, 1), failure="it ended with exit code 7.")
    run = end_node(node, opened, network.Receiver())
    assert (run.state, run.missing_ranks) == ("failed", (2, 3))
    assert "exit code 7" in run.failure
