"""What a checkpoint's folder holds, as its manifest says: digests of files, where each tensor's pieces lie. No torch.

rank<N>.bin    the pieces that rank N wrote: plain values, little-endian, each at a multiple of 64 bytes
manifest.json  {"body": Manifest, "sha256": digest of the body's bytes}; written last

Nothing here is ever executed: the manifest is JSON of known types, and what it points at is read as numbers.
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
LARGEST = 1 << 28
"""Bytes a manifest may have: a million pieces of tensors have some 200 each."""
MOST_DIMENSIONS = 32
"""Dimensions that a tensor may have: numpy 1 allows no more."""
_MOST_BYTES = 2**63 - 1
"""Bytes that a tensor may have with its empty dimensions left out, as numpy and torch count them."""
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
"""Bytes of a value, by torch's name of its type; no other type is read or written."""

_FILE = re.compile(r"rank\d{1,6}\.bin\Z", re.ASCII)
_NAMED = 3
"""Strange files that are named."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A box of a tensor: where it begins, how long it is along each dimension, and from which byte of `file` it lies
    there, last dimension fastest."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    at: int


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A whole tensor, in pieces that form a grid: each dimension is cut at the same positions everywhere."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


class File(msgspec.Struct, frozen=True, kw_only=True):
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The state after step `step`, written by `ranks` ranks. `numbers`: small state that is no tensor."""

    step: int
    ranks: int
    saved: str
    job: Job
    files: dict[str, File]
    tensors: dict[str, Stored]
    numbers: dict[str, float] = {}
    schema: str = SCHEMA


class _Sealed(msgspec.Struct, forbid_unknown_fields=True):
    body: msgspec.Raw
    sha256: str


def seal(manifest: Manifest) -> bytes:
    body = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Sealed(msgspec.Raw(body), hashlib.sha256(body).hexdigest()))


def unseal(data: bytes) -> Manifest:
    """Raises `BadFile` with the reason when a byte is not what was written, or what was written makes no sense."""
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        if hashlib.sha256(sealed.body).hexdigest() != sealed.sha256:
            raise DamagedFile(f"{NAME} is not what was written: its sha256 differs.")
        manifest = msgspec.json.decode(sealed.body, type=Manifest)
    except (*UNREADABLE, ValueError) as error:
        if isinstance(error, BadFile):
            raise
        raise BadFile(f"{NAME} is no manifest: {error}.") from error
    for name, stored in manifest.tensors.items():
        _check(name, stored, manifest.files)
    return manifest


def _check(name: str, stored: Stored, files: dict[str, File]) -> None:
    """Raises `BadFile` unless the pieces lie inside their files and make up the whole tensor, each value once."""
    width = WIDTHS.get(stored.dtype)
    if width is None:
        raise BadFile(f"{NAME}: {name} has the dtype {stored.dtype!r}. Known: {', '.join(WIDTHS)}.")
    if len(stored.shape) > MOST_DIMENSIONS:
        raise BadFile(f"{NAME}: {name} has {len(stored.shape)} dimensions, but at most {MOST_DIMENSIONS} are read.")
    if min(stored.shape, default=0) < 0 or prod(filter(None, stored.shape)) * width > _MOST_BYTES:
        raise BadFile(f"{NAME}: {name} cannot have the shape {[*stored.shape]}.")
    for piece in stored.pieces:
        inside = len(piece.offsets) == len(piece.sizes) == len(stored.shape) and all(
            0 <= offset <= offset + size <= whole
            for offset, size, whole in zip(piece.offsets, piece.sizes, stored.shape)
        )
        file = files.get(piece.file)
        if not inside or file is None or not 0 <= piece.at <= file.bytes - prod(piece.sizes) * width:
            raise BadFile(
                f"{NAME}: a piece of {name} with offsets {[*piece.offsets]} and sizes {[*piece.sizes]}, at byte "
                f"{piece.at:,} of {piece.file!r}, exceeds the shape {[*stored.shape]} or the file."
            )
    if not _is_whole(stored):
        held = sum(prod(piece.sizes) for piece in stored.pieces)
        raise BadFile(
            f"{NAME}: the pieces of {name} have {held:,} values, but its shape has {prod(stored.shape):,}, each once."
        )


def _is_whole(stored: Stored) -> bool:
    """Whether the pieces cover the tensor, each value once. Linear in their number, but for sorting.

    Distinct cells of a grid do not overlap, so that they cover the tensor if they have as many values.
    """
    pieces = [(piece.offsets, piece.sizes) for piece in stored.pieces if prod(piece.sizes)]
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
    """Intervals as (offset, size)."""
    return all(before[0] + before[1] <= after[0] for before, after in pairwise(sorted(intervals)))


def strangers(folder: Path, manifest: Manifest) -> str:
    """What lies in the folder and is not of the manifest, or could not be; empty when all is as it should be."""
    wrong = [name for name in manifest.files if not _FILE.match(name)]
    there = {path.name for path in folder.iterdir()} - {NAME}
    wrong += sorted(there - manifest.files.keys())
    if not wrong:
        return ""
    return f"{listed([*map(printable, wrong)], _NAMED)}: no part of what was written"


def damage(folder: Path, manifest: Manifest, names: Iterable[str]) -> str:
    """Why the files `names` are not what was written; empty when they are. Reads them whole."""
    found: list[str] = []
    for name in names:
        said, path = manifest.files[name], folder / name
        try:
            if not is_regular(path, links=False):
                found.append(f"{name} is missing")
            elif path.stat().st_size != said.bytes:
                found.append(f"{name} has {path.stat().st_size:,} bytes, but {said.bytes:,} were written")
            elif sha256_of(path) != said.sha256:
                found.append(f"{name} is not what was written: its sha256 differs")
        except OSError as error:
            found.append(f"{name} cannot be read: {error.strerror or error}")
    return "; ".join(found)
