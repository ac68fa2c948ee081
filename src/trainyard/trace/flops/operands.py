"""What an op was given, as its formulas read it: tensors with formats, flags, lists of numbers.

Whatever the file does not say raises `Unsaid`: a formula then gives nothing, and never a guess.
"""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

from trainyard.events import OperandShape

_TRUTH, _WHOLE, _REAL, COMPLEX = range(4)
_INTEGERS = re.compile(r"\[?\s*(-?[0-9]{1,18}(?:\s*,\s*-?[0-9]{1,18})*)?\s*\]?\Z")


Key = int | str
"""An argument's place or name."""


class UnknownOperand(Exception):
    """The file does not say what a formula needs, or says what cannot be."""


class Format(NamedTuple):
    """A number format: bytes an element, category (bool, whole, real, complex: the order of promotion), the project's
    word for it where a device's peak may be claimed, and how many numbers stand packed in one element."""

    size: int
    category: int
    word: str = ""
    packs: int = 1


FORMATS = {
    "bool": Format(1, _TRUTH),
    "unsigned char": Format(1, _WHOLE),
    "signed char": Format(1, _WHOLE),
    "short int": Format(2, _WHOLE),
    "short": Format(2, _WHOLE),
    "int": Format(4, _WHOLE),
    "long int": Format(8, _WHOLE),
    "long": Format(8, _WHOLE),
    "c10::Half": Format(2, _REAL, "float16"),
    "c10::BFloat16": Format(2, _REAL, "bfloat16"),
    "float": Format(4, _REAL, "float32"),
    "double": Format(8, _REAL),
    "c10::complex<float>": Format(8, COMPLEX),
    "c10::complex<double>": Format(16, COMPLEX),
    "c10::Float8_e4m3fn": Format(1, _REAL, "float8"),
    "c10::Float8_e5m2": Format(1, _REAL, "float8"),
    "c10::Float8_e4m3fnuz": Format(1, _REAL, "float8"),
    "c10::Float8_e5m2fnuz": Format(1, _REAL, "float8"),
    "c10::Float8_e8m0fnu": Format(1, _REAL, "float8"),
    "c10::Float4_e2m1fn_x2": Format(1, _REAL, "float4", packs=2),
}
"""The formats as Kineto's `Input type` words them."""
BOOL, LONG, INT, FLOAT = FORMATS["bool"], FORMATS["long int"], FORMATS["int"], FORMATS["float"]
UNKNOWN_FORMAT = Format(0, _TRUTH)
"""Where the file does not say."""
# Places in torch's `ScalarType`, as a `dtype` argument is written.
_NUMBERED = {
    0: FORMATS["unsigned char"], 1: FORMATS["signed char"], 2: FORMATS["short int"], 3: INT, 4: LONG,
    5: FORMATS["c10::Half"], 6: FLOAT, 7: FORMATS["double"], 11: BOOL, 15: FORMATS["c10::BFloat16"],
}  # fmt: skip


class Tensor(NamedTuple):
    """Dims and format; of its place in memory and its strides nothing is known."""

    dims: tuple[int, ...]
    format: Format

    @property
    def numel(self) -> int:
        return prod(self.dims)

    @property
    def bytes(self) -> int:
        return self.numel * self.format.size


class Cost(NamedTuple):
    """What one call of an op must do. `flops`, `bytes`: None where the file does not say enough. `at_most`: the FLOPs
    are an upper bound. `format`: what the arithmetic is done in, as the inputs say."""

    flops: int | None
    bytes: int | None
    format: Format
    at_most: bool = False


