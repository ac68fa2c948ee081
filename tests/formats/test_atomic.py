"""A replaced file has either its old or its new contents."""

import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.refused import refused
from trainyard.errors import PlaceUnwritable
from trainyard.formats.atomic import replacing, replacing_own, write_durable

Replacing = Callable[[Path], AbstractContextManager[Path]]
BOTH = pytest.mark.parametrize("replace", [replacing, replacing_own])


@BOTH
def test_failed_write_leaves_only_the_old_contents(replace: Replacing, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def interrupted() -> None:
        with replace(path) as partial:
            partial.write_bytes(b"ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"file": b"old"}


@BOTH
def test_completed_write_replaces_the_file(replace: Replacing, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replace(path) as partial:
        partial.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"file": b"new"}


def test_durable_write_syncs_the_file_before_renaming_then_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "file", list[tuple[bool, list[str]]]()
    fsync = os.fsync

    def record_fsync(handle: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(handle).st_mode), [file.name for file in tmp_path.iterdir()]))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record_fsync)
    write_durable(path, b"new")
    assert path.read_bytes() == b"new"
    assert synced == [(False, [".file.part"]), (True, ["file"])]


def test_output_in_a_missing_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none" / "file"
    with refused(PlaceUnwritable, str(path)), replacing(path) as partial:
        partial.write_bytes(b"new")
