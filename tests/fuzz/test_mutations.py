"""Well-formed files of every kind, changed at random: a part of what `fuzz_trace.py` does, for every test run."""

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
    "kineto", "kineto, header behind", "kineto, pretty", "kineto, bare", "kineto, cpu", "rocprof", "pftrace", "xplane",
    "neuron", "nsys",
]  # fmt: skip


@st.composite
def mutations(draw, data: bytes) -> bytes:
    """A few bytes flipped, cut out, written twice or pushed in."""
    raw = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(raw)))
        length = draw(st.one_of(st.integers(1, 8), st.integers(1, max(1, len(raw)))))
        kind = draw(st.integers(0, 4))
        if kind == 0:
            raw[place : place + 1] = bytes([draw(st.integers(0, 255))])
        elif kind == 1:
            del raw[place : place + length]
        elif kind == 2:
            raw[place:place] = raw[place : place + length]
        elif kind == 3:
            raw[place:place] = draw(st.sampled_from(TOKENS))
        else:
            token = draw(st.sampled_from(TOKENS))
            raw[place : place + len(token)] = token
    return bytes(raw)


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    made = seeds(tmp_path_factory.mktemp("seeds"))
    assert list(made) == KINDS
    return made.__getitem__  # a function, so that a failure does not print all seeds


@pytest.mark.parametrize("kind", KINDS)
def test_a_well_formed_file_passes(kind, known, tmp_path):
    check(known(kind), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150)
@given(data=st.data())
def test_no_change_of_bytes_is_worse_than_a_clear_error(kind, known, tmp_path_factory, data):
    check(data.draw(mutations(known(kind))), tmp_path_factory.mktemp("t"))


@settings(max_examples=100)
@given(data=st.data())
def test_nor_in_a_packed_file(known, tmp_path_factory, data):
    check(data.draw(mutations(gzip.compress(known("kineto"), mtime=0))), tmp_path_factory.mktemp("t"))


@settings(max_examples=200)
@given(
    st.binary(max_size=300), st.sampled_from([b"", b"{", b"[", b"\x1f\x8b\x08", b"PK\x03\x04", b"\x80\x02", b"\x0a"])
)
def test_nor_in_bytes_without_sense(tmp_path_factory, data, head):
    check(head + data, tmp_path_factory.mktemp("t"))
