"""The chrome trace that Kineto writes: unpacked, decoded, its stamps and args left raw until they are wanted."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec

from trainyard.errors import BadFile

_RAW = msgspec.Raw(b"")


class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | int | None = None
    ts: msgspec.Raw = _RAW
    dur: msgspec.Raw = _RAW
    pid: msgspec.Raw = _RAW
    tid: msgspec.Raw = _RAW
    args: msgspec.Raw = _RAW


class Distributed(msgspec.Struct):
    rank: Annotated[int, msgspec.Meta(ge=-1, lt=2**31)] = -1
    world_size: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] = 1
    backend: str = ""
    pg_config: list[dict[str, Any]] | None = None


class Document(msgspec.Struct):
    traceEvents: list[Event] | None = None
    deviceProperties: list[dict[str, Any]] | None = None
    distributedInfo: Distributed | None = None
    baseTimeNanoseconds: int | str = 0
    host_name: str = ""


_LARGEST = 2**63 - 1
_Int = Annotated[int, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]


class Args(msgspec.Struct, gc=False):
    correlation: _Int = -1
    external_id: _Int = msgspec.field(name="External id", default=-1)
    old_external_id: _Int = msgspec.field(name="external id", default=-1)
    device: _Int = -1
    stream: _Int | str = -1
    seq: _Int = msgspec.field(name="Sequence number", default=-1)
    forward_thread: _Int = msgspec.field(name="Fwd thread id", default=0)


_decode_args = msgspec.json.Decoder(Args).decode
_decode_any = msgspec.json.Decoder().decode
_decode_file = msgspec.json.Decoder(Document).decode
_decode_list = msgspec.json.Decoder(list[Event]).decode


def load(path: Path) -> Document:
    """The whole file. Raises `BadFile`: missing, empty, truncated, damaged, not JSON, of another schema."""
    return _decode(path, _unpacked(path))


def plain(raw: msgspec.Raw) -> dict[str, Any]:
    """An event's args, whatever they are; empty where they are no object."""
    value = _decode_any(raw) if raw else None
    return value if isinstance(value, dict) else {}


def args_of(event: Event) -> Args:
    """The args that every event is asked for; a field of an odd type or size stays at its default."""
    if not event.args:
        return Args()
    try:
        return _decode_args(event.args)
    except msgspec.ValidationError:
        found = plain(event.args)
        fields = zip(Args.__struct_fields__, Args.__struct_encode_fields__)
        return Args(
            **{
                name: found[field]
                for name, field in fields
                if type(found.get(field)) is int and abs(found[field]) <= _LARGEST
            }
        )


def _unpacked(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadFile(f"{path}: cannot be read: {error.strerror}.") from error
    if data[:2] == b"\x1f\x8b":
        try:
            return _gunzip()(data)
        except (EOFError, OSError, zlib.error) as error:
            raise BadFile(
                f"{path}: the gzip stream is damaged after {len(data):,} bytes: {error}.",
                "Was the copy or the run cut short?",
            ) from error
    if not data.strip():
        raise BadFile(f"{path}: the file is empty.", "Was the run cut short before the trace was written?")
    return data.removeprefix(b"\xef\xbb\xbf")


def _gunzip() -> Callable[[bytes], bytes]:
    try:
        from isal import igzip  # the extra `fast`
    except ImportError:
        return gzip.decompress
    return igzip.decompress


def _decode(path: Path, data: bytes) -> Document:
    bare = data.lstrip()[:1] == b"["
    try:
        return Document(traceEvents=_decode_list(data)) if bare else _decode_file(data)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadFile(f"{path}: not a Kineto trace: {error}.", "Was another tool's file named?") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _decode_slowly(path, data, str(error))


def _decode_slowly(path: Path, data: bytes, why: str) -> Document:
    """The tolerant way: NaN and Infinity, which Python's json writes, and bytes that are not UTF-8."""
    try:
        document = json.loads(data.decode("utf-8", "replace"), parse_float=Decimal, parse_constant=lambda _: None)
        if isinstance(document, list):
            document = {"traceEvents": document}
        return _decode_file(msgspec.json.Encoder(decimal_format="number").encode(document))
    except (ValueError, RecursionError) as error:
        raise BadFile(
            f"{path}: not JSON, or cut short: {why} ({len(data):,} bytes).", "Was the file still being written?"
        ) from error
