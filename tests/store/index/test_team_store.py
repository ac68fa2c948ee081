"""A team's store: the index in PostgreSQL, and runs pushed and pulled. Whoever is killed, nothing is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tests.refused import refused
from tests.stored import stored
from trainyard.cli.main import cli
from trainyard.errors import BadFile, BadInput, MissingLibrary, RemoteFailed, UnknownName, WrongRunState
from trainyard.store import tags
from trainyard.store.exchange.push_pull import matching_ids, pull, push
from trainyard.store.exchange.remote_store import Remote
from trainyard.store.index.index_tables import TABLE
from trainyard.store.index.postgres import PostgresBase
from trainyard.store.index.run_index import Indexed, RunRow
from trainyard.store.index.sqlite_index import LocalBase
from trainyard.store.store import Store
from trainyard.store.stored_changes import CopiedRun


@pytest.fixture
def team(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TRAINYARD_INDEX", postgres_url)
    return Store(tmp_path / "store", say=_never)


def _never(text: str) -> None:
    raise AssertionError(text)


def _query(url: str, query: str) -> list[tuple]:
    import psycopg

    with psycopg.connect(url) as base:
        return base.execute(query).fetchall()  # pyright: ignore


# The index


def test_it_lists_what_a_file_beside_the_runs_lists(team: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = stored(team), stored(team, started="2025-02-01T00:00:00.000+00:00")
    Store(team.root, say=lambda _: None).tag(first.id, "main")
    rows = team.rows()
    assert [row.id for row in rows] == [second.id, first.id]
    assert rows[1].tags == ("main",)
    monkeypatch.delenv("TRAINYARD_INDEX")
    assert Store(team.root, say=_never).rows() == rows  # and back: the folders are the truth
    assert team.rows() == rows
    team.delete(second.id)
    assert [row.id for row in team.rows()] == [first.id]
    assert team.reindex() == 1


def test_rows_can_be_asked_for_in_sql(team: Store, postgres_url: str) -> None:
    run = stored(team)
    team.rows()
    rows = _query(postgres_url, f"SELECT job, state, step_ns FROM {TABLE} WHERE id = '{run.id}'")  # noqa: S608
    assert rows == [("tiny", "complete", 125)]


def test_one_database_serves_many_stores(team: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other", say=_never)
    ours, theirs = stored(team, "0000000a"), stored(other, "0000000a", started="2026-01-01T00:00:00.000+00:00")
    for _ in range(2):  # neither takes the other's rows away
        assert [row.started for row in team.rows()] == [ours.started]
        assert [row.started for row in other.rows()] == [theirs.started]


def test_a_store_is_the_same_one_wherever_it_is_mounted(team: Store, tmp_path: Path, postgres_url: str) -> None:
    stored(team)
    team.rows()
    (tmp_path / "mounted").symlink_to(team.root, target_is_directory=True)
    before = _query(postgres_url, f"SELECT count(*) FROM {TABLE}")  # noqa: S608
    assert len(Store(tmp_path / "mounted", say=_never).rows()) == 1
    assert _query(postgres_url, f"SELECT count(*) FROM {TABLE}") == before  # noqa: S608


_LISTER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.stored import stored
from trainyard.store.store import Store
def say(text):
    raise SystemExit(text)
store = Store(Path(sys.argv[1]), say=say)
for at in range(6):
    run = stored(store)
    assert run.id in {row.id for row in store.rows()}, run.id
"""
_ROOT = str(Path(__file__).parents[3])


