"""Files of recorded tensors: what is written is read; cut, damaged and hostile files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.refused import refused
from trainyard.errors import BadFile, MissingFile
from trainyard.numerics.record_files import FORMAT, RecordWriter, read_rank, read_variant, variants
from trainyard.numerics.tensor_record import BUCKETS, SAMPLES, NonFinite, RecordHeader, Shard, TensorRecord

HEADER = RecordHeader(format=FORMAT, variant="plain", rank=0, ranks=1, level="operations")
RECORD = TensorRecord(index=0, step=0, phase="forward", role="output", sketch=bytes(8 * BUCKETS))
sizes = st.integers(0, 1 << 40)
records = st.builds(
    TensorRecord,
    index=sizes,
    step=sizes,
    phase=st.sampled_from(["forward", "backward", "optimizer"]),
    role=st.sampled_from(["output", "gradient", "weight"]),
    module=st.text(max_size=50),
    operation=st.text(max_size=50),
    call=sizes,
    shape=st.lists(sizes, max_size=4).map(tuple),
    shard=st.none() | st.builds(Shard, offset=st.just((0, 1)), shape=st.just((2, 3)), partial=st.booleans()),
    norm=st.floats(0, allow_infinity=False),
    mean=st.floats(allow_nan=False, allow_infinity=False),
    nonfinite=st.none() | st.builds(NonFinite, nan=sizes, masked=st.booleans()),
    sketch=st.sampled_from([b"", bytes(8 * BUCKETS), b"\x01" * 8 * BUCKETS]),
    sample=st.integers(0, SAMPLES).map(lambda count: bytes(8 * count)),
)


def write(folder: Path, *tensors: TensorRecord, header: RecordHeader = HEADER) -> Path:
    with RecordWriter(folder, header) as writer:
        for tensor in tensors:
            writer.write(tensor)
    return folder / header.variant / f"rank{header.rank}.jsonl.gz"


@given(tensors=st.lists(records, max_size=5))
def test_what_is_written_is_read(tensors, tmp_path_factory):
    path = write(tmp_path_factory.mktemp("record"), *tensors)
    assert read_rank(path) == (HEADER, tensors, False)


@given(kept=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_yields_its_beginning_or_an_error(kept, tmp_path_factory):
    tensors = [replace(RECORD, index=index, norm=index * 0.1) for index in range(50)]
    path = write(tmp_path_factory.mktemp("record"), *tensors)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    try:
        read = read_rank(path)
    except BadFile:
        return
    assert read.is_cut
    assert read.tensors == tensors[: len(read.tensors)]


def test_flushed_records_are_readable_before_the_end(tmp_path):
    writer = RecordWriter(tmp_path, HEADER)
    writer.write(RECORD)
    writer.flush()
    assert read_rank(tmp_path / "plain" / "rank0.jsonl.gz") == (HEADER, [RECORD], True)
    writer.close()


def test_a_second_writer_of_a_rank_does_not_overwrite(tmp_path):
    write(tmp_path, RECORD)
    with pytest.raises(FileExistsError):
        RecordWriter(tmp_path, HEADER)


def test_missing_ranks_and_variants_are_named(tmp_path):
    write(tmp_path, RECORD, header=replace(HEADER, rank=1, ranks=3))
    with refused(MissingFile, 1, 3, 0):
        read_variant(tmp_path, "plain")
    with refused(MissingFile, tmp_path / "none"):
        variants(tmp_path / "none")
    assert variants(tmp_path) == ["plain"]


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[" * 100_000,
        b'{"index": 0}',
        b'{"index": -1, "step": 0, "phase": "forward", "role": "output"}',
        b'{"index": 0, "step": 0, "phase": "sideways", "role": "output"}',
        b'{"index": 0, "step": 0, "phase": "forward", "role": "output", "sketch": "AAAA"}',
        b'{"index": 0, "step": 0, "phase": "forward", "role": "output", "sketch": "?"}',
        b'{"index": 0, "step": 0, "phase": "forward", "role": "output", "norm": NaN}',
        b'{"index": 0, "step": 0, "phase": "forward", "role": "output", "module": "' + b"x" * 2000 + b'"}',
        b'{"index": 0, "step": 0, "phase": "forward", "role": "output", "shape": [' + b"1," * 99 + b"1]}",
        b"x" * 200_000,
    ],
)
def test_hostile_lines_are_refused(line, tmp_path):
    path = write(tmp_path, RECORD)
    path.write_bytes(path.read_bytes() + gzip.compress(line + b"\n"))
    with pytest.raises(BadFile):
        read_rank(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"not gzip", gzip.compress(b""), gzip.compress(b"{}\n")],
    ids=["empty", "not gzip", "no header", "no fields"],
)
def test_files_that_are_no_records_are_refused(content, tmp_path):
    path = tmp_path / "rank0.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(BadFile):
        read_rank(path)
    with refused(BadFile, FORMAT + 1, FORMAT):
        read_rank(write(tmp_path, header=replace(HEADER, format=FORMAT + 1)))
