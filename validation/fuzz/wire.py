"""Changes to protocol buffers that keep every length right, by the schema of the format."""

from __future__ import annotations

import marshal
import struct
from collections.abc import Mapping
from random import Random
from typing import Any

from trainyard.formats.protobuf import FIXED32, FIXED64, LENGTH, VARINT, Malformed, fields, varint
from validation.fuzz.trees import NUMBERS, TEXTS, Mutator, Words

Schema = Mapping[int, "Schema"]
"""The fields of a message that are messages themselves."""
PERFETTO: Schema = {
    1: {6: {1: {}}, 11: {4: {}}, 12: {1: {}, 2: {}, 3: {}, 29: {}}, 59: {11: {}}, 60: {}},
}
XPLANE: Schema = {1: {3: {4: {4: {}}}, 4: {2: {5: {}}}, 5: {2: {}}, 6: {}}}
_SIZES = {FIXED64: 8, FIXED32: 4}
Field = list[Any]
"""Number, wire type and value; the value of a message is the list of its fields."""


_MOST = 4096
"""Messages of which the fields are kept: a mutation is often mutated again."""


def message(schema: Schema) -> Mutator:
    parsed: dict[bytes, bytes] = {}

    def mutate(data: bytes, chance: Random, words: Words) -> bytes:
        kept = parsed.get(data)
        root: list[Field] = marshal.loads(kept) if kept else _parse(memoryview(data), schema)  # noqa: S302
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            parents = [(inside, known) for inside, known in _messages(root, schema) if inside]
            if not parents:
                raise ValueError
            _change(*chance.choice(parents), chance, words)
        changed = _encode(root)
        if len(parsed) >= _MOST:
            parsed.clear()
        parsed[changed] = marshal.dumps(root)
        return changed

    return mutate


def _parse(data: memoryview, schema: Schema) -> list[Field]:
    try:
        return [
            [number, kind, _parse(value, schema[number])]
            if kind == LENGTH and number in schema and isinstance(value, memoryview)
            else [number, kind, value if isinstance(value, int) else bytes(value)]
            for number, kind, value in fields(data)
        ]
    except Malformed as error:
        raise ValueError from error


def _messages(root: list[Field], schema: Schema) -> list[tuple[list[Field], Schema]]:
    waiting, messages = [(root, schema)], []
    while waiting:
        inside, known = waiting.pop()
        messages.append((inside, known))
        waiting += [(field[2], known[field[0]]) for field in inside if isinstance(field[2], list) and field[0] in known]
    return messages


def _change(inside: list[Field], schema: Schema, chance: Random, words: Words) -> None:
    at = chance.randrange(len(inside))
    field = inside[at]
    action = chance.randrange(8)
    if action == 0:
        del inside[at]
    elif action == 1:
        inside.insert(chance.randrange(len(inside) + 1), list(field))
    elif action == 2:
        other = chance.randrange(len(inside))
        inside[at], inside[other] = inside[other], inside[at]
    elif action == 3:
        field[0] = chance.choice([*schema, *range(1, 14), 22, 23, 29, 41, 50, 58, 59, 60, 2**20])
    elif action == 4:
        inside.insert(at, [chance.choice([*range(1, 14), 22, 23, 58]), *_value(chance, words)])
    else:
        field[1:] = _value(chance, words) if action == 5 or isinstance(field[2], list) else _near(field, chance, words)


def _near(field: Field, chance: Random, words: Words) -> tuple[int, int | bytes]:
    """A value of the same type as the field's."""
    kind, value = field[1:]
    if isinstance(value, int):
        return kind, chance.choice(
            (value + 1, value - 1, value * 2, value ^ 1 << chance.randrange(64), _integer(chance))
        )
    return kind, _text(chance, words)


def _value(chance: Random, words: Words) -> tuple[int, int | bytes]:
    kind = chance.choice((VARINT, VARINT, LENGTH, LENGTH, FIXED64, FIXED32))
    if kind == LENGTH:
        return kind, _text(chance, words)
    if kind == FIXED64 and chance.random() < 0.5:
        return kind, int.from_bytes(
            struct.pack("<d", chance.choice((0.5, 1e300, float("nan"), float("inf")))), "little"
        )
    return kind, _integer(chance)


def _integer(chance: Random) -> int:
    return int(chance.choice(NUMBERS[:20])) if chance.random() < 0.6 else chance.randrange(3000)


def _text(chance: Random, words: Words) -> bytes:
    return (chance.choice(words or TEXTS) if chance.random() < 0.7 else chance.choice(TEXTS)).encode(
        "utf-8", "surrogatepass"
    )


def _encode(inside: list[Field]) -> bytes:
    whole = bytearray()
    for number, kind, value in inside:
        whole += varint(number << 3 | kind)
        if isinstance(value, int):
            size = _SIZES.get(kind)
            whole += (value & (1 << 8 * size) - 1).to_bytes(size, "little") if size else varint(value)
        else:
            raw = _encode(value) if isinstance(value, list) else value
            whole += varint(len(raw))
            whole += raw
    return bytes(whole)
