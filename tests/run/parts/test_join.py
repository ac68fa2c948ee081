"""Joining parts: one run over all ranks, the missing ones listed, and bad sets of parts refused without a trace."""

from pathlib import Path

import pytest

from tests.run.parts.part_maker import make_part
from trainyard.errors import BadFile, BadInput
from trainyard.report.view.build_analysis import analyse_run
from trainyard.run.parts import archive
from trainyard.run.parts.join import join
from trainyard.run.parts.part import joined_run_id, read_part
from trainyard.run.session import Session
from trainyard.store.store import Store
from trainyard.trace.measure import measure_files

A, B = (0, 1), (2, 3)
FAR_NS = 1000 * 10**9


def session(tmp_path, **more):
    """A session that books with the real engine and keeps its messages in `.messages`."""
    messages: list[str] = []

    def book(paths):
        measured.append(measure_files(paths))
        return measured[-1].ledgers

    measured: list = []
    opened = Session(Store(tmp_path / "store", say=messages.append), book, say=messages.append, **more)
    object.__setattr__(opened, "messages", messages)
    object.__setattr__(opened, "measured", measured)
    return opened


def two_parts(tmp_path, **changes_of_b):
    a = make_part(tmp_path / "a", "aaaaaaaa", "node-a", A, profiles=True, late=3)
    b = make_part(
        tmp_path / "b", "bbbbbbbb", "node-b", B, **{"profiles": True, "late": 3, "clock_ns": FAR_NS, **changes_of_b}
    )
    return a, b


def test_parts_become_one_run_that_names_the_late_rank(tmp_path):
    parts = two_parts(tmp_path)
    opened = session(tmp_path)
    run = join(parts, opened)
    assert (run.id, run.state, run.job_id) == (joined_run_id("job.1"), "complete", "job.1")
    assert {sample.rank for sample in run.samples} == {0, 1, 2, 3}
    assert run.missing_ranks == ()
    assert [(share.node, share.ranks) for share in run.nodes] == [("node-a", A), ("node-b", B)]
    (measured,) = opened.measured
    assert measured.alignment.aligned == "collectives"
    assert max(measured.mean.late, key=measured.mean.late.get) == 3
    assert measured.mean.late[3] == 3 * 300_000
    assert run.job.layout.dp_replicate == 4
    assert run.job.recipe.tokens_per_step == 32
    assert Store(tmp_path / "store").load(run.id) == run


def test_archives_and_folders_join_to_the_same_run(tmp_path):
    a, b = two_parts(tmp_path)
    (tmp_path / "b.part").write_bytes(archive.pack(b, B))
    first = join([a, b], session(tmp_path / "one"))
    other = join([tmp_path / "b.part", a], session(tmp_path / "other"))
    assert first == other


def test_unreduced_traces_are_reduced_when_parts_are_joined(tmp_path):
    from trainyard.trace.reduce import reduce_trace

    def reduce(trace, profile, record):
        reduce_trace(trace, profile, host_name=record.node)

    a, b = two_parts(tmp_path)
    expected = join([a, b], session(tmp_path / "one"))
    for path in (b / "profiles").iterdir():
        path.unlink()
    assert join([a, b], session(tmp_path / "other", reduce=reduce)).ledgers == expected.ledgers


def test_missing_ranks_are_listed_with_their_node(tmp_path):
    a = make_part(tmp_path / "a", "aaaaaaaa", "node-a", A, hosts={0: "node-a", 1: "node-a", 2: "node-b"})
    run = join([a], session(tmp_path))
    assert run.missing_ranks == B
    assert {(share.node, share.ranks, share.missing) for share in run.nodes} == {
        ("node-a", A, False), ("", (3,), True), ("node-b", (2,), True)
    }  # fmt: skip
    shown = " ".join(analyse_run(run).warnings)
    assert "2 of 4 ranks are missing" in shown
    assert "2 on node-b" in shown
    (row,) = Store(tmp_path / "store").rows()
    assert row.layout.endswith("(2 of 4 ranks)")


def test_a_late_part_is_added_to_the_joined_run(tmp_path):
    a, b = two_parts(tmp_path)
    opened = session(tmp_path)
    partial = join([a], opened)
    opened.store.tag(partial.id, "first")
    joined_folder = opened.store.runs / partial.id
    with pytest.raises(BadInput):
        join([b], opened)  # it would lose ranks 0 and 1
    assert opened.store.load(partial.id).missing_ranks == B
    whole = join([joined_folder, b], opened)
    assert whole.missing_ranks == ()
    assert whole == join([a, b], session(tmp_path / "other"))
    assert opened.store.find("first").name == whole.id
    assert [path.name for path in opened.store.runs.iterdir()] == [whole.id]
    assert not list(opened.store.root.glob(".join-*"))


