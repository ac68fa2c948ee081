"""Files of recorded tensors: `VARIANT/rankN.jsonl.gz` in the folder of a record, a header and then a line per tensor.

They come from other machines: sizes are limited, and every line is checked against its type.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, TypeVar

import msgspec

from trainyard.errors import BadFile, MissingFile
from trainyard.numerics.tensor_record import BUCKETS, SAMPLES, RecordHeader, TensorRecord

FORMAT = 1
_MOST_LINE_BYTES = 1 << 16
_MOST_TENSORS = 20_000_000
"""Per rank: 20 steps of a model of 1,000 layers at 1,000 tensors each."""
_MOST_TEXT = 1000
_MOST_DIMENSIONS = 64
_FILE = re.compile(r"rank(\d{1,7})\.jsonl\.gz")
_VARIANT = re.compile(r"plain|float64|replica-\d{1,4}")

T = TypeVar("T")
_encoder = msgspec.json.Encoder()
_header_decoder = msgspec.json.Decoder(RecordHeader)
_tensor_decoder = msgspec.json.Decoder(TensorRecord)


class RankRecord(NamedTuple):
    """The records of a rank in order. `is_cut`: the file ends in the middle, as the writing process was killed."""

    header: RecordHeader
    tensors: list[TensorRecord]
    is_cut: bool


class RecordWriter:
    """Writes the records of a rank. Flushed records are readable if the process is killed afterwards."""

    def __init__(self, folder: Path, header: RecordHeader) -> None:
        """`folder`: of the record; made if it is missing. Raises `OSError`, also if the rank has a file already."""
        path = folder / header.variant / f"rank{header.rank}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = gzip.GzipFile(path, "xb", compresslevel=1)
        self._write_line(header)

    def write(self, tensor: TensorRecord) -> None:
        """Appends a record."""
        self._write_line(tensor)

    def flush(self) -> None:
        """Makes everything written so far readable."""
        self._file.flush()

    def close(self) -> None:
        """Completes the file."""
        self._file.close()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_line(self, value: msgspec.Struct) -> None:
        self._file.write(_encoder.encode(value) + b"\n")


def recorded_variants(folder: Path) -> list[str]:
    """The variants that have a folder in that of a record, sorted."""
    return sorted(path.name for path in folder.iterdir() if _VARIANT.fullmatch(path.name)) if folder.is_dir() else []


def rank_files(folder: Path) -> dict[int, Path]:
    """The file of each rank in the folder of a variant, by rank."""
    paths = {int(match[1]): path for path in folder.iterdir() if (match := _FILE.fullmatch(path.name))}
    return dict(sorted(paths.items()))


def variants(folder: Path) -> list[str]:
    """The variants in the folder of a record, sorted. Raises `MissingFile` if there is none."""
    names = recorded_variants(folder)
    if not names:
        raise MissingFile(
            f"{folder} {'has no recorded tensors' if folder.exists() else 'does not exist'}.",
            "Pass the folder that `trainyard numerics record` wrote.",
        )
    return names


def read_variant(folder: Path, variant: str) -> list[RankRecord]:
    """The records of each rank of a variant, by rank. Raises `BadFile`, also if a rank's file is missing."""
    return [RankRecord(reader.header, list(reader), reader.is_cut) for reader in rank_readers(folder, variant)]


def count_records(folder: Path, variant: str) -> int:
    """The number of records of all ranks of a variant. Raises as `read_variant` does."""
    return sum(1 for reader in rank_readers(folder, variant) for _ in reader)


def rank_readers(folder: Path, variant: str) -> list[RankReader]:
    """A reader of each rank of a variant, by rank. Raises `BadFile`, also if a rank's file is missing."""
    paths = rank_files(folder / variant)
    readers = [RankReader(path) for path in paths.values()]
    if not readers:
        raise MissingFile(f"{folder / variant} has no file rankN.jsonl.gz.", "Record it again.")
    missing = sorted(set(range(readers[0].header.ranks)) - set(paths))
    if missing:
        raise MissingFile(
            f"{folder / variant} has {len(paths)} of {readers[0].header.ranks} ranks; rank {missing[0]} is missing.",
            "Copy the files of all ranks into one folder.",
        )
    return readers


