"""Reading the lines that are appended to a file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.formats.appended_lines import read_appended


@given(st.binary(max_size=60).map(lambda data: data.replace(b"a", b"\n")), st.integers(0, 60))
def test_every_whole_line_is_read_once(tmp_path_factory: pytest.TempPathFactory, data: bytes, cut: int) -> None:
    path = tmp_path_factory.mktemp("lines") / "log"
    assert read_appended(path, 0) == b""
    path.write_bytes(data[:cut])
    first = read_appended(path, 0)
    path.write_bytes(data)
    second = read_appended(path, len(first))
    rest = read_appended(path, len(first + second), incomplete=True)
    assert first + second + rest == data
    assert b"\n" not in rest
    assert all(part in (b"", part.rpartition(b"\n")[0] + b"\n") for part in (first, second))
