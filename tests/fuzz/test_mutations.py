"""Random mutations of valid files of every kind: a small version of `validation/fuzz` for every test run."""

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.target import check, seeds

TOKENS = [
    b"NaN", b"-Infinity", b"1e999999", b"-", b"null", b"[", b"]", b"{", b"}", b'"', b"\\", b"\\ud800", b",", b":",
    b"\xff", b"\x00", b"\x1b", b"\n", b"9223372036854775807", b"-9223372036854775808", b"18446744073709551616",
    b"0.0005", b'"dur": -1,', b'"ph": "X", ', b'"traceEvents": [', b"\xed\xa0\x80", b"\x80" * 10, b"\xff" * 9 + b"\x01",
]  # fmt: skip
KINDS = [
    "kineto", "kineto, header last", "kineto, pretty", "kineto, bare", "kineto, cpu", "rocprof", "pftrace", "xplane",
    "neuron", "nsys",
]  # fmt: skip


@st.composite
def mutations(draw, data: bytes) -> bytes:
    """The data with a few bytes changed, removed, duplicated or inserted."""
    raw = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        offset = draw(st.integers(0, len(raw)))
        length = draw(st.one_of(st.integers(1, 8), st.integers(1, max(1, len(raw)))))
        kind = draw(st.integers(0, 4))
        if kind == 0:
            raw[offset : offset + 1] = bytes([draw(st.integers(0, 255))])
        elif kind == 1:
            del raw[offset : offset + length]
        elif kind == 2:
            raw[offset:offset] = raw[offset : offset + length]
        elif kind == 3:
            raw[offset:offset] = draw(st.sampled_from(TOKENS))
        else:
            token = draw(st.sampled_from(TOKENS))
            raw[offset : offset + len(token)] = token
    return bytes(raw)


@pytest.fixture(scope="module")
def seed_of(tmp_path_factory):
    by_kind = seeds(tmp_path_factory.mktemp("seeds"))
    assert list(by_kind) == KINDS
    return by_kind.__getitem__  # a function, so that a failure does not print all seeds


@pytest.mark.parametrize("kind", KINDS)
def test_valid_file_passes(kind, seed_of, tmp_path):
    check(seed_of(kind), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150)
@given(data=st.data())
def test_mutated_file_is_read_or_refused(kind, seed_of, tmp_path_factory, data):
    check(data.draw(mutations(seed_of(kind))), tmp_path_factory.mktemp("t"))


@settings(max_examples=100)
@given(data=st.data())
def test_mutated_gzip_file_is_read_or_refused(seed_of, tmp_path_factory, data):
    check(data.draw(mutations(gzip.compress(seed_of("kineto"), mtime=0))), tmp_path_factory.mktemp("t"))


@settings(max_examples=200)
@given(
    st.binary(max_size=300), st.sampled_from([b"", b"{", b"[", b"\x1f\x8b\x08", b"PK\x03\x04", b"\x80\x02", b"\x0a"])
)
def test_random_bytes_are_read_or_refused(tmp_path_factory, data, head):
    check(head + data, tmp_path_factory.mktemp("t"))