@pytest.mark.slow
def test_many_writers_at_once_lose_nothing(team: Store) -> None:
    """Also those that make the table, and the store's name, at the same time."""
    writers = [subprocess.Popen([sys.executable, "-c", _LISTER, str(team.root), _ROOT]) for _ in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert len(team.rows()) == 24
    assert [path.name for path in team.root.glob(".store.id*")] == []


@pytest.mark.slow
def test_a_writer_killed_at_any_time_costs_no_row(team: Store) -> None:
    for attempt in range(6):
        writer = subprocess.Popen([sys.executable, "-c", _LISTER, str(team.root), _ROOT])
        time.sleep(0.3 + 0.15 * attempt)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        kept = Store(team.root, say=lambda _: None)
        there = {path.parent.name for path in kept.runs.glob("[!.]*/run.json")}
        assert {row.id for row in kept.rows()} == there


def test_a_silent_database_is_reported_and_the_folders_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setenv("TRAINYARD_INDEX", f"postgresql://me:secret@/db?host={tmp_path}")
    reports: list[str] = []
    store = Store(tmp_path / "store", say=reports.append)
    run = stored(store)
    assert [row.id for row in store.rows()] == [run.id]
    assert len(reports) == 1
    assert "postgresql:///db cannot be used" in reports[0]
    assert "folder is read instead" in reports[0]
    assert "secret" not in reports[0]


def test_a_table_altered_by_hand_is_written_anew(team: Store, postgres_url: str) -> None:
    import psycopg

    run = stored(team)
    team.rows()
    with psycopg.connect(postgres_url) as base:
        base.execute(f"UPDATE {TABLE} SET tags = 'rubbish'")  # noqa: S608 # pyright: ignore
    assert [row.id for row in team.rows()] == [run.id]
    assert _query(postgres_url, f"SELECT tags FROM {TABLE} WHERE id = '{run.id}'") == [("{}",)]  # noqa: S608


def test_a_refused_row_leaves_the_other_rows_in_postgresql(team: Store, postgres_url: str) -> None:
    reports: list[str] = []
    store = Store(team.root, say=reports.append)
    stored(store, "0000000a", name="ti\0ny")
    stored(store, "0000000b")
    assert {row.id for row in store.rows()} == {"0000000a", "0000000b"}
    mine = f"WHERE store = '{(team.root / 'store.id').read_text().strip()}'"
    assert _query(postgres_url, f"SELECT id FROM {TABLE} {mine}") == [("0000000b",)]  # noqa: S608
    refusals = [text for text in reports if "0000000a" in text and "NUL" in text]
    assert len(refusals) == 1
    (store.runs / "0000000a" / "run.json").unlink()
    stored(store, "0000000c")
    reports.clear()
    assert {row.id for row in store.rows()} == {"0000000b", "0000000c"}
    assert reports == []


def test_a_row_that_becomes_refused_leaves_no_stale_row(team: Store, postgres_url: str) -> None:
    store = Store(team.root, say=lambda _: None)
    stored(store, "0000000a")
    store.rows()
    shutil.rmtree(store.runs / "0000000a")
    stored(store, "0000000a", name="ti\0ny")
    assert [row.job for row in store.rows()] == ["ti\0ny"]
    mine = f"WHERE store = '{(team.root / 'store.id').read_text().strip()}'"
    assert _query(postgres_url, f"SELECT id FROM {TABLE} {mine}") == []  # noqa: S608


BAD_ROWS = {"job": ["a\0b", "\udcff"], "step_ns": [2**63, -(10**40)], "tokens_per_s": [float("nan")]}


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_no_value_of_a_row_blocks_another_row(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    base = (
        PostgresBase(request.getfixturevalue("postgres_url"), tmp_path)
        if kind == "postgresql"
        else LocalBase(tmp_path / "index.sqlite3")
    )
    good = RunRow(id="good", started="", job="tiny", layout="", state="complete", step_ns=1, tokens_per_s=float("inf"))
    bad = [msgspec.structs.replace(good, **{field: value}) for field in BAD_ROWS for value in BAD_ROWS[field]]
    rows = {f"bad{at}": msgspec.structs.replace(row, id=f"bad{at}") for at, row in enumerate(bad)} | {"good": good}
    refused = base.keep({id: Indexed(stamp="1", row=row, tag_times={}) for id, row in rows.items()}, ())
    kept = base.indexed()
    assert kept["good"].row == good
    assert not refused.keys() & kept.keys()
    assert refused.keys() | kept.keys() == rows.keys()
    assert len(refused) >= 3
    assert all(refused.values())


def test_a_user_who_cannot_create_tables_writes_rows(
    team: Store, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    stored(team)
    team.rows()
    with psycopg.connect(postgres_url) as base:
        base.execute("DROP ROLE IF EXISTS writer")
        base.execute("CREATE ROLE writer LOGIN")
        base.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {TABLE} TO writer")  # pyright: ignore
    second = stored(team)
    monkeypatch.setenv("TRAINYARD_INDEX", postgres_url.replace("test@", "writer@"))
    assert len(Store(team.root, say=_never).rows()) == 2
    assert _query(postgres_url, f"SELECT id FROM {TABLE} WHERE id = '{second.id}'") == [(second.id,)]  # noqa: S608


def test_a_user_who_may_only_read_lists_quietly(
    team: Store, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    stored(team)
    team.rows()
    with psycopg.connect(postgres_url) as base:
        base.execute("DROP ROLE IF EXISTS reader")
        base.execute("CREATE ROLE reader LOGIN")
        base.execute(f"GRANT SELECT ON {TABLE} TO reader")  # pyright: ignore
    stored(team)
    monkeypatch.setenv("TRAINYARD_INDEX", postgres_url.replace("test@", "reader@"))
    assert len(Store(team.root, say=_never).rows()) == 2


def test_a_lock_held_by_another_writer_is_reported(
    team: Store, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    monkeypatch.setattr("trainyard.store.index.postgres._TIMEOUT_S", 1)
    reports: list[str] = []
    run = stored(team)
    with psycopg.connect(postgres_url) as holder:
        holder.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (TABLE,))
        assert [row.id for row in Store(team.root, say=reports.append).rows()] == [run.id]
    assert len(reports) == 1
    assert "lock timeout" in reports[0]


def test_a_database_in_another_encoding_keeps_what_it_can(
    team: Store, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as base:
        base.execute("DROP DATABASE IF EXISTS latin")
        base.execute("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    monkeypatch.setenv("TRAINYARD_INDEX", postgres_url.replace("@/postgres", "@/latin"))
    reports: list[str] = []
    store = Store(team.root, say=reports.append)
    stored(store, "0000000a", name="日本")
    stored(store, "0000000b", name="épaule")
    for _ in range(2):
        reports.clear()
        assert {row.job for row in store.rows()} == {"日本", "épaule"}
        assert len(reports) == 1
        assert "0000000a" in reports[0]


def test_a_url_of_another_kind_and_a_missing_library_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(BadInput, "TRAINYARD_INDEX", "mysql://host/db"):
        PostgresBase("mysql://me:secret@host/db", tmp_path)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with refused(MissingLibrary, "TRAINYARD_INDEX", "psycopg", "trainyard[postgres]"):
        PostgresBase("postgresql://host/db", tmp_path)


# Push and pull


@pytest.fixture
def here(tmp_path: Path) -> Store:
    return Store(tmp_path / "here", say=_never)


@pytest.fixture
def there(tmp_path: Path) -> Store:
    return Store(tmp_path / "there", say=_never)


@pytest.fixture(params=["folder", "memory"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Remote:
    pytest.importorskip("fsspec")
    return Remote(str(tmp_path / "remote") if request.param == "folder" else f"memory://{tmp_path.name}")


def test_a_run_goes_there_and_comes_back_whole(here: Store, there: Store, remote: Remote) -> None:
    run = stored(here)
    trace = here.runs / run.id / "traces" / "rank0.json.gz"
    trace.write_bytes(b"a trace")
    here.tag(run.id, "main")
    sent = push(here.find(run.id), remote)
    assert sent.files == 7
    assert push(here.find(run.id), remote) == CopiedRun(id=run.id)
    assert (
        matching_ids(remote, ["main"], _never)
        == matching_ids(remote, [run.id[:4]], _never)
        == matching_ids(remote, [], _never)
        == [run.id]
    )
    assert pull(there, remote, run.id).files == sent.files
    assert pull(there, remote, run.id).files == 0
    assert there.load("main") == run
    assert (there.runs / run.id / "traces" / "rank0.json.gz").read_bytes() == b"a trace"
    with refused(UnknownName, "'mian'", "'main'"):
        matching_ids(remote, ["mian"], _never)


def test_checkpoints_locks_links_and_unfinished_files_stay(here: Store, remote: Remote, tmp_path: Path) -> None:
    run = stored(here)
    folder = here.runs / run.id
    (tmp_path / "secret").write_text("not for others")
    (folder / "logs" / "link").symlink_to(tmp_path / "secret")
    for name in ("checkpoints/step1/weights", "lock", "traces/.rank0.part"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("stays")
    push(folder, remote)
    assert sorted(remote.sizes(run.id)) == [
        "SHA256SUMS", "job.toml", "ledgers.json", "run.json", "samples/rank0.jsonl", "samples/rank1.jsonl",
    ]  # fmt: skip


def test_what_a_killed_push_left_is_cleared_by_the_next(here: Store, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    run = stored(here)
    left = tmp_path / "place" / "runs" / run.id / "traces" / ".rank0.json.gz.0123abcd.part"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half of it")
    remote = Remote(str(tmp_path / "place"))
    push(here.find(run.id), remote)
    assert sorted(remote.sizes(run.id)) == [
        "SHA256SUMS", "job.toml", "ledgers.json", "run.json", "samples/rank0.jsonl", "samples/rank1.jsonl",
    ]  # fmt: skip


def test_a_place_that_was_pushed_to_is_a_store(here: Store, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    run = stored(here)
    push(here.find(run.id), Remote(str(tmp_path / "shared")))
    assert Store(tmp_path / "shared", say=_never).load(run.id) == run


def test_a_run_that_has_not_ended_is_not_pushed(here: Store, remote: Remote) -> None:
    from trainyard.record import Run

    run = Run(id="0000000a", job=stored(here).job, started="2025-01-01T00:00:00Z")
    here.begin(run, "")
    with refused(WrongRunState, "0000000a", "run resume 0000000a"):
        push(here.find(run.id), remote)


def test_another_run_of_that_id_is_refused_both_ways(here: Store, there: Store, remote: Remote) -> None:
    stored(here, "0000000a")
    other = stored(there, "0000000a", started="2026-01-01T00:00:00.000+00:00")
    push(here.find("0000000a"), remote)
    with refused(BadInput, "0000000a", there.runs / "0000000a", "run.json"):
        push(there.find("0000000a"), remote)
    with refused(BadInput, "0000000a", there.runs / "0000000a", "run.json"):
        pull(there, remote, "0000000a")
    assert there.load("0000000a") == other


def test_tags_of_both_places_are_kept_and_the_later_counts(here: Store, there: Store, remote: Remote) -> None:
    run = stored(here)
    tags.write_tags(here.runs / run.id, {"a": "2025-01-01", "both": "2025-01-01"})
    push(here.find(run.id), remote)
    pull(there, remote, run.id)
    tags.write_tags(there.runs / run.id, {"a": "2025-01-01", "both": "2025-03-01", "b": "2025-02-01"})
    push(there.find(run.id), remote)
    pull(here, remote, run.id)
    assert tags.read_tags(here.runs / run.id) == {"a": "2025-01-01", "both": "2025-03-01", "b": "2025-02-01"}


@pytest.mark.parametrize(("name", "damage"), [
    ("samples/rank0.jsonl", b""), ("ledgers.json", b"{"), ("run.json", b"{}"), ("SHA256SUMS", b"{}"),
])  # fmt: skip
def test_what_arrives_altered_is_refused_and_leaves_nothing(
    here: Store, there: Store, tmp_path: Path, name: str, damage: bytes
) -> None:
    pytest.importorskip("fsspec")
    run, root = stored(here), tmp_path / "remote"
    push(here.find(run.id), Remote(str(root)))
    (root / "runs" / run.id / name).write_bytes(damage)
    with pytest.raises(BadFile):
        pull(there, Remote(str(root)), run.id)
    assert not there.runs.exists() or [*there.runs.iterdir()] == []


@pytest.mark.parametrize("name", ["../../evil", "traces/../../evil", "/etc/evil"])
def test_a_place_cannot_write_outside_the_run(
    here: Store, there: Store, remote: Remote, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run = stored(here)
    push(here.find(run.id), remote)
    sizes = remote.sizes
    monkeypatch.setattr(remote, "sizes", lambda id: {**sizes(id), name: 4})
    with refused(BadFile, run.id, repr(name)):
        pull(there, remote, run.id)
    assert not there.runs.exists()


def test_a_run_under_another_id_is_refused(here: Store, there: Store, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    run, root = stored(here), tmp_path / "remote"
    push(here.find(run.id), Remote(str(root)))
    os.rename(root / "runs" / run.id, root / "runs" / "0000000b")
    with refused(BadFile, root, "0000000b", run.id):
        pull(there, Remote(str(root)), "0000000b")


_COPIER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from trainyard.store.exchange.push_pull import matching_ids, pull, push
from trainyard.store.exchange.remote_store import Remote
from trainyard.store.store import Store
store, remote = Store(Path(sys.argv[2])), Remote(sys.argv[3])
print("begun", flush=True)
if sys.argv[1] == "push":
    for row in store.rows():
        push(store.find(row.id), remote)
else:
    for id in matching_ids(remote, [], print):
        pull(store, remote, id)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["push", "pull"])
def test_a_migration_killed_at_any_time_goes_on_and_loses_nothing(here: Store, tmp_path: Path, way: str) -> None:
    pytest.importorskip("fsspec")
    runs = [stored(here, trace=random.Random(1).randbytes(2_000_000)) for _ in range(20)]  # noqa: S311
    root = tmp_path / "place"
    sides = (str(here.root), str(root)) if way == "push" else (str(root), str(here.root))
    for attempt in range(8):
        copier = subprocess.Popen([sys.executable, "-c", _COPIER, way, *sides, _ROOT], stdout=subprocess.PIPE)
        assert copier.stdout is not None
        copier.stdout.readline()
        time.sleep(0.01 * attempt)
        copier.send_signal(signal.SIGKILL)
        copier.wait()
        copier.stdout.close()
        half = Store(root, say=_never)
        assert all(half.load(row.id) in runs for row in half.rows())  # what is there is whole
        assert len(here.rows()) == 20
    subprocess.run([sys.executable, "-c", _COPIER, way, *sides, _ROOT], check=True, capture_output=True)
    done = Store(root, say=_never)
    assert {path.name for path in done.runs.iterdir()} == {run.id for run in runs}, "what was killed left nothing"
    assert {row.id for row in done.rows()} == {run.id for run in runs}
    assert all(done.load(run.id) == run for run in runs)
    for run in runs:
        assert (done.runs / run.id / "traces" / "rank0.json.gz").stat().st_size == 2_000_000


def test_the_commands(here: Store, there: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    run = stored(here)
    root = str(tmp_path / "team")
    monkeypatch.setenv("TRAINYARD_STORE", str(here.root))
    pushed = CliRunner().invoke(cli, ["runs", "push", "--to", root, "--json"])
    assert pushed.exit_code == 0
    assert f'"id":"{run.id}","files":6' in pushed.output.replace(" ", "").replace("\n", "")
    monkeypatch.setenv("TRAINYARD_STORE", str(there.root))
    monkeypatch.setenv("TRAINYARD_REMOTE", root)
    assert "1 of 1 run pulled" in CliRunner().invoke(cli, ["runs", "pull"]).output
    assert "0 of 1 run pulled" in CliRunner().invoke(cli, ["runs", "pull", run.id[:5]]).output
    assert there.load(run.id) == run


def test_places_that_cannot_be_opened_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    with refused(BadInput, "nonsense://bucket"):
        Remote("nonsense://bucket")
    with refused(BadInput, tmp_path / "none", "--to URL"):
        matching_ids(Remote(str(tmp_path / "none")), [], _never)
    (tmp_path / "file").write_text("")
    with refused(RemoteFailed, tmp_path / "file", "Errno 20"):
        Remote(str(tmp_path / "file")).put("0000000a", "run.json", tmp_path / "file")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with refused(MissingLibrary, "fsspec", "trainyard[remote]"):
        Remote(str(tmp_path))
