"""Exports columns as an Arrow C stream without the Arrow library, by filling the C structures through ctypes.

A consumer (polars, pyarrow, pandas) takes the stream from a capsule, calls `get_schema` for the names and types of the
columns and `get_next` for the data, and calls the `release` of each structure that it no longer needs. Source:
https://arrow.apache.org/docs/format/CDataInterface.html and CStreamInterface.html. A structure's `private_data` is the
key under which the objects that it points to stay alive until its consumer releases it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import CFUNCTYPE, POINTER, PYFUNCTYPE, Structure, c_char_p, c_int, c_int64, c_void_p, py_object
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.events import I32

_FORMAT_OF_DTYPE = {"bool": b"b", "int32": b"i", "int64": b"l", "float64": b"g"}
"""Arrow's format strings of numpy dtypes."""
_STRUCT_FORMAT, _TEXT_FORMAT = b"+s", b"U"
"""Format strings of a struct (a table) and of UTF-8 text with 64-bit offsets."""
_NULLABLE_FLAG = 2
"""ARROW_FLAG_NULLABLE: values of the column may be missing."""
_CAPSULE_NAME = b"arrow_array_stream"


class Words(NamedTuple):
    """A dictionary-encoded text column: row i is `words[codes[i]]`, or missing if the code is -1. Built by
    `text_column_from_codes`."""

    codes: I32
    words: tuple[str, ...]

    def texts(self) -> NDArray[np.object_]:
        """The text of each row, None if missing."""
        return np.array([*self.words, None], object)[self.codes]


Column = NDArray[Any] | Words
"""Numbers (a numpy.ma.MaskedArray if some are missing) or texts."""


class _Schema(Structure):
    pass


class _Array(Structure):
    pass


class _ArrowStream(Structure):
    pass


_Schema._fields_ = [
    ("format", c_char_p),
    ("name", c_char_p),
    ("metadata", c_void_p),
    ("flags", c_int64),
    ("n_children", c_int64),
    ("children", POINTER(POINTER(_Schema))),
    ("dictionary", POINTER(_Schema)),
    ("release", c_void_p),
    ("private_data", c_void_p),
]
_Array._fields_ = [
    ("length", c_int64),
    ("null_count", c_int64),
    ("offset", c_int64),
    ("n_buffers", c_int64),
    ("n_children", c_int64),
    ("buffers", POINTER(c_void_p)),
    ("children", POINTER(POINTER(_Array))),
    ("dictionary", POINTER(_Array)),
    ("release", c_void_p),
    ("private_data", c_void_p),
]
_ArrowStream._fields_ = [
    ("get_schema", c_void_p),
    ("get_next", c_void_p),
    ("get_last_error", c_void_p),
    ("release", c_void_p),
    ("private_data", c_void_p),
]
_Release = CFUNCTYPE(None, c_void_p)
_next_number = count(1)
_kept_alive: dict[int, Any] = {}
"""Objects that structures point to, by `private_data`."""
_in_capsules: dict[int, _ArrowStream] = {}
"""Streams by address, as long as their capsules exist."""


def make_stream(columns: Mapping[str, Column], length: int) -> object:
    """A PyCapsule named `arrow_array_stream` that holds the columns, all of `length` rows, as one batch.

    Numbers are not copied. The columns stay alive until the consumer releases the stream.
    """
    arrow_stream = _ArrowStream(
        get_schema=_address(_get_schema),
        get_next=_address(_get_next),
        get_last_error=_address(_get_last_error),
        release=_address(_release_stream),
        # (columns, length, whether the batch was delivered), which the callbacks read.
        private_data=_keep_alive([columns, length, False]),
    )
    _in_capsules[ctypes.addressof(arrow_stream)] = arrow_stream
    return _new_capsule(ctypes.addressof(arrow_stream), _CAPSULE_NAME, _address(_destroy_capsule))


@CFUNCTYPE(c_int, POINTER(_ArrowStream), POINTER(_Schema))
def _get_schema(arrow_stream: Any, into: Any) -> int:
    """ArrowArrayStream.get_schema: fills `into` with a struct type that has a child for each column.

    A text column is an int32 index into a dictionary of texts. Returns 0, Arrow's code for success.
    """
    columns: Mapping[str, Column] = _kept_alive[arrow_stream.contents.private_data][0]
    children = (_Schema * len(columns))()
    for child, (name, column) in zip(children, columns.items()):
        if isinstance(column, Words):
            texts = _Schema()
            _fill_schema(texts, _TEXT_FORMAT, b"")
            _fill_schema(child, _FORMAT_OF_DTYPE["int32"], name.encode(), dictionary=texts)
        else:
            _fill_schema(child, _FORMAT_OF_DTYPE[column.dtype.name], name.encode())
    _fill_schema(into.contents, _STRUCT_FORMAT, b"", children)
    return 0


@CFUNCTYPE(c_int, POINTER(_ArrowStream), POINTER(_Array))
def _get_next(arrow_stream: Any, into: Any) -> int:
    """ArrowArrayStream.get_next: fills `into` with the only batch on the first call, and with a released array, which
    ends the stream, on later ones. Returns 0, Arrow's code for success."""
    state = _kept_alive[arrow_stream.contents.private_data]
    columns, length, delivered = state
    if delivered:
        into.contents.release = None
        return 0
    state[2] = True
    children = (_Array * len(columns))()
    for child, (_, column) in zip(children, columns.items()):
        if isinstance(column, Words):
            _fill_column(child, column.codes, column.codes >= 0, _build_dictionary(column.words))
        elif isinstance(column, np.ma.MaskedArray):
            _fill_column(child, np.asarray(column.data), ~np.ma.getmaskarray(column))
        else:
            _fill_column(child, column)
    _fill_array(into.contents, length, nulls=0, buffers=[None], children=children)  # a struct without a validity bitmap
    return 0


