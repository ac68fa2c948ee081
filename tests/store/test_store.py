"""The store: folders are the truth, written whole or not at all; the index only follows them."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refused import refused
from tests.stored import JOB, JOB_TEXT, LEDGER, samples, stored
from trainyard.errors import BadFile, BadInput, DiskFull, PlaceUnwritable, UnknownName, WrongRunState
from trainyard.machine import Claim
from trainyard.printable import encode_json
from trainyard.record import Run
from trainyard.report.view.run_result import result_of_run
from trainyard.store import disk_space, tags
from trainyard.store import run_folder as folder
from trainyard.store.index.index_tables import TABLE
from trainyard.store.run_damage import missing_evidence
from trainyard.store.run_summary import summarise
from trainyard.store.store import Store, default_root, new_id
from trainyard.store.unfinished_writes import ABANDONED_AFTER_S, writer


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, reports: list[str]) -> Store:
    return Store(tmp_path / "store", say=reports.append)


def test_a_run_comes_back_as_it_was_stored(store: Store, reports: list[str]) -> None:
    run = stored(store)
    assert store.load(run.id) == run
    assert (store.runs / run.id / "job.toml").read_text() == JOB_TEXT
    assert len(run.digest) == 64
    assert not reports


def test_a_begun_run_is_incomplete_and_keeps_its_samples(store: Store) -> None:
    run = Run(id=new_id(), job=JOB, started="2025-01-01T00:00:00Z")
    run_dir = store.begin(run, JOB_TEXT)
    lines = [msgspec.json.encode(sample) for sample in samples()[:3]]
    (run_dir / "samples" / "rank0.jsonl").write_bytes(b"\n".join(lines) + b'\n{"step": 3, "ra')
    loaded = store.load(run.id)
    assert loaded.state == "incomplete"
    assert loaded.samples == samples()[:3]


def test_a_bad_line_that_is_not_the_last_is_refused_with_its_number(store: Store) -> None:
    run = stored(store)
    path = store.runs / run.id / "samples" / "rank0.jsonl"
    path.write_bytes(b"{}\n" + path.read_bytes())
    with refused(BadFile, f"{path}:1", "step"):
        store.load(run.id)


@given(cut=st.integers(min_value=0))
@settings(max_examples=40, deadline=None)
def test_samples_cut_anywhere_give_the_whole_lines_before_the_cut(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    (run_dir / "samples").mkdir()
    data = b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples()[:6])
    cut %= len(data) + 1
    (run_dir / "samples" / "rank0.jsonl").write_bytes(data[:cut])
    read = folder.read_samples(run_dir)
    whole = data[:cut].count(b"\n")
    assert read[:whole] == list(samples()[:whole])
    # A last line that lost nothing but its newline is whole too.
    assert len(read) == whole + (data[cut : cut + 1] == b"\n")


def test_a_loss_that_is_no_number_is_kept_as_such(store: Store) -> None:
    run = Run(id=new_id(), job=JOB, started="2025-01-01T00:00:00Z")
    store.begin(run, JOB_TEXT)
    store.finish(msgspec.structs.replace(run, state="complete", samples=samples(float("nan"))))
    losses = [sample.loss for sample in store.load(run.id).samples]
    assert len(losses) == 12
    assert all(math.isnan(loss) for loss in losses)
    result = json.loads(encode_json(result_of_run(store.load(run.id), store.runs / run.id)))
    figures = result["summary"]
    assert figures["loss_first"] is None


@pytest.mark.parametrize("name", ["job.toml", "samples/rank1.jsonl", "ledgers.json"])
def test_an_altered_folder_is_reported(store: Store, reports: list[str], name: str) -> None:
    run = stored(store)
    path = store.runs / run.id / name
    path.write_bytes(path.read_bytes() + b"\n")
    store.load(run.id)
    assert len(reports) == 1
    assert "altered" in reports[0]
    assert str(path.parent).startswith(reports[0].split(":")[0])


def test_a_later_schema_is_refused(store: Store) -> None:
    run = stored(store)
    path = store.runs / run.id / "run.json"
    path.write_text(path.read_text().replace("trainyard/run/3", "trainyard/run/9"))
    with refused(BadFile, path, "'trainyard/run/9'", "'trainyard/run/3'"):
        store.load(run.id)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "trainyard/run/3"}', '{"schema": 7}', "\x00\xff"])
def test_a_broken_run_file_is_named(store: Store, text: str) -> None:
    run = stored(store)
    path = store.runs / run.id / "run.json"
    path.write_text(text, "latin-1")
    with refused(BadFile, path):
        store.load(run.id)


def test_a_broken_run_hides_no_other(store: Store, reports: list[str]) -> None:
    bad, good = stored(store), stored(store)
    (store.runs / bad.id / "run.json").write_text("{")
    assert [row.id for row in store.rows()] == [good.id]
    assert any(bad.id in text and "passed over" in text for text in reports)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("run.json", '"tokens_per_step": 16', f'"tokens_per_step": 1{"0" * 400}'),
        ("run.json", '"state"', f'"x": {"[" * 100_000}{"]" * 100_000}, "state"'),
        ("run.json", '"complete"', '"damaged"'),
        ("samples/rank0.jsonl", '"wall_ns":100', f'"wall_ns":1{"0" * 400}'),
        ("samples/rank0.jsonl", '{"step":0', f'{{"x":{"[" * 100_000}{"]" * 100_000},"step":0'),
        ("ledgers.json", '"compute/matmul"', "5"),
        ("ledgers.json", '"ledgers"', f'"x": {"[" * 100_000}{"]" * 100_000}, "ledgers"'),
    ],
)
def test_absurd_contents_are_bad_files_and_hide_no_run(store: Store, name: str, before: str, after: str) -> None:
    bad, good = stored(store), stored(store)
    path = store.runs / bad.id / name
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    with refused(BadFile, path):
        store.load(bad.id)
    states = {row.id: row.state for row in store.rows()}
    assert states.pop(good.id) == "complete"
    assert states == ({} if name == "run.json" else {bad.id: "damaged"})


def test_a_pipe_among_the_samples_does_not_hang(store: Store) -> None:
    run = stored(store)
    path = store.runs / run.id / "samples" / "rank0.jsonl"
    path.unlink()
    os.mkfifo(path)
    assert store.load(run.id).state == "damaged"
    (store.runs / run.id / "ledgers.json").unlink()
    os.mkfifo(store.runs / run.id / "ledgers.json")
    with refused(BadFile, store.runs / run.id / "ledgers.json"):
        store.load(run.id)


def test_a_folder_with_an_undecodable_name_hides_no_run(store: Store, reports: list[str]) -> None:
    bad, good = stored(store), stored(store)
    os.rename(os.fsencode(store.runs / bad.id), os.fsencode(store.runs) + b"/caf\xe9")
    assert [row.id for row in store.rows()] == [good.id]
    assert len(reports) == 1


# A run that lost a part


def _without_digests(store: Store, id: str) -> None:
    """As an earlier version wrote it."""
    (store.runs / id / "SHA256SUMS").unlink()


RECORD = ["samples", "samples/rank0.jsonl", "samples/rank1.jsonl", "ledgers.json", "job.toml"]


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("written_by", ["this version", "an earlier version"])
@pytest.mark.parametrize("name", RECORD)
def test_a_run_that_lost_a_part_is_damaged(
    store: Store, reports: list[str], name: str, written_by: str, indexed: bool
) -> None:
    run, other = stored(store), stored(store)
    if written_by == "an earlier version":
        _without_digests(store, run.id)
    if indexed:
        assert {row.state for row in store.rows()} == {"complete"}
    path = store.runs / run.id / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    reports.clear()
    for _ in range(2):  # reported by every list
        assert {row.id: row.state for row in store.rows()} == {run.id: "damaged", other.id: "complete"}
    assert len(reports) == 2
    assert all(run.id in text for text in reports)
    loaded = store.load(run.id)
    assert loaded.state == "damaged"
    if written_by == "this version":
        assert name in loaded.failure


@pytest.mark.parametrize("name", ["samples/rank0.jsonl", "run.json"])
def test_an_altered_record_is_damaged(store: Store, name: str) -> None:
    run = stored(store)
    path = store.runs / run.id / name
    path.write_text(path.read_text().replace("100", "101", 1).replace("2025", "2024", 1))
    loaded = store.load(run.id)
    assert loaded.state == "damaged"
    assert name in loaded.failure


def test_samples_added_to_a_run_damage_it(store: Store) -> None:
    run = stored(store)
    shutil.copy(store.runs / run.id / "samples" / "rank0.jsonl", store.runs / run.id / "samples" / "rank2.jsonl")
    assert store.load(run.id).state == "damaged"


@pytest.mark.parametrize("text", ["", "x", "0" * 64 + "  run.json\n" + "0" * 64 + "  ../other\n"])
def test_damaged_digests_damage_the_run(store: Store, text: str) -> None:
    run = stored(store)
    (store.runs / run.id / "SHA256SUMS").write_text(text)
    assert store.load(run.id).state == "damaged"
    assert [row.state for row in store.rows()] == ["damaged"]


def test_a_complete_run_without_digest_and_samples_is_damaged(store: Store) -> None:
    run = stored(store)
    _without_digests(store, run.id)
    path = store.runs / run.id / "run.json"
    path.write_text(path.read_text().replace(run.digest, ""))
    assert store.load(run.id).state == "complete"
    shutil.rmtree(store.runs / run.id / "samples")
    assert store.load(run.id).state == "damaged"


@pytest.mark.parametrize("name", ["job.toml", "samples"])
def test_an_unfinished_run_that_lost_a_part_is_damaged(store: Store, name: str) -> None:
    run = Run(id=new_id(), job=JOB, started="2025-01-01T00:00:00Z")
    path = store.begin(run, JOB_TEXT) / name
    assert store.load(run.id).state == "incomplete"
    path.rmdir() if path.is_dir() else path.unlink()
    assert store.load(run.id).state == "damaged"


def test_deleted_traces_do_not_damage_a_run(store: Store, reports: list[str]) -> None:
    run = _with_trace(store)
    assert missing_evidence(store.runs / run.id) == []
    shutil.rmtree(store.runs / run.id / "traces")
    assert store.load(run.id) == run
    assert missing_evidence(store.runs / run.id) == ["traces/rank0.json.gz"]
    assert reports == []


def _with_trace(store: Store) -> Run:
    run = Run(id=new_id(), job=JOB, started="2025-01-01T00:00:00Z", trace=("traces/rank0.json.gz",))
    (store.begin(run, JOB_TEXT) / "traces" / "rank0.json.gz").write_bytes(b"a trace")
    return store.finish(msgspec.structs.replace(run, state="complete", samples=samples(), ledgers=(LEDGER,)))


def test_digests_cover_every_file_that_stays_as_it_is(store: Store) -> None:
    run = _with_trace(store)
    folder = store.runs / run.id
    for name in ("lock", "checkpoints/step1/weights", "traces/.rank1.part"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("not listed")
    store.tag(run.id, "main")
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=folder, check=True)
    listed = [line.split("  ")[1] for line in (folder / "SHA256SUMS").read_text().splitlines()]
    assert listed == [
        "job.toml", "ledgers.json", "run.json", "samples/rank0.jsonl", "samples/rank1.jsonl", "traces/rank0.json.gz",
    ]  # fmt: skip


def test_a_damaged_run_is_not_resumed(store: Store) -> None:
    from trainyard.run.local.harness import resume
    from trainyard.run.session import Session

    run = stored(store)
    shutil.rmtree(store.runs / run.id / "samples")
    before = {path: path.read_bytes() for path in (store.runs / run.id).rglob("*") if path.is_file()}
    with refused(WrongRunState, run.id, "samples/rank0.jsonl"):
        resume(run.id, Session(store, lambda _: ()))
    assert {path: path.read_bytes() for path in (store.runs / run.id).rglob("*") if path.is_file()} == before


# Damaged tags


TAGS = [b"", b"{", b"[]", b'{"main": 1}', b'{"a/b": "2025-01-01"}', b'{"\\u202emain": "2025-01-01"}',
    b'{"main": "later"}', b'{"abcdef01": "2025-01-01"}', b"\x00\xff"]  # fmt: skip


@pytest.mark.parametrize("data", TAGS)
def test_damaged_tags_hide_no_run(store: Store, reports: list[str], data: bytes) -> None:
    bad, good = stored(store), stored(store)
    store.tag(bad.id, "main")
    store.rows()
    (store.runs / bad.id / "tags.json").write_bytes(data)
    for _ in range(2):
        reports.clear()
        rows = {row.id: row for row in store.rows()}
        assert rows.keys() == {bad.id, good.id}
        assert (rows[bad.id].state, rows[bad.id].tags) == ("complete", ())
        assert "tags.json" in rows[bad.id].damage
        assert len(reports) == 1
        assert bad.id in reports[0]
    assert store.load(bad.id) == bad
    store.tag(good.id, "nightly")
    assert store.untag("nightly") == store.runs / good.id
    with refused(BadFile, store.runs / bad.id / "tags.json"):
        store.tag(bad.id, "other")


@pytest.mark.parametrize("trace", ["/etc/passwd", "../../other/run.json"])
def test_traces_cannot_point_outside_the_folder(store: Store, trace: str) -> None:
    run = stored(store)
    path = store.runs / run.id / "run.json"
    path.write_text(path.read_text().replace("traces/rank0.json.gz", trace))
    with refused(BadFile, path, repr(trace)):
        store.load(run.id)


def test_prefix_tag_and_folder_name_a_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stored(store, "abcd0001")
    stored(store, "abce0002")
    store.tag("abcd", "main")
    monkeypatch.chdir(store.runs)
    run_dir = store.runs / run.id
    for name in ("abcd0001", "abcd", "main", str(run_dir), "./abcd0001"):
        assert store.find(name) == run_dir
    with refused(BadInput, "'abc'", "2 runs", "abce0002 (tiny", "abcd0001 (tiny") as caught:
        store.find("abc")
    assert caught.value.exit_code == 2
    for name in ("zzzz", "", "mian", "../abcd0001"):
        with refused(UnknownName, repr(name), store.root):
            store.find(name)


def test_a_tag_moves_and_says_so(store: Store, reports: list[str]) -> None:
    first, second = stored(store), stored(store)
    store.tag(first.id, "main")
    store.tag(first.id, "nightly")
    store.tag(second.id, "main")
    assert reports == [f"the tag 'main' moved from {first.id} to {second.id}."]
    assert {row.id: row.tags for row in store.rows()} == {first.id: ("nightly",), second.id: ("main",)}
    assert store.untag("main") == store.runs / second.id
    with refused(UnknownName, "'main'", "nightly"):
        store.untag("main")


def test_a_tag_in_two_folders_belongs_to_the_later(store: Store) -> None:
    """What a kill between giving and taking leaves."""
    first, second = stored(store), stored(store)
    tags.write_tags(store.runs / second.id, {"main": "2025-01-02T00:00:00"})
    tags.write_tags(store.runs / first.id, {"main": "2025-01-01T00:00:00"})
    assert store.find("main") == store.runs / second.id
    store.untag("main")
    assert all(not row.tags for row in store.rows())


@pytest.mark.parametrize("tag", ["", "-x", "a/b", "..", "a b", "x" * 65, "abcdef01", "ä", "a\n"])
def test_tags_that_are_no_names_are_refused(store: Store, tag: str) -> None:
    run = stored(store)
    with refused(BadInput, repr(tag), 64):
        store.tag(run.id, tag)


def test_delete_takes_folder_and_row(store: Store) -> None:
    run, other = stored(store), stored(store)
    store.delete(run.id)
    assert [path.name for path in store.runs.iterdir()] == [other.id]
    assert [row.id for row in store.rows()] == [other.id]


def test_delete_stays_inside_the_store(store: Store, tmp_path: Path) -> None:
    run = stored(store)
    elsewhere = Store(tmp_path / "elsewhere")
    outside = elsewhere.runs / stored(elsewhere).id
    link = store.runs / "0123abcd"
    link.symlink_to(outside, target_is_directory=True)
    nested = store.runs / run.id / "traces" / "0123abcd"
    os.rename(outside, nested)
    link.unlink()
    link.symlink_to(nested, target_is_directory=True)
    for name in (str(nested), "0123abcd", str(link), f"{store.runs}/../runs/0123abcd"):
        with refused(BadInput, store.root, nested.name):
            store.delete(name)
    assert (nested / "run.json").exists()
    assert [row.id for row in store.rows()] == [run.id]


def test_delete_leaves_what_links_point_to(store: Store, tmp_path: Path) -> None:
    run = stored(store)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    (store.runs / run.id / "traces" / "link").symlink_to(precious, target_is_directory=True)
    store.delete(run.id)
    assert (precious / "file").read_text() == "kept"


def test_the_index_follows_folders_moved_by_hand(store: Store, tmp_path: Path) -> None:
    run, other = stored(store), stored(store)
    assert len(store.rows()) == 2
    os.rename(store.runs / run.id, tmp_path / run.id)
    assert [row.id for row in store.rows()] == [other.id]
    os.rename(tmp_path / run.id, store.runs / run.id)
    assert {row.id for row in store.rows()} == {run.id, other.id}


@pytest.mark.parametrize("damage", ["missing", "text", "zeros", "old"])
def test_the_index_mends_itself(store: Store, damage: str) -> None:
    run = stored(store)
    store.tag(run.id, "main")
    before = store.rows()
    path = store.root / "index.sqlite3"
    if damage == "missing":
        path.unlink()
    elif damage == "old":
        with sqlite3.connect(path) as base:
            base.execute(f"DROP TABLE {TABLE}")
    else:
        data = path.read_bytes()
        path.write_bytes(b"not a database" * 400 if damage == "text" else data[:100] + bytes(len(data) - 100))
    assert store.rows() == before
    assert store.reindex() == 1
    assert store.find("main") == store.runs / run.id


def test_a_store_whose_index_cannot_be_written_is_still_read(store: Store) -> None:
    run = stored(store)
    (store.root / "index.sqlite3").unlink(missing_ok=True)
    (store.root / "index.sqlite3").mkdir()
    assert [row.id for row in store.rows()] == [run.id]


def test_rows_are_newest_first_and_carry_the_figures(store: Store) -> None:
    old = stored(store, started="2025-01-01T00:00:00.000+00:00")
    new = stored(store, started="2025-02-01T00:00:00.000+00:00")
    rows = store.rows()
    assert [row.id for row in rows] == [new.id, old.id]
    assert (rows[0].step_ns, rows[0].layout, rows[0].state) == (125, "dp_replicate 2", "complete")
    assert rows[0].tokens_per_s == pytest.approx(16e9 / 125)


def test_the_summary_takes_the_slowest_rank_of_measured_steps() -> None:
    claims = {
        "matmul_rate": Claim(value=1e9, unit="FLOP/s", source="test", measured=True),
        "model_flops": Claim(value=50, unit="FLOP", source="test"),
    }
    run = Run(id=new_id(), job=JOB, started="", samples=samples(), claims=claims)
    figures = summarise(run)
    assert (figures.step_ns, figures.repeats_ns) == (125, (115, 135))
    assert (figures.loss_first, figures.loss_last) == (5.0, 0.0)
    assert (figures.memory_bytes, figures.profiler_ns, figures.mfu) == (1001, 285, None)
    assert figures.matmul_share is not None
    assert figures.matmul_share.value == pytest.approx(50 / (1e9 * 2 * 125e-9))
    assert summarise(Run(id=new_id(), job=JOB, started="")).step_ns == 0


def test_a_full_disk_is_told_with_the_arithmetic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refused(DiskFull, path, "2.0 KiB", "TRAINYARD_STORE") as caught:
        disk_space.write_whole(path, b"x" * 2048)
    assert caught.value.exit_code == 4
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def _left(store: Store, name: str, age_s: float = 0.0) -> Path:
    """A hidden folder with a file in it, unchanged for so long."""
    folder = store.runs / name
    (folder / "traces").mkdir(parents=True)
    (folder / "traces" / "rank0.json").write_text("{}")
    for path in (folder / "traces" / "rank0.json", folder / "traces", folder):
        os.utime(path, (time.time() - age_s,) * 2)
    return folder


@pytest.mark.parametrize("kind", ["begin", "gone", "pull"])
def test_reindex_removes_only_what_nobody_writes(store: Store, kind: str) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    live = writer()
    host = live.split(".")[1]
    kept = [
        _left(store, f".{kind}-0000000a-{live}", 10 * ABANDONED_AFTER_S),
        _left(store, f".{kind}-0000000a-1.00000000.0123abcd", ABANDONED_AFTER_S / 2),
        _left(store, f".{kind}-0000000a-0123abcd", ABANDONED_AFTER_S / 2),
    ]
    removed = [
        _left(store, f".{kind}-0000000b-{dead.pid}.{host}.0123abcd"),
        _left(store, f".{kind}-0000000b-1.00000000.0123abcd", 2 * ABANDONED_AFTER_S),
        _left(store, f".{kind}-0000000b-0123abcd", 2 * ABANDONED_AFTER_S),
    ]
    assert store.reindex() == 0
    assert [path.exists() for path in kept] == [True] * 3
    assert [path.exists() for path in removed] == [False] * 3


def test_an_unwritable_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused(PlaceUnwritable, "TRAINYARD_STORE") as caught:
        stored(Store(tmp_path / "file"))
    assert str(caught.value).startswith(str(tmp_path / "file"))


def test_an_empty_store_has_no_rows_and_is_not_made_by_asking(tmp_path: Path) -> None:
    store = Store(tmp_path / "none")
    assert store.rows() == []
    assert store.reindex() == 0
    assert not store.root.exists()
    with refused(UnknownName, "'main'", store.root):
        store.load("main")


def test_the_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TRAINYARD_STORE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_root() == tmp_path / ".local" / "share" / "trainyard"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_root() == tmp_path / "data" / "trainyard"
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path / "own"))
    assert default_root() == tmp_path / "own"


WRITER = """
import sys, msgspec
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.stored import JOB, JOB_TEXT, LEDGER, samples
from trainyard.record import Run
from trainyard.store.store import Store
store = Store(Path(sys.argv[1]))
run = Run(id="00000001", job=JOB, started="2025-01-01T00:00:00Z")
store.begin(run, JOB_TEXT)
print("begun", flush=True)
loss = 0.0
while True:  # finishes the same run over and over until it is killed
    loss += 1
    store.finish(msgspec.structs.replace(run, state="complete", samples=samples(loss) * 200, ledgers=(LEDGER,) * 200))
