"""MLLOG lines: round trips and hostile files."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refused import refused
from trainyard.errors import BadFile, FileTooLarge
from trainyard.formats import mllog

plain = st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(-1e300, 1e300), st.text())


@given(st.lists(st.tuples(st.text(), plain, st.integers(0, 2**53), st.dictionaries(st.text(), plain))))
def test_round_trip(tmp_path_factory, entries):
    path = tmp_path_factory.mktemp("log") / "result.txt"
    lines = ["some talk", *(f"[rank 0] {mllog.line(*entry)}" for entry in entries), "more of it"]
    path.write_text("\n".join(lines), encoding="utf-8", errors="replace", newline="\n")
    read = mllog.read(path)
    assert [(e.key, e.value, e.time_ms, e.metadata) for e in read] == [
        (key, value, time, metadata) for key, value, time, metadata in entries
    ]


@given(st.binary())
def test_any_bytes_are_read_or_raise_bad_file(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("log") / "result.txt"
    path.write_bytes(data + b"\n:::MLLOG " + data + b"\n")
    with suppress(BadFile):
        mllog.read(path)


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b'{"value": 1}', b'{"key": 3}', b"[" * 100_000, b'{"key": "a", "metadata": [1]}', b"\xff"],
)
def test_bad_line_error_names_the_line(tmp_path, line):
    path = tmp_path / "result.txt"
    path.write_bytes(b'fine\n:::MLLOG {"key": "a"}\n:::MLLOG ' + line + b"\n")
    with refused(BadFile, "result.txt:3:"):
        mllog.read(path)


def test_truncated_last_line_is_ignored(tmp_path):
    path = tmp_path / "result.txt"
    path.write_bytes(b':::MLLOG {"key": "a"}\n:::MLLOG {"key": "b", "val')
    assert [entry.key for entry in mllog.read(path)] == ["a"]


def test_long_lines(tmp_path):
    path = tmp_path / "result.txt"
    path.write_bytes(b"x" * (3 << 20) + b":::MLLOG {\n" + b':::MLLOG {"key": "a"}\n')
    assert [entry.key for entry in mllog.read(path)] == ["a"]
    path.write_bytes(b':::MLLOG {"key": "' + b"x" * (2 << 20) + b'"}\n')
    with refused(FileTooLarge, "result.txt:1:", "1 MiB"):
        mllog.read(path)


def test_number_accepts_only_finite_numbers():
    entry = mllog.MllogEntry(key="a", value=True, metadata={"n": "3", "m": 4, "big": 10**400})
    assert entry.number() is None
    assert [entry.number(name) for name in ("n", "m", "big", "none")] == [None, 4.0, None, None]
