"""Decodes only the plain data of a pickle: dict, list, tuple, str, int, float, bool, None, bytes.

Untrusted files are never passed to `pickle.load`. A pickle is a program; the dangerous opcodes look up and call objects
(GLOBAL, REDUCE, BUILD and the like). This reader does not implement them, so a hostile file can only create data. The
standard library's unpickler with a `find_class` that refuses is not enough: a file of 9 bytes (one memo index) made it
take 2.1 GB, and one of 59 bytes (a dict key of nested tuples) doubles the time of hashing with every byte added. Here
the memo is a dict, keys are only short text (equal ones are compared), every length is checked against the rest of the
file, and an opcode creates at most one object, no larger than its own bytes or the objects it pops: time and memory of
`loads` are linear in the file's size. The result may share parts many times: callers must visit each part once
(snapshot.py does) and not hash, compare or print values that may be large.

Opcodes: https://github.com/python/cpython/blob/main/Lib/pickletools.py, protocols 2 to 5.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable
from struct import Struct
from typing import Any

from trainyard.errors import BadFile, DamagedFile

_DOUBLE = Struct(">d").unpack_from
_LONGEST_KEY = 500
_NAMES = {ord(code.code): code.name for code in pickletools.opcodes}


class _Truncated(Exception):
    """The data ends inside an opcode."""


def loads(data: bytes, source: str, contents: str = "document") -> Any:
    """Decodes the plain data in `data`, a pickle of protocol 2 to 5. `source`: the file's name, `contents`: the kind of
    document that it should be, both for messages. Raises `BadFile`, with opcode and byte, for other data."""
    reader = _PickleReader(data)
    try:
        return reader.run()
    except _Refused as error:
        raise BadFile(
            f"{source}: not plain data: {error} at byte {reader.position - 1:,}.",
            f"A {contents} holds dicts, lists, text and numbers only; do not load this file with pickle.",
        ) from error
    except (_Truncated, IndexError, KeyError, ValueError) as error:
        raise DamagedFile(
            f"{source}: the pickle is damaged or cut short at byte {min(reader.position, len(data)):,} of "
            f"{len(data):,}.",
            f"Was the copy or the run cut short? Dump the {contents} again.",
        ) from error


class _Refused(Exception):
    """An opcode that creates more than plain data."""


class _PickleReader:
    """A stack machine. Each opcode is a byte, followed by its operand.

    `position`: that of the next byte; `stack`: the objects since the last mark, which begins the items of a container;
    `outer_stacks`: the objects before each open mark, innermost last; `memo`: index -> object that later opcodes may
    push again.
    """

    def __init__(self, data: bytes) -> None:
        """`data`: the whole pickle."""
        self.data = data
        self.position = 0
        self.stack: list[Any] = []
        self.outer_stacks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Executes the pickle and returns the object that it creates. The most common opcodes are inlined, which halves
        the time; the others are in `_ACTIONS`. Raises `_Refused` for an opcode or a key that is not plain data;
        `_Truncated`, `IndexError`, `KeyError` or `ValueError` for damaged data."""
        data, memo, outer_stacks, actions = self.data, self.memo, self.outer_stacks, _ACTIONS
        at, stack = 0, self.stack
        try:
            while True:
                code = data[at]
                at += 1
                if code == _GET:
                    stack.append(memo[data[at]])
                    at += 1
                elif code == _LONG_GET:
                    stack.append(memo[int.from_bytes(data[at : at + 4], "little")])
                    at += 4
                elif code == _MEMOIZE:
                    memo[len(memo)] = stack[-1]
                elif code == _INT1:
                    stack.append(data[at])
                    at += 1
                elif code == _LONG1:
                    end = at + 1 + data[at]
                    stack.append(int.from_bytes(data[at + 1 : end], "little", signed=True))
                    at = end
                elif code == _INT4:
                    stack.append(int.from_bytes(data[at : at + 4], "little", signed=True))
                    at += 4
                elif code == _TEXT:
                    end = at + 1 + data[at]
                    stack.append(data[at + 1 : end].decode("utf-8", "surrogatepass"))
                    at = end
                elif code == _MARK:
                    outer_stacks.append(stack)
                    stack = []
                elif code == _DICT:
                    stack.append({})
                elif code == _ITEMS:
                    items, stack = stack, outer_stacks.pop()
                    self.fill(stack[-1], items)
                else:
                    self.position, self.stack = at, stack
                    if code == _STOP:
                        return stack.pop()
                    action = actions.get(code)
                    if action is None:
                        raise _Refused(f"opcode {_NAMES.get(code, code)}")
                    action(self)
                    at, stack = self.position, self.stack
        finally:
            self.position = max(at, self.position)

    def read_bytes(self, count: int) -> bytes:
        """Reads the next `count` bytes and advances the position. Raises `_Truncated`."""
        end = self.position + count
        if end > len(self.data):
            raise _Truncated
        part = self.data[self.position : end]
        self.position = end
        return part

    def read_unsigned(self, width: int) -> int:
        """Reads an unsigned integer of `width` bytes and advances the position."""
        return int.from_bytes(self.read_bytes(width), "little")

    def pop_items(self) -> list[Any]:
        """Pops the objects since the last mark, and the mark."""
        items, self.stack = self.stack, self.outer_stacks.pop()
        return items

    def extend(self, items: list[Any]) -> None:
        """Adds `items` to the list on top of the stack."""
        target = self.stack[-1]
        if type(target) is not list:
            raise _Refused(f"extending a {type(target).__name__} as if it were a list")
        target.extend(items)

    def fill(self, target: Any, items: list[Any]) -> None:
        """Adds `items`, alternating keys and values, to a dict; only short texts are accepted as keys."""
        if type(target) is not dict:
            raise _Refused(f"filling a {type(target).__name__} as if it were a dict")
        keys = items[::2]
        if set(map(type, keys)) - {str}:
            raise _Refused("a dict's key that is not text")
        if max(map(len, keys), default=0) > _LONGEST_KEY:
            raise _Refused(f"a dict's key of more than {_LONGEST_KEY} characters")
        target.update(zip(keys, items[1::2], strict=True))