@CFUNCTYPE(c_void_p, POINTER(_ArrowStream))
def _get_last_error(arrow_stream: Any) -> None:
    """No error message: NULL."""


@_Release
def _release_stream(address: int) -> None:
    arrow_stream = _ArrowStream.from_address(address)
    _kept_alive.pop(arrow_stream.private_data, None)
    arrow_stream.release = None


@_Release
def _release_schema(address: int) -> None:
    _release_with_children(_Schema.from_address(address))


@_Release
def _release_array(address: int) -> None:
    _release_with_children(_Array.from_address(address))


def _release_with_children(structure: Any) -> None:
    """Releases an ArrowSchema or ArrowArray with its children and dictionary, as its `release` callback.

    A structure without `release` was moved by the consumer, and is skipped. Objects that were kept alive for the
    structure are dropped.
    """
    parts = [structure.children[index] for index in range(structure.n_children)] + (
        [structure.dictionary] if structure.dictionary else []
    )
    for part in parts:
        if part.contents.release:
            _Release(part.contents.release)(ctypes.addressof(part.contents))
    number = structure.private_data
    structure.release = None
    _kept_alive.pop(number, None)


@_Release
def _destroy_capsule(capsule: int) -> None:
    """The capsule's destructor: releases a stream that no consumer took over."""
    address = _pointer_in(capsule, _CAPSULE_NAME)
    if _ArrowStream.from_address(address).release:
        _release_stream(address)
    _in_capsules.pop(address, None)


def _fill_schema(into: _Schema, format: bytes, name: bytes, children: Any = (), dictionary: Any = None) -> None:
    """Fills in an ArrowSchema, and keeps the objects that it points to alive until its release.

    `children`: a ctypes array of ArrowSchema, for a struct; `dictionary`: the ArrowSchema of a text column's texts.
    """
    pointers = _pointers_to(_Schema, children)
    into.format, into.name, into.metadata = format, name, None
    into.flags = 0 if format == _STRUCT_FORMAT else _NULLABLE_FLAG
    into.n_children, into.children = len(children), pointers
    into.dictionary = ctypes.pointer(dictionary) if dictionary is not None else None
    into.private_data = _keep_alive((format, name, children, pointers, dictionary))
    into.release = _address(_release_schema)


def _fill_column(
    into: _Array, values: NDArray[Any], valid: NDArray[np.bool_] | None = None, dictionary: _Array | None = None
) -> None:
    """Fills in the ArrowArray of a column: numbers without a copy; booleans and validity as bitmaps.

    `valid`: whether each value is present, None if all are; `dictionary`: the texts of a text column, whose `values`
    are indices into them.
    """
    nulls = 0 if valid is None else len(valid) - int(np.count_nonzero(valid))
    bits = np.packbits(valid, bitorder="little") if valid is not None and nulls else None
    data = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else values
    _fill_array(into, len(values), nulls, [bits, data], dictionary=dictionary)


def _build_dictionary(words: Sequence[str]) -> _Array:
    """An ArrowArray of texts: 64-bit offsets (one more than texts) into their concatenated UTF-8 bytes."""
    encoded = [word.encode() for word in words]
    offsets = np.cumsum([0, *(len(text) for text in encoded)], dtype=np.int64)
    texts = _Array()
    # Buffers of text: validity (none: no text is missing), offsets, bytes.
    buffers = [None, offsets, np.frombuffer(b"".join(encoded), np.uint8)]
    _fill_array(texts, len(words), nulls=0, buffers=buffers)
    return texts


def _fill_array(
    into: _Array,
    length: int,
    nulls: int,
    buffers: Sequence[NDArray[Any] | None],
    children: Any = (),
    dictionary: _Array | None = None,
) -> None:
    """Fills in an ArrowArray of `length` rows, `nulls` of them missing, and keeps its buffers alive until its release.

    `buffers`: in the order of Arrow's layout of the type, None for an absent one; `children`: a ctypes array of
    ArrowArray, for a struct; `dictionary`: the texts of a text column.
    """
    pointers = _pointers_to(_Array, children)
    addresses = (c_void_p * len(buffers))(*(None if buffer is None else buffer.ctypes.data for buffer in buffers))
    into.length, into.null_count, into.offset = length, nulls, 0
    into.n_buffers, into.buffers = len(buffers), addresses
    into.n_children, into.children = len(children), pointers
    into.dictionary = ctypes.pointer(dictionary) if dictionary is not None else None
    into.private_data = _keep_alive((buffers, addresses, children, pointers, dictionary))
    into.release = _address(_release_array)


def _pointers_to(kind: type[Structure], children: Any) -> Any:
    return (POINTER(kind) * len(children))(*(ctypes.pointer(child) for child in children))


def _keep_alive(referenced: object) -> int:
    """Keeps an object alive, and returns the key in `_kept_alive` for a structure's `private_data`."""
    number = next(_next_number)
    _kept_alive[number] = referenced
    return number


def _address(function: Any) -> int | None:
    return ctypes.cast(function, c_void_p).value


_new_capsule = PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", ctypes.pythonapi))
# Takes the capsule's address: a reference to an object in destruction would resurrect it.
_pointer_in = PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
