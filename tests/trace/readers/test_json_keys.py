"""Top-level keys of JSON text in pieces of any size: as `json` decodes them, with bounded memory."""

import json
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from trainyard.trace.readers.json_keys import TopLevelKeys

TEXT = st.text(st.sampled_from('ab"\\[]{}:, \n\u00e9\U0001f600'), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(TEXT, VALUES, max_size=6)


def split(text: bytes, size: int) -> list[bytes]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def scanned(pieces: list[bytes]) -> tuple[list[tuple[str, bytes]], bool]:
    scan = TopLevelKeys(pieces)
    keys = list(scan)
    return keys, scan.complete


@given(DOCUMENTS, st.integers(1, 40), st.sampled_from([None, 1]), st.booleans())
def test_keys_are_those_of_json_for_any_pieces(document, size, indent, ascii_only):
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()
    first_bytes = [json.dumps(value, ensure_ascii=ascii_only).encode()[:1] for value in document.values()]
    assert scanned(split(text, size)) == (list(zip(document, first_bytes)), True)


@given(DOCUMENTS, st.integers(1, 40), st.data())
def test_cut_text_gives_a_beginning_of_the_keys(document, size, data):
    text = json.dumps(document).encode()
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    keys, complete = scanned(split(cut, size))
    assert not complete
    assert [key for key, _ in keys] == list(document)[: len(keys)]


@given(st.binary(max_size=200), st.integers(1, 20))
def test_any_bytes_end_the_scan(text, size):
    scanned(split(b'{"a": [1], ' + text, size))


def test_deep_nesting_ends_with_its_last_bracket():
    depth = 20_000
    text = b'{"deep": ' + b'[{"x": ' * depth + b"1" + b"}]" * depth + b', "last": 2}'
    assert scanned(split(text, 4096)) == ([("deep", b"["), ("last", b"2")], True)


def test_memory_is_bounded_by_the_piece():
    def pieces():
        yield b'{"text": "'
        for _ in range(200):
            yield b"x" * 100_000
        yield b'", "list": ['
        for _ in range(200):
            yield b'{"name": "kernel", "at": [1, 2]}, ' * 3000
        yield b'0], "last": 0}'

    tracemalloc.start()
    scan = TopLevelKeys(pieces())
    keys = [key for key, _ in scan]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert keys == ["text", "list", "last"]
    assert scan.complete
    assert peak < 2_000_000  # of 40 MB
