"""A file that is replaced has its old contents or its new ones."""

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
def test_a_block_that_fails_leaves_the_old_contents_and_nothing_else(replace: Replacing, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def interrupted() -> None:
        with replace(path) as partial:
            partial.write_bytes(b"ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == {"file": b"old"}


@BOTH
def test_a_block_that_ends_replaces_the_file(replace: Replacing, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replace(path) as partial:
        partial.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == {"file": b"new"}


def test_a_durable_write_synchronises_the_file_before_it_has_its_name_and_then_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "file", list[tuple[bool, list[str]]]()
    synchronise = os.fsync

    def noted(handle: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(handle).st_mode), [one.name for one in tmp_path.iterdir()]))
        synchronise(handle)

    monkeypatch.setattr(os, "fsync", noted)
    write_durable(path, b"new")
    assert path.read_bytes() == b"new"
    assert synced == [(False, [".file.part"]), (True, ["file"])]


def test_an_output_in_no_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none" / "file"
    with refused(PlaceUnwritable, str(path)), replacing(path) as partial:
        partial.write_bytes(b"new")
