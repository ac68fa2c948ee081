"""Decodes one event of a chrome trace: strictly, and if that fails, tolerantly.

This module defines the meaning of an event. The scanners that read thousands at once (`rows.py`, `native/scan.c`) agree
with it or use it. The args of an event are the JSON object of its details: ids, shapes, the stream.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard import units
from trainyard.events import I64
from trainyard.formats.decoding import UNREADABLE

_RAW = msgspec.Raw(b"")
_COMMA, _DOT = b",."
_IS_PLAIN_CHARACTER = np.zeros(256, bool)
_IS_PLAIN_CHARACTER[list(b"0123456789,.")] = True
"""Indexed by a byte: whether it is a digit, a point or the comma that separates timestamps."""
_MAX_SINGLY = 8
"""Up to this many timestamps are read as fast one by one."""
_MAX_DIGITS = 17
"""Maximum digits of a timestamp: neither the timestamp nor a thousand times its last unit exceeds 64 bits."""
_MAX_INT64 = 2**63 - 1
_Int = Annotated[int, msgspec.Meta(ge=-_MAX_INT64, le=_MAX_INT64)]


class ChromeEvent(msgspec.Struct, gc=False):
    """A chrome-trace event. Timestamps and args stay raw JSON until needed: a float64 cannot hold a timestamp."""

    ph: str = ""
    cat: str | None = None
    name: str | int | None = None
    ts: msgspec.Raw = _RAW
    dur: msgspec.Raw = _RAW
    pid: int | str = 0
    tid: int | str = 0
    args: msgspec.Raw = _RAW


class OpArgs(msgspec.Struct, gc=False):
    """The args of a framework op that are read; -1 if absent. Shapes stay raw JSON: few of them are distinct."""

    external_id: _Int = msgspec.field(name="External id", default=-1)
    seq: _Int = msgspec.field(name="Sequence number", default=-1)
    forward_thread: _Int = msgspec.field(name="Fwd thread id", default=0)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_RAW)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_RAW)
    values: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_RAW)
    rank: _Int = -1


class CallArgs(msgspec.Struct, gc=False):
    """The args of a driver call that are read."""

    correlation: _Int = -1
    rank: _Int = -1


class DeviceArgs(msgspec.Struct, gc=False):
    """The args of device work or of a stream wait that are read."""

    correlation: _Int = -1
    external_id: _Int = msgspec.field(name="External id", default=-1)
    old_external_id: _Int = msgspec.field(name="external id", default=-1)
    device: _Int = -1
    stream: msgspec.Raw = _RAW
    bytes: _Int = -1
    occupancy: _Int = msgspec.field(name="est. achieved occupancy %", default=-1)
    wait_on: _Int = msgspec.field(name="wait_on_stream", default=-1)
    collective: msgspec.Raw = msgspec.field(name="Collective name", default=_RAW)
    rank: _Int = -1


class MemoryArgs(msgspec.Struct, gc=False):
    """The args of an allocation or a free that are read; a free has negative bytes."""

    bytes: _Int = msgspec.field(name="Bytes", default=0)
    address: _Int = msgspec.field(name="Addr", default=-1)
    total: _Int = msgspec.field(name="Total Allocated", default=-1)
    reserved: _Int = msgspec.field(name="Total Reserved", default=-1)
    device: _Int = msgspec.field(name="Device Id", default=-1)
    device_type: _Int = msgspec.field(name="Device Type", default=0)


decode_events = msgspec.json.Decoder(list[ChromeEvent]).decode
_decode_event = msgspec.json.Decoder(ChromeEvent).decode
_decoders: dict[type, Any] = {
    kind: msgspec.json.Decoder(kind).decode for kind in (OpArgs, CallArgs, DeviceArgs, MemoryArgs)
}
_Args = TypeVar("_Args", OpArgs, CallArgs, DeviceArgs, MemoryArgs)
_decode_any = msgspec.json.Decoder().decode
UNREADABLE_EVENT = (*UNREADABLE, ValueError)


def read_event(text: bytes) -> ChromeEvent | None:
    """Decodes an event from its JSON; None if `text` is not a JSON object.

    If strict decoding fails, NaN and Infinity are read as null, bytes that are not UTF-8 are replaced, control
    characters are accepted, and a field of another type than Kineto's is left out (pid and tid become texts).
    """
    try:
        return _decode_event(text)
    except UNREADABLE_EVENT:
        pass
    try:
        decoded = _decode_tolerantly(text)
    except UNREADABLE_EVENT:
        return None
    if not isinstance(decoded, dict):
        return None
    event = ChromeEvent()
    for field in ("ph", "cat", "name"):
        value = decoded.get(field)
        if isinstance(value, str) or (field == "name" and type(value) is int):
            setattr(event, field, _replace_surrogates(value) if isinstance(value, str) else value)
    for field in ("pid", "tid"):
        value = decoded.get(field)
        if value is not None:
            setattr(event, field, value if type(value) is int else _replace_surrogates(str(value)))
    for field in ("ts", "dur", "args"):
        # A duration of null stays null, which is unreadable; an absent one is 0.
        if decoded.get(field) is not None or (field in decoded and field == "dur"):
            setattr(event, field, _encode_raw(decoded[field]))
    return event


def decode_all_args(raws: list[msgspec.Raw], args_type: type[_Args]) -> list[_Args]:
    """Decodes the args of each event, given as raw JSON (empty if the event has none), as `OpArgs`, `CallArgs`,
    `DeviceArgs` or `MemoryArgs`; a field of another type or beyond 64 bits keeps its default."""
    decode = _decoders[args_type]
    try:
        return [decode(raw or b"{}") for raw in raws]
    except UNREADABLE_EVENT:
        return [_decode_args_tolerantly(raw, args_type) for raw in raws]


def _decode_args_tolerantly(raw: msgspec.Raw, args_type: type[_Args]) -> _Args:
    """Decodes the args of one event, field by field if they cannot be decoded as a whole; a field of another type or
    beyond 64 bits keeps its default."""
    args = args_type()
    if not raw:
        return args
    try:
        return _decoders[args_type](raw)
    except UNREADABLE_EVENT:
        decoded = decode_args(raw)
    # Name of each attribute, and its key in the JSON.
    for name, key in zip(args_type.__struct_fields__, args_type.__struct_encode_fields__):
        value = decoded.get(key)
        if isinstance(getattr(args, name), int):  # by its default; the other fields are raw JSON
            if type(value) is int and abs(value) <= _MAX_INT64:
                setattr(args, name, value)
        elif value is not None:
            setattr(args, name, _encode_raw(value))
    return args


def decode_args(raw: msgspec.Raw | bytes) -> dict[str, Any]:
    """Decodes all of an event's args; empty if they are not an object."""
    try:
        value = _decode_any(raw) if raw else None
    except UNREADABLE_EVENT:
        return {}
    return value if isinstance(value, dict) else {}