# The functions below execute an opcode, or make a function that does: they change the stack or the memo of `reader`.


def _setitem(reader: _PickleReader) -> None:
    value, key = reader.stack.pop(), reader.stack.pop()
    reader.fill(reader.stack[-1], [key, value])


def _appends(reader: _PickleReader) -> None:
    items = reader.pop_items()  # before `extend`: it changes the top of the stack
    reader.extend(items)


def _append(reader: _PickleReader) -> None:
    item = reader.stack.pop()
    reader.extend([item])


def _dict(reader: _PickleReader) -> None:
    items: dict[str, Any] = {}
    reader.fill(items, reader.pop_items())  # an empty dict first: `fill` checks the keys
    reader.stack.append(items)


def _push(make: Callable[[_PickleReader], Any]) -> Callable[[_PickleReader], None]:
    """An opcode that pushes the object that `make` reads or creates."""

    def action(reader: _PickleReader) -> None:
        reader.stack.append(make(reader))

    return action


def _collect(kind: type) -> Callable[[_PickleReader], None]:
    """An opcode that pushes a list or tuple (`kind`) of the objects since the last mark."""

    def action(reader: _PickleReader) -> None:
        items = kind(reader.pop_items())
        reader.stack.append(items)

    return action


def _tuple(size: int) -> Callable[[_PickleReader], None]:
    """An opcode that pushes a tuple of the last `size` objects."""

    def action(reader: _PickleReader) -> None:
        if len(reader.stack) < size:
            raise _Truncated
        reader.stack[-size:] = [tuple(reader.stack[-size:])]

    return action


def _put(width: int) -> Callable[[_PickleReader], None]:
    """An opcode that memorizes the last object, under an index of `width` bytes."""

    def action(reader: _PickleReader) -> None:
        reader.memo[reader.read_unsigned(width)] = reader.stack[-1]

    return action


def _text(width: int) -> Callable[[_PickleReader], None]:
    """An opcode that pushes a text, preceded by its size in bytes, a number of `width` bytes."""
    return _push(lambda reader: reader.read_bytes(reader.read_unsigned(width)).decode("utf-8", "surrogatepass"))


def _bytes(width: int) -> Callable[[_PickleReader], None]:
    """An opcode that pushes bytes, preceded by their number, of `width` bytes."""
    return _push(lambda reader: reader.read_bytes(reader.read_unsigned(width)))


def _protocol(reader: _PickleReader) -> None:
    protocol = reader.read_unsigned(1)
    if protocol > pickle.HIGHEST_PROTOCOL:
        raise _Refused(f"protocol {protocol} (the highest known is {pickle.HIGHEST_PROTOCOL})")


def _frame(reader: _PickleReader) -> None:
    """Checks that a frame's bytes are in the file."""
    if reader.read_unsigned(8) > len(reader.data) - reader.position:
        raise _Truncated


_GET, _LONG_GET, _MEMOIZE = pickle.BINGET[0], pickle.LONG_BINGET[0], pickle.MEMOIZE[0]
_INT1, _INT4, _LONG1 = pickle.BININT1[0], pickle.BININT[0], pickle.LONG1[0]
_MARK, _DICT, _ITEMS = pickle.MARK[0], pickle.EMPTY_DICT[0], pickle.SETITEMS[0]
_TEXT, _STOP = pickle.SHORT_BINUNICODE[0], pickle.STOP[0]
_ACTIONS: dict[int, Callable[[_PickleReader], None]] = {
    code[0]: action
    for code, action in {
        pickle.PROTO: _protocol,
        pickle.FRAME: _frame,
        pickle.NONE: _push(lambda reader: None),
        pickle.NEWTRUE: _push(lambda reader: True),
        pickle.NEWFALSE: _push(lambda reader: False),
        pickle.BININT2: _push(lambda reader: reader.read_unsigned(2)),
        pickle.LONG4: _push(
            lambda reader: int.from_bytes(reader.read_bytes(reader.read_unsigned(4)), "little", signed=True)
        ),
        pickle.BINFLOAT: _push(lambda reader: _DOUBLE(reader.read_bytes(8))[0]),
        pickle.BINUNICODE: _text(4),
        pickle.BINUNICODE8: _text(8),
        pickle.SHORT_BINBYTES: _bytes(1),
        pickle.BINBYTES: _bytes(4),
        pickle.BINBYTES8: _bytes(8),
        pickle.EMPTY_LIST: _push(lambda reader: []),
        pickle.EMPTY_TUPLE: _push(lambda reader: ()),
        pickle.DICT: _dict,
        pickle.LIST: _collect(list),
        pickle.TUPLE: _collect(tuple),
        pickle.TUPLE1: _tuple(1),
        pickle.TUPLE2: _tuple(2),
        pickle.TUPLE3: _tuple(3),
        pickle.SETITEM: _setitem,
        pickle.APPEND: _append,
        pickle.APPENDS: _appends,
        pickle.BINPUT: _put(1),
        pickle.LONG_BINPUT: _put(4),
    }.items()
}
