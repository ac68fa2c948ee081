"""Changes to plain data (dicts, lists, text, numbers), and to the JSON, TOML and pickles that hold it.

A change keeps the envelope well-formed, so that it reaches the code behind a reader's first checks. Every function
takes the input, a random generator and the words of the format, and raises `ValueError` for an input it cannot parse.
"""

from __future__ import annotations

import json
import pickle
import tomllib
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any

from trainyard.errors import BadFile
from trainyard.formats import toml

Words = Sequence[str]
Mutator = Callable[[bytes, Random, Words], bytes]
Slot = tuple[Any, Any]
"""A container and the key or index of one of its values."""

NUMBERS = (0, 1, -1, 2, 7, 255, 65536, 10**6, 10**9, 2**31 - 1, 2**31, 2**32, 2**53 + 1,
           2**62, 2**63 - 1, 2**63, 2**64, -(2**31), -(2**63),
           10**30, 0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), -float("inf"))  # fmt: skip
TEXTS = ("", " ", "\0", "\x1b[31m", "\u202e", "\ud800", "é漢😀", "a" * 300, "%s%n", "../..", "/etc", "[[1], [2, 3]]",
         "-1",
         "1e999", "0x10", "nan", "true", "[", "{", '"', "\\", "\n", "$.a", "auto", "none")  # fmt: skip
_MOST_SLOTS = 4000
_MOST_PICKLED = 4096
_PICKLED: set[bytes] = set()
"""Pickles that were made here, and can be read by Python's own reader, which is faster."""
_WRITTEN = {
    "lists-in-lists": "[" * 1100 + "]" * 1100,
    "tables-in-tables": '{"a":' * 1100 + "1" + "}" * 1100,
    "long-number": "9" * 5000,
    "long-fraction": "0." + "7" * 500,
}
"""Texts for which a value is written that Python does not write: deeper than its stack, or with too many digits."""


def mutate(value: Any, chance: Random, words: Words) -> Any:
    """One to three changes at random places; the value itself is changed."""
    root = [value]
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        slots = _slots(root)
        container, key = chance.choice(slots)
        chance.choice(_CHANGES)(container, key, slots, chance, words)
        if not root:
            root.append({})
    return root[0]


def json_document(data: bytes, chance: Random, words: Words) -> bytes:
    return _dumps(mutate(_loads(data), chance, words), chance)


def toml_document(data: bytes, chance: Random, words: Words) -> bytes:
    try:
        document = mutate(tomllib.loads(data.decode()), chance, words)
        if not isinstance(document, dict):
            raise ValueError
        return _written(toml.dumps(document))
    except (TypeError, RecursionError) as error:
        raise ValueError from error


def pickle_document(data: bytes, chance: Random, words: Words) -> bytes:
    """Only plain data is unpickled, with the project's own reader: a pickle with changed bytes is a hostile one."""
    from trainyard.formats.plain_pickle import loads  # here, so that a worker can instrument it first

    try:
        if data[:1] != b"\x80":
            return json_document(data, chance, words)
        value = pickle.loads(data) if data in _PICKLED else loads(data, "seed")  # noqa: S301
        changed = pickle.dumps(mutate(value, chance, words), protocol=chance.choice((2, 3, 4, 5)))
        if len(_PICKLED) >= _MOST_PICKLED:
            _PICKLED.clear()
        _PICKLED.add(changed)
        return changed
    except (BadFile, RecursionError) as error:
        raise ValueError from error


def lines(data: bytes, chance: Random, words: Words) -> bytes:
    """Lines are removed, repeated and exchanged, and the JSON or the words in one of them changed."""
    rows = data.split(b"\n")
    at = chance.randrange(len(rows))
    action = chance.randrange(8)
    if action == 0:
        del rows[at]
    elif action == 1:
        rows.insert(chance.randrange(len(rows) + 1), rows[at])
    elif action == 2:
        other = chance.randrange(len(rows))
        rows[at], rows[other] = rows[other], rows[at]
    elif (begin := rows[at].find(b"{")) >= 0:
        rows[at] = rows[at][:begin] + json_document(rows[at][begin:], chance, words)
    else:
        rows[at] = _in_line(rows[at], chance, words)
    return b"\n".join(rows)