"""


@pytest.mark.slow
def test_kill_nine_at_any_time_leaves_a_run_that_can_be_read(tmp_path: Path) -> None:
    """Killed mid-write: run.json is always whole, and only the file being written may be ahead of it."""
    for attempt in range(8):
        root = tmp_path / str(attempt)
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root), str(Path(__file__).parents[2])], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        try:
            writer.wait(0.02 + 0.03 * attempt)
        except subprocess.TimeoutExpired:
            writer.send_signal(signal.SIGKILL)
        assert writer.wait() == -signal.SIGKILL
        writer.stdout.close()
        store = Store(root, say=lambda _: None)
        run = store.load("00000001")
        assert run.state in ("incomplete", "complete")
        assert len(run.samples) in (0, 1200, 2400)
        assert run.state == "incomplete" or len(run.ledgers) == 200
        assert [row.id for row in store.rows()] == ["00000001"]


def test_a_run_killed_before_it_ended_stays_incomplete(store: Store) -> None:
    run = Run(id=new_id(), job=JOB, started="2025-01-01T00:00:00Z")
    run_dir = store.begin(run, JOB_TEXT)
    # Everything but the last rename of run.json, as a kill between the two would leave it.
    folder.write(run_dir, msgspec.structs.replace(run, state="complete", samples=samples(), ledgers=(LEDGER,)))
    head = json.loads((run_dir / "run.json").read_text())
    assert head["state"] == "complete"
    (run_dir / "run.json").write_text(json.dumps({**head, "state": "incomplete", "digest": ""}))
    loaded = store.load(run.id)
    assert (loaded.state, len(loaded.samples), len(loaded.ledgers)) == ("incomplete", 12, 1)