def read_header(folder: Path, variant: str) -> RecordHeader:
    """How the lowest rank of a variant was recorded. Raises `BadFile`."""
    paths = rank_files(folder / variant)
    if not paths:
        raise MissingFile(f"{folder / variant} has no file rankN.jsonl.gz.", "Record it again.")
    return RankReader(paths[min(paths)]).header


def read_rank(path: Path) -> RankRecord:
    """The records of a rank. Of a file that is cut short, the complete ones. Raises `BadFile`."""
    reader = RankReader(path)
    return RankRecord(reader.header, list(reader), reader.is_cut)


class RankReader:
    """Reads the records of a rank one after the other, to be iterated over once. `is_cut`, after the last: the file
    ends in the middle. Raises `BadFile`."""

    def __init__(self, path: Path) -> None:
        self._path, self._lines = path, _lines(path)
        self.is_cut = False
        try:
            _, first = next(self._lines)
        except StopIteration:
            raise BadFile(f"{path} is empty.", "Record it again.") from None
        self.header = _decode(_header_decoder, first or b"", path, 1)
        if self.header.format != FORMAT:
            raise BadFile(f"{path} has format {self.header.format}; this version reads {FORMAT}.", "Record it again.")

    def __iter__(self) -> Iterator[TensorRecord]:
        for count, (number, line) in enumerate(self._lines):
            if line is None:
                self.is_cut = True
                return
            if count >= _MOST_TENSORS:
                raise BadFile(
                    f"{self._path} has more than {_MOST_TENSORS:,} records.", "Record fewer steps, or at another level."
                )
            tensor = _decode(_tensor_decoder, line, self._path, number)
            _check(tensor, self._path, number)
            yield tensor


def _lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Number and bytes of each line; None for the last if the file is cut short. Raises `BadFile`."""
    number = 0
    try:
        with gzip.open(path, "rb") as file:
            while line := file.readline(_MOST_LINE_BYTES):
                number += 1
                if not line.endswith(b"\n"):
                    if len(line) >= _MOST_LINE_BYTES:
                        raise BadFile(
                            f"{path}: line {number} has more than {_MOST_LINE_BYTES:,} bytes.", "Record it again."
                        )
                    yield number, None
                    return
                yield number, line
    except EOFError:
        yield number + 1, None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise BadFile(
            f"{path} is not a gzip file, or is damaged after line {number}: {error}.", "Record it again."
        ) from error
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror or error}.", "Check the file.") from error


def _decode(decoder: msgspec.json.Decoder[T], line: bytes, path: Path, number: int) -> T:
    """The value of a line. Raises `BadFile`."""
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadFile(f"{path}: line {number}: {error}.", "Record it again.") from error


def _check(tensor: TensorRecord, path: Path, number: int) -> None:
    """Raises `BadFile` for a record that no recorder writes."""
    texts = (tensor.module, tensor.operation, tensor.name, tensor.dtype, tensor.location, tensor.hash)
    shard = tensor.shard
    if (
        len(tensor.sketch) not in (0, 8 * BUCKETS)
        or len(tensor.sample) > 8 * SAMPLES
        or len(tensor.sample) % 8
        or max(map(len, texts)) > _MOST_TEXT
        or max(len(tensor.shape), len(shard.shape) if shard else 0, len(shard.offset) if shard else 0)
        > _MOST_DIMENSIONS
        or min((tensor.index, tensor.step, tensor.call, tensor.output, *tensor.shape, *tensor.inputs)) < 0
    ):
        raise BadFile(f"{path}: line {number} has a field of a wrong size.", "Record it again.")