class OpArguments:
    """An op's arguments by place, or by name where its schema's `names` are given. `given[key]` is a tensor; it and the
    methods raise `Unsaid`."""

    def __init__(self, shape: OperandShape, names: str = "") -> None:
        self._shape = shape
        self._indices = {name: index for index, name in enumerate(names.split())}

    def __len__(self) -> int:
        return len(self._shape.types)

    def __contains__(self, name: str) -> bool:
        """Whether the op has such an argument."""
        return name in self._indices

    def __getitem__(self, key: Key) -> Tensor:
        tensor = self.maybe(key)
        if tensor is None:
            raise UnknownOperand
        return tensor

    def maybe(self, key: Key) -> Tensor | None:
        """The tensor under `key`; None for what is no tensor. Raises for a tensor of a format or size nobody knows."""
        index = self._index(key)
        kind = self._kind(index)
        if kind in ("", "Scalar", "ScalarList", "TensorList", "GenericList"):
            return None
        if kind not in FORMATS or index >= len(self._shape.dims):
            raise UnknownOperand
        dims = self._shape.dims[index]
        if any(not isinstance(length, int) or length < 0 for length in dims):
            raise UnknownOperand
        return Tensor(dims, FORMATS[kind])

    def tensors(self, stop: int | None = None) -> list[Tensor]:
        """All tensors among the first `stop` arguments. Raises where a list of tensors hides some of them."""
        indices = range(len(self) if stop is None else min(stop, len(self)))
        if any(self._kind(index) in ("TensorList", "GenericList") for index in indices):
            raise UnknownOperand
        return [tensor for index in indices if (tensor := self.maybe(index)) is not None]

    def flag(self, key: Key) -> bool:
        text = self._value(key)
        if text not in ("True", "False"):
            raise UnknownOperand
        return text == "True"

    def flags(self, key: Key) -> tuple[bool, ...]:
        """`[True, False, True]`."""
        parts = [part.strip() for part in self._value(key).strip("[]").split(",")]
        if not set(parts) <= {"True", "False"}:
            raise UnknownOperand
        return tuple(part == "True" for part in parts)

    def ints(self, key: Key) -> tuple[int, ...]:
        """`[1, 1]`, `[]` or `2`."""
        text = self._value(key)
        match = _INTEGERS.match(text)
        if not text or match is None:
            raise UnknownOperand
        return tuple(int(part) for part in (match[1] or "").split(",") if part)

    def int(self, key: Key) -> int:
        values = self.ints(key)
        if len(values) != 1:
            raise UnknownOperand
        return values[0]

    def is_given(self, key: Key) -> bool:
        """Whether an optional argument that is no tensor was given; raises where the file keeps no values."""
        if not any(self._shape.values):
            raise UnknownOperand
        index = self._index(key)
        return index < len(self._shape.values) and bool(self._shape.values[index])

    def format(self, key: Key, otherwise: Format) -> Format:
        """What an optional `dtype` argument asks for."""
        if self._kind(self._index(key)) == "":
            return otherwise
        number = self.int(key)
        if number not in _NUMBERED:
            raise UnknownOperand
        return _NUMBERED[number]

    def text(self) -> str:
        """The tensors' formats and dims: `bfloat16[8944,1024] float32[]`; lists of tensors as `[...]`."""
        texts = []
        for kind, dims in zip(self._shape.types, self._shape.dims):
            if kind == "TensorList":
                texts.append("[...]")
            elif kind in FORMATS:
                word = FORMATS[kind].word or kind.removeprefix("c10::")
                texts.append(f"{word}[{','.join(str(length) for length in dims)}]")
        return " ".join(texts)

    def _kind(self, index: int) -> str:
        return self._shape.types[index] if index < len(self._shape.types) else ""

    def _index(self, key: Key) -> int:
        return self._indices[key] if isinstance(key, str) else key

    def _value(self, key: Key) -> str:
        index = self._index(key)
        if index >= len(self._shape.values):
            raise UnknownOperand
        return self._shape.values[index]


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Dims of a pointwise result. Raises `Unsaid` for shapes that do not fit."""
    width = max((len(dims) for dims in shapes), default=0)
    result = []
    for lengths in zip(*((1,) * (width - len(dims)) + dims for dims in shapes)):
        wide = {length for length in lengths if length != 1}
        if len(wide) > 1:
            raise UnknownOperand
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def promoted(tensors: list[Tensor]) -> Format:
    """The result's format: the highest category decides, a tensor with dims before one without; within it the widest.

    float16 with bfloat16 gives float32; whole numbers of one width but different kinds are not told apart here.
    """
    if not tensors:
        raise UnknownOperand
    wide = [tensor.format for tensor in tensors if tensor.dims]
    flat = [tensor.format for tensor in tensors if not tensor.dims]
    top = max((format.category for format in wide), default=-1)
    if any(format.category > top for format in flat):
        # A real number on whole ones takes the default format, which the file does not say.
        if wide:
            raise UnknownOperand
        wide = flat
        top = max(format.category for format in flat)
    formats = {format for format in wide if format.category == top}
    if len(formats) > 1 and top == _REAL and any(format.size == 1 for format in formats):
        raise UnknownOperand
    widest = max(formats, key=lambda format: format.size)
    return FLOAT if widest.size == 2 and len(formats) > 1 and top == _REAL else widest


def real(format: Format) -> Format:
    """`format` itself; raises where whole numbers would become ones of the default format."""
    if format.category < _REAL:
        raise UnknownOperand
    return format


def summed(format: Format) -> Format:
    """The format of a sum: whole numbers become 64-bit ones."""
    return LONG if format.category < _REAL else format
