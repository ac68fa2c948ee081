"""The rows of a server: always those of the folders, and only folders that changed are read."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from tests.stored import JOB, JOB_TEXT, stored
from trainyard.record import Run
from trainyard.store.index import followed_index
from trainyard.store.index.followed_index import FollowedIndex
from trainyard.store.store import Store, new_id


class Counted:
    """A followed store; `read`: names of the folders that were read, in order."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = Store(root, say=lambda _: None)
        self.followed = self.store.followed()
        self.read: list[str] = []
        read_folders = self.store._index.read_folders

        def counted(names):
            names = list(names)
            self.read += names
            return read_folders(names)

        monkeypatch.setattr(self.store._index, "read_folders", counted)

    def ids(self) -> list[str]:
        return [row.id for row in self.followed.rows()]


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(tmp_path / "store", monkeypatch)


def test_rows_are_those_of_the_store(counted: Counted) -> None:
    assert counted.followed.rows() == ()
    for number in range(5):
        stored(counted.store, started=f"2025-01-0{5 - number}")
        assert list(counted.followed.rows()) == counted.store.rows()


def test_a_list_reads_what_was_added_and_nothing_else(counted: Counted) -> None:
    first = stored(counted.store)
    counted.followed.check_all()
    counted.read.clear()
    second = stored(counted.store)
    assert sorted(counted.ids()) == sorted([first.id, second.id])
    assert counted.read == [second.id]
    assert sorted(counted.ids()) == sorted([first.id, second.id])
    assert counted.read == [second.id]


def test_a_run_that_ends_is_read_again(counted: Counted) -> None:
    run = Run(id=new_id(), job=JOB, started="2025-01-01")
    counted.followed.check_all()
    counted.store.begin(run, JOB_TEXT)
    assert [row.state for row in counted.followed.rows()] == ["incomplete"]
    counted.store.finish(msgspec.structs.replace(run, state="failed", failure="x"))
    assert [row.state for row in counted.followed.rows()] == ["failed"]
    assert counted.read == [run.id] * 2


def test_a_deleted_run_is_gone(counted: Counted) -> None:
    kept, deleted = stored(counted.store), stored(counted.store)
    assert len(counted.ids()) == 2
    shutil.rmtree(counted.store.runs / deleted.id)
    assert counted.ids() == [kept.id]


def test_a_settled_folder_is_not_listed_again(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(counted.store)
    monkeypatch.setattr(followed_index, "_SETTLED_NS", -(10**18))  # any time is settled
    counted.ids()
    listed: list[int] = []
    monkeypatch.setattr(FollowedIndex, "_names", lambda self: listed.append(1) or set())
    assert len(counted.ids()) == 1
    assert listed == []


def test_tags_and_damage_are_seen_when_all_are_checked(counted: Counted) -> None:
    run = stored(counted.store)
    counted.ids()
    counted.store.tag(run.id, "main")
    (counted.store.runs / run.id / "ledgers.json").write_bytes(b"{}")
    counted.followed.check_all()
    assert [(row.tags, row.state) for row in counted.followed.rows()] == [(("main",), "damaged")]


def test_an_unreadable_run_is_reported_once(tmp_path: Path) -> None:
    reports: list[str] = []
    store = Store(tmp_path, say=reports.append)
    followed = store.followed()
    followed.check_all()
    run = stored(store)
    (store.runs / run.id / "run.json").write_bytes(b"{")
    for _ in range(3):
        assert followed.rows() == ()
    assert len(reports) == 1


def test_concurrent_lists_see_every_run_that_was_stored(tmp_path: Path) -> None:
    store, problems = Store(tmp_path), list[str]()
    followed = store.followed()
    followed.check_all()

    def write() -> None:
        own = Store(tmp_path)
        for _ in range(12):
            run = stored(own)
            if (run.id, "complete") not in [(row.id, row.state) for row in followed.rows()]:
                problems.append(run.id)

    def check() -> None:
        for _ in range(10):
            followed.check_all()

    threads = [threading.Thread(target=task) for task in (write, write, write, check)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(followed.rows()) == 36


def test_check_of_all_files_does_not_drop_a_run_that_a_list_added_meanwhile(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=lambda: 1.0, time_ns=time.time_ns)  # both lists were called before the update
    monkeypatch.setattr(followed_index, "time", clock)
    assert counted.ids() == []
    run = stored(counted.store)
    monkeypatch.setattr(counted.store._index, "entries", lambda known: {})  # listed before the run was stored
    counted.followed.check_all()
    assert counted.ids() == [run.id]


def test_the_database_gets_the_runs_that_a_server_has_read(counted: Counted) -> None:
    first = stored(counted.store)
    counted.ids()
    second = stored(counted.store)
    counted.ids()
    counted.followed.check_all()
    assert set(counted.store._index._base.indexed()) == {first.id, second.id}
    counted.read.clear()
    counted.followed.check_all()
    assert counted.read == []