def test_own_part_is_replaced_by_the_joined_run(tmp_path):
    opened = session(tmp_path)
    a = make_part(tmp_path / "store", "aaaaaaaa", "node-a", A, profiles=True)
    b = make_part(tmp_path / "b", "bbbbbbbb", "node-b", B, profiles=True)
    run = join([a, b], opened, absorb=a)
    assert [path.name for path in opened.store.runs.iterdir() if not path.name.startswith(".")] == [run.id]
    traces = opened.store.runs / run.id / "traces"
    assert sorted(path.name for path in traces.iterdir()) == ["rank0.json", "rank1.json"]


def test_a_part_that_is_given_twice_counts_once(tmp_path):
    a, b = two_parts(tmp_path)
    opened = session(tmp_path)
    (tmp_path / "copy.part").write_bytes(archive.pack(b, B))
    run = join([a, b, tmp_path / "copy.part", a], opened)
    assert {sample.rank for sample in run.samples} == {0, 1, 2, 3}
    assert sum("same part" in message for message in opened.messages) == 2


def test_a_failed_part_makes_a_failed_run(tmp_path):
    a = make_part(tmp_path / "a", "aaaaaaaa", "node-a", A)
    b = make_part(tmp_path / "b", "bbbbbbbb", "node-b", B, state="failed")
    run = join([a, b], session(tmp_path))
    assert run.state == "failed"
    assert "node-b" in run.failure


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"code": {"sha": "1" * 40, "dirty": "yes"}}, "other code"),
        ({"trainyard": "0.0.1"}, "0.0.1"),
        ({"started": "2026-01-01T01:00:00+00:00"}, "apart"),
    ],
)
def test_different_parts_are_joined_with_a_note(tmp_path, change, note):
    a = make_part(tmp_path / "a", "aaaaaaaa", "node-a", A)
    b = make_part(tmp_path / "b", "bbbbbbbb", "node-b", B, **change)
    run = join([a, b], session(tmp_path))
    assert len(run.part_notes) == 1
    assert note in run.part_notes[0]
    assert run.part_notes[0] in analyse_run(run).warnings


@pytest.mark.parametrize(
    "changes_of_b", [{"job_id": "job.2"}, {"world": 8}, {"ranks": (1, 2)}], ids=["other job", "other size", "same rank"]
)
def test_parts_of_two_jobs_are_refused(tmp_path, changes_of_b):
    a = make_part(tmp_path / "a", "aaaaaaaa", "node-a", A)
    ranks = changes_of_b.pop("ranks", B)
    b = make_part(tmp_path / "b", "bbbbbbbb", "node-b", ranks, **changes_of_b)
    with pytest.raises(BadInput):
        join([a, b], session(tmp_path))
    assert not (tmp_path / "store").exists() or not list((tmp_path / "store").rglob("run.json"))


def test_damaged_parts_are_refused_and_leave_nothing(tmp_path):
    a, b = two_parts(tmp_path)
    (b / "samples" / "rank2.jsonl").write_text('{"step": "x"}\n')
    with pytest.raises(BadFile):
        join([a, b], session(tmp_path))
    (b / "samples" / "rank2.jsonl").write_text(
        '{"step":0,"rank":7,"repeat":0,"wall_ns":1,"tokens":0,"memory_bytes":1}\n'
    )
    with pytest.raises(BadFile):
        join([a, b], session(tmp_path))
    assert not list((tmp_path / "store").rglob("run.json"))


def test_folders_without_a_part_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(BadInput):
            join([Path(path)], session(tmp_path))
    with pytest.raises(BadInput):
        join([], session(tmp_path))


def test_joined_run_is_a_part_of_all_its_ranks(tmp_path):
    opened = session(tmp_path)
    run = join(two_parts(tmp_path), opened)
    part = read_part(opened.store.runs / run.id)
    assert (part.ranks, part.world_size) == ((0, 1, 2, 3), 4)
    assert part.hosts == {0: "node-a", 1: "node-a", 2: "node-b", 3: "node-b"}