def _in_line(row: bytes, chance: Random, words: Words) -> bytes:
    """One word of a line is replaced, removed, repeated or followed by another."""
    mark = b"," if b"," in row else b" "
    parts = row.split(mark)
    at = chance.randrange(len(parts))
    new = _text(chance, words) if chance.random() < 0.6 else str(_number(chance))
    word = new.encode("utf-8", "surrogatepass")
    action = chance.randrange(5)
    if action == 0:
        del parts[at]
    elif action == 1:
        parts.insert(at, parts[at])
    elif action == 2:
        parts.insert(at + 1, word)
    else:
        parts[at] = word
    return mark.join(parts)


def _loads(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError from error


def _dumps(value: Any, chance: Random) -> bytes:
    indent = chance.choice((None, None, None, 1))
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=chance.random() < 0.7)
    except (TypeError, RecursionError) as error:
        raise ValueError from error
    return _written(text)


def _written(text: str) -> bytes:
    for name, value in _WRITTEN.items():
        if name in text:
            text = text.replace(f'"{name}"', value)
    return text.encode("utf-8", "surrogatepass")


def _slots(root: list[Any]) -> list[Slot]:
    """All places that hold a value, the root's first."""
    slots: list[Slot] = []
    waiting: list[Any] = [root]
    while waiting and len(slots) < _MOST_SLOTS:
        container = waiting.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            slots.append((container, key))
            if isinstance(container[key], dict | list):
                waiting.append(container[key])
    return slots


def _replace(container: Any, key: Any, slots: list[Slot], chance: Random, words: Words) -> None:
    container[key] = _scalar(chance, words)


def _adjust(container: Any, key: Any, slots: list[Slot], chance: Random, words: Words) -> None:
    """A number near the old one, or a text made of the old one."""
    value = container[key]
    if isinstance(value, str):
        at = chance.randrange(len(value) + 1)
        container[key] = value[:at] + _text(chance, words) + value[at + chance.randrange(3) :]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        container[key] = chance.choice(
            (lambda: value + 1, lambda: value - 1, lambda: -value, lambda: value * 2, lambda: value * 1000,
             lambda: str(value), lambda: float(value) if abs(value) < 2**900 else value, lambda: value // 2)
        )()  # fmt: skip
    else:
        container[key] = _scalar(chance, words)


def _copy(container: Any, key: Any, slots: list[Slot], chance: Random, words: Words) -> None:
    """The value of another place."""
    other, its_key = chance.choice(slots)
    if its_key in other if isinstance(other, dict) else its_key < len(other):
        container[key] = deepcopy(other[its_key])


def _delete(container: Any, key: Any, slots: list[Slot], chance: Random, words: Words) -> None:
    del container[key]


def _insert(container: Any, key: Any, slots: list[Slot], chance: Random, words: Words) -> None:
    if isinstance(container, dict):
        container[_word(chance, words)] = deepcopy(container[key]) if chance.random() < 0.5 else _scalar(chance, words)
    elif len(container) < 200:
        for _ in range(chance.choice((1, 1, 1, 5))):
            container.insert(chance.randrange(len(container) + 1), deepcopy(container[key]))


def _rename(container: Any, key: Any, slots: list[Slot], chance: Random, words: Words) -> None:
    if isinstance(container, dict):
        container[_word(chance, words)] = container.pop(key)
    else:
        other = chance.randrange(len(container))
        container[key], container[other] = container[other], container[key]


def _nest(container: Any, key: Any, slots: list[Slot], chance: Random, words: Words) -> None:
    value = container[key]
    for _ in range(chance.choice((1, 1, 3, 70))):
        value = [value] if chance.random() < 0.5 else {_word(chance, words): value}
    container[key] = value


_CHANGES = (_replace, _replace, _adjust, _adjust, _copy, _delete, _insert, _rename, _nest)


def _scalar(chance: Random, words: Words) -> Any:
    kind = chance.randrange(8)
    if kind < 3:
        return _number(chance)
    if kind < 6:
        return _text(chance, words)
    return chance.choice((None, True, False, [], {}, [[]], [None], [0, 1]))


def _number(chance: Random) -> int | float:
    if chance.random() < 0.01:
        return 10 ** chance.randrange(400, 4000)
    return chance.choice(NUMBERS) if chance.random() < 0.6 else chance.randrange(-5, 2000)


def _text(chance: Random, words: Words) -> str:
    if chance.random() < 0.02:
        return chance.choice(tuple(_WRITTEN))
    return _word(chance, words) if chance.random() < 0.6 else chance.choice(TEXTS)


def _word(chance: Random, words: Words) -> str:
    return chance.choice(words) if words else "x"
