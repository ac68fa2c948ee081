"""Regular files, and the other types of files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refused import refused
from trainyard.errors import BadFile
from trainyard.formats.regular_files import irregular, is_regular, open_regular, sha256_of
from trainyard.units import listed


def _paths_by_type(folder: Path) -> dict[str, Path]:
    """A path of each type, by its name; the name of a regular file is empty."""
    paths = {kind: folder / (kind or "file").replace(" ", "-") for kind in ("", "a folder", "a pipe", "a link")}
    paths[""].write_bytes(b"x" * 100_000)
    paths["a folder"].mkdir()
    os.mkfifo(paths["a pipe"])
    paths["a link"].symlink_to(paths[""])
    return paths | {"a device": Path("/dev/null")}


def test_types_are_recognized_and_only_regular_files_read(tmp_path: Path) -> None:
    for kind, path in _paths_by_type(tmp_path).items():
        assert irregular(path.lstat().st_mode) == kind
        assert is_regular(path, links=False) == (not kind)
        assert is_regular(path) == (kind in ("", "a link"))
        if not is_regular(path):
            with refused(BadFile, path), open_regular(path):
                pass


@pytest.mark.parametrize("name", ["missing", "x" * 5000, "nul\0"])
def test_missing_or_invalid_path_is_not_regular(tmp_path: Path, name: str) -> None:
    assert not is_regular(tmp_path / name)


def test_digest_covers_the_whole_file(tmp_path: Path) -> None:
    assert sha256_of(_paths_by_type(tmp_path)[""]) == hashlib.sha256(b"x" * 100_000).hexdigest()


@given(st.lists(st.sampled_from("abc"), max_size=12), st.integers(1, 12))
def test_listed_counts_the_items_it_leaves_out(items: list[str], most: int) -> None:
    text = listed(items, most)
    assert text.split(" and ")[0] == ", ".join(items[:most])
    assert (f"{len(items) - most} more" in text) == (len(items) > most)