def _decode_tolerantly(text: bytes) -> Any:
    """Decodes with Python's json. A number with a decimal point becomes a string, which keeps all its digits."""
    return json.loads(text.decode("utf-8", "replace"), strict=False, parse_float=str, parse_constant=lambda _: None)


def _encode_raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(_replace_surrogates(json.dumps(value, ensure_ascii=False)).encode())


def _replace_surrogates(text: str) -> str:
    """The text without unpaired surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def parse_timestamps_ns(stamps: Sequence[msgspec.Raw | bytes]) -> tuple[I64, NDArray[np.bool_]]:
    """Converts decimal microseconds, as raw JSON, to integer ns without rounding through a float.

    Returns (ns of each timestamp, 0 if it is invalid; whether each is valid). Digits beyond the ns are cut off; quotes
    around a timestamp are ignored.
    """
    all_ns = _parse_plain_timestamps_ns(stamps) if len(stamps) > _MAX_SINGLY else None
    if all_ns is not None:
        return all_ns, np.ones(len(all_ns), bool)
    ns, is_valid = np.zeros(len(stamps), np.int64), np.zeros(len(stamps), bool)
    for row, stamp in enumerate(stamps):
        try:
            ns[row] = units.ns_from_us(bytes(stamp).strip(b'"'))
            is_valid[row] = True
        except ValueError:
            pass
    return ns, is_valid


def _parse_plain_timestamps_ns(stamps: Sequence[msgspec.Raw | bytes]) -> I64 | None:
    """Converts the timestamps, decimal microseconds, to ns with a few numpy operations on all of them together; None
    unless each consists of digits with at most one point among them and fits 64 bits.

    Joins the timestamps with commas, reads them as integers without their points, and scales each integer by the number
    of its decimals: `12.34` becomes 1234, and 1234 * 10 ** (3 - 2) = 12,340 ns.
    """
    text = b",".join([*stamps, b""])
    chars = np.frombuffer(text, np.uint8)
    if not len(chars) or not _IS_PLAIN_CHARACTER[chars].all():
        return None
    ends = np.flatnonzero(chars == _COMMA)
    starts = np.concatenate([[0], ends[:-1] + 1])
    dots = np.flatnonzero(chars == _DOT)
    stamp_of_dot = np.searchsorted(ends, dots)  # row in `stamps` of each point
    decimal_count = np.zeros(len(ends), np.int64)
    decimal_count[stamp_of_dot] = ends[stamp_of_dot] - dots - 1
    digit_count = ends - starts
    digit_count[stamp_of_dot] -= 1
    # At most one point in each timestamp, with digits on both sides.
    has_one_dot = bool((np.diff(stamp_of_dot) > 0).all())
    has_decimals = bool((decimal_count[stamp_of_dot] > 0).all())
    has_integer_part = bool((digit_count > decimal_count).all())
    is_well_formed = has_one_dot and has_decimals and has_integer_part
    if len(ends) != len(stamps) or not is_well_formed or (digit_count > _MAX_DIGITS).any():
        return None
    digits_as_int = np.fromstring(text.translate(None, b".")[:-1].decode(), np.int64, sep=",")
    needs_scaling_up = decimal_count <= 3
    if (digit_count + np.where(needs_scaling_up, 3 - decimal_count, 0) > 18).any():  # 10 ** 18 < 2 ** 63
        return None
    power = 10 ** np.abs(3 - decimal_count)
    return np.where(needs_scaling_up, digits_as_int * power, digits_as_int // power)
