"""The manifest of a checkpoint: digests of its files and the location of each tensor's pieces. Needs no torch.

rank<N>.bin    the pieces written by rank N: raw little-endian values, each at a multiple of 64 bytes
manifest.json  {"body": Manifest, "sha256": digest of the body's bytes}; written last

Loading never executes code: the manifest is JSON of known types, and the files are read as numbers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from itertools import pairwise
from math import prod
from pathlib import Path

import msgspec

from trainyard.errors import BadFile, DamagedFile
from trainyard.formats.decoding import UNREADABLE
from trainyard.formats.regular_files import is_regular, sha256_of
from trainyard.job import Job
from trainyard.printable import printable
from trainyard.units import listed

NAME = "manifest.json"
MAX_BYTES = 1 << 28
"""Maximum bytes of a manifest: enough for a million tensor pieces of about 200 bytes."""
MAX_DIMENSIONS = 32
"""Maximum number of dimensions of a tensor: the limit of numpy 1."""
_MAX_TENSOR_BYTES = 2**63 - 1
"""Maximum bytes of a tensor, without its empty dimensions, as numpy and torch count them."""
SCHEMA = "trainyard/checkpoint/1"
WIDTHS = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
"""Bytes of a value by torch dtype name. Other dtypes are neither read nor written."""

_FILE = re.compile(r"rank\d{1,6}\.bin\Z", re.ASCII)
_MAX_LISTED = 3
"""Maximum number of unexpected files that a message names."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A box of a tensor: offset and size in each dimension, and the byte of `file` at which it begins (row-major)."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    at: int


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """An unsharded tensor, in pieces that form a grid: each dimension is cut at the same positions everywhere. `dtype`:
    a key of `WIDTHS`."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


class File(msgspec.Struct, frozen=True, kw_only=True):
    """Size and digest of a rank's file."""

    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The state after step `step`, written by `ranks` ranks. `numbers`: scalar state."""

    step: int
    ranks: int
    saved: str
    """When it was written: ISO 8601, UTC."""
    job: Job
    files: dict[str, File]
    """The ranks' files by name (`rank<N>.bin`)."""
    tensors: dict[str, Stored]
    """Weights, buffers, optimizer state and generators by name (see training_state.py)."""
    numbers: dict[str, float] = {}
    """Scalar state by name, such as the loss scale."""
    digests: dict[str, str] = {}
    """Digests by name, such as `weights_initial`. Empty in older checkpoints."""
    schema: str = SCHEMA


class _Sealed(msgspec.Struct, forbid_unknown_fields=True):
    """The content of manifest.json: a manifest's bytes as `body`, and their digest."""

    body: msgspec.Raw
    sha256: str


def seal(manifest: Manifest) -> bytes:
    """The contents of manifest.json: the manifest and its digest."""
    body = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Sealed(msgspec.Raw(body), hashlib.sha256(body).hexdigest()))


def unseal(data: bytes) -> Manifest:
    """Decodes and checks a manifest. Raises `BadFile` if its digest differs or its content is inconsistent."""
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        if hashlib.sha256(sealed.body).hexdigest() != sealed.sha256:
            raise DamagedFile(f"{NAME} is not what was written: its sha256 differs.")
        manifest = msgspec.json.decode(sealed.body, type=Manifest)
    except (*UNREADABLE, ValueError) as error:
        if isinstance(error, BadFile):
            raise
        raise BadFile(f"{NAME} is not a valid manifest: {error}.") from error
    for name, stored in manifest.tensors.items():
        _check_tensor(name, stored, manifest.files)
    return manifest


def _check_tensor(name: str, stored: Stored, files: dict[str, File]) -> None:
    """Raises `BadFile` unless the pieces of tensor `name` lie inside their files and cover the tensor, each value once.
    `files`: the ranks' files by name."""
    width = WIDTHS.get(stored.dtype)
    if width is None:
        raise BadFile(f"{NAME}: {name} has the dtype {stored.dtype!r}. Known: {', '.join(WIDTHS)}.")
    if len(stored.shape) > MAX_DIMENSIONS:
        raise BadFile(f"{NAME}: {name} has {len(stored.shape)} dimensions; the maximum is {MAX_DIMENSIONS}.")
    if min(stored.shape, default=0) < 0 or prod(filter(None, stored.shape)) * width > _MAX_TENSOR_BYTES:
        raise BadFile(f"{NAME}: {name} cannot have the shape {[*stored.shape]}.")
    for piece in stored.pieces:
        inside = len(piece.offsets) == len(piece.sizes) == len(stored.shape) and all(
            0 <= offset <= offset + size <= length
            for offset, size, length in zip(piece.offsets, piece.sizes, stored.shape)
        )
        file = files.get(piece.file)
        if not inside or file is None or not 0 <= piece.at <= file.bytes - prod(piece.sizes) * width:
            raise BadFile(
                f"{NAME}: a piece of {name} with offsets {[*piece.offsets]} and sizes {[*piece.sizes]}, at byte "
                f"{piece.at:,} of {piece.file!r}, exceeds the shape {[*stored.shape]} or the file."
            )
    if not _is_whole(stored):
        covered = sum(prod(piece.sizes) for piece in stored.pieces)
        raise BadFile(
            f"{NAME}: the pieces of {name} have {covered:,} values, but its shape {[*stored.shape]} has "
            f"{prod(stored.shape):,}, and each must be covered once."
        )


def _is_whole(stored: Stored) -> bool:
    """Whether the pieces cover the tensor, each value once. Linear in their number, except for sorting.

    The pieces form a grid if their intervals in each dimension are disjoint. Distinct cells of a grid do not overlap,
    so they cover the tensor if they have as many values as it.
    """
    pieces = [(piece.offsets, piece.sizes) for piece in stored.pieces if prod(piece.sizes)]  # without empty ones
    cells = set(pieces)
    return (
        sum(prod(sizes) for _, sizes in pieces) == prod(stored.shape)
        and len(cells) == len(pieces)
        and all(
            _are_disjoint({(offsets[dimension], sizes[dimension]) for offsets, sizes in cells})
            for dimension in range(len(stored.shape))
        )
    )


def _are_disjoint(intervals: set[tuple[int, int]]) -> bool:
    """Whether no two of the intervals, each (offset, size), overlap."""
    return all(before[0] + before[1] <= after[0] for before, after in pairwise(sorted(intervals)))


def unlisted_files(folder: Path, manifest: Manifest) -> str:
    """Describes files in the folder that the manifest does not list, or lists under an invalid name; empty if none."""
    unexpected = [name for name in manifest.files if not _FILE.match(name)]
    present = {path.name for path in folder.iterdir()} - {NAME}
    unexpected += sorted(present - manifest.files.keys())
    if not unexpected:
        return ""
    return f"{listed([*map(printable, unexpected)], _MAX_LISTED)}: not part of the checkpoint that was written"


def damage(folder: Path, manifest: Manifest, names: Iterable[str]) -> str:
    """Describes how the files `names` in `folder` differ in size or digest from those listed in the manifest; an empty
    string if they do not. Reads the files completely."""
    problems: list[str] = []
    for name in names:
        written, path = manifest.files[name], folder / name
        try:
            if not is_regular(path, links=False):
                problems.append(f"{name} is missing")
            elif path.stat().st_size != written.bytes:
                problems.append(f"{name} has {path.stat().st_size:,} bytes, but {written.bytes:,} were written")
            elif sha256_of(path) != written.sha256:
                problems.append(f"{name} is not what was written: its sha256 differs")
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror or error}")
    return "; ".join(problems)
