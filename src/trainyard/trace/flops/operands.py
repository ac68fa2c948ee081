"""The arguments of an op as formulas read them: tensors with formats, flags, lists of numbers.

A profile records for each op call the type and dims of every argument, and scalars as text, by position. Values that
are not in the file raise `UnknownOperand`: a formula then has no result, and never guesses.
"""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

from trainyard.events import OperandShape

_BOOL_CATEGORY, _INTEGER_CATEGORY, _FLOAT_CATEGORY, COMPLEX_CATEGORY = range(4)
"""Categories of formats, in the order of promotion."""
_INTEGERS = re.compile(r"\[?\s*(-?[0-9]{1,18}(?:\s*,\s*-?[0-9]{1,18})*)?\s*\]?\Z")


_NOT_TENSORS = ("", "Scalar", "ScalarList", "TensorList", "GenericList", "Bool", "Int", "Double", "String", "Device")
"""Types of arguments other than tensors; those from `Bool` on are of files from before 2022, which have no values."""
Key = int | str
"""An argument's index or name."""


class UnknownOperand(Exception):
    """The file lacks a value that a formula needs, or has an impossible one."""


class Format(NamedTuple):
    """A number format: bytes per element, category (bool, whole, real, complex: the order of promotion), the project's
    name if devices have a peak for it, and how many numbers are packed into one element."""

    size: int
    category: int
    word: str = ""
    packs: int = 1


FORMATS = {
    "bool": Format(1, _BOOL_CATEGORY),
    "unsigned char": Format(1, _INTEGER_CATEGORY),
    "signed char": Format(1, _INTEGER_CATEGORY),
    "short int": Format(2, _INTEGER_CATEGORY),
    "short": Format(2, _INTEGER_CATEGORY),
    "int": Format(4, _INTEGER_CATEGORY),
    "long int": Format(8, _INTEGER_CATEGORY),
    "long": Format(8, _INTEGER_CATEGORY),
    "c10::Half": Format(2, _FLOAT_CATEGORY, "float16"),
    "c10::BFloat16": Format(2, _FLOAT_CATEGORY, "bfloat16"),
    "float": Format(4, _FLOAT_CATEGORY, "float32"),
    "double": Format(8, _FLOAT_CATEGORY),
    "c10::complex<float>": Format(8, COMPLEX_CATEGORY),
    "c10::complex<double>": Format(16, COMPLEX_CATEGORY),
    "c10::Float8_e4m3fn": Format(1, _FLOAT_CATEGORY, "float8"),
    "c10::Float8_e5m2": Format(1, _FLOAT_CATEGORY, "float8"),
    "c10::Float8_e4m3fnuz": Format(1, _FLOAT_CATEGORY, "float8"),
    "c10::Float8_e5m2fnuz": Format(1, _FLOAT_CATEGORY, "float8"),
    "c10::Float8_e8m0fnu": Format(1, _FLOAT_CATEGORY, "float8"),
    "c10::Float4_e2m1fn_x2": Format(1, _FLOAT_CATEGORY, "float4", packs=2),
}
"""Formats by their name in Kineto's `Input type`."""
BOOL, LONG, INT, FLOAT = FORMATS["bool"], FORMATS["long int"], FORMATS["int"], FORMATS["float"]
UNKNOWN_FORMAT = Format(0, _BOOL_CATEGORY)
"""The format if the file does not give one."""
# By number in torch's `ScalarType`, as a `dtype` argument is recorded.
_FORMAT_BY_SCALAR_TYPE = {
    0: FORMATS["unsigned char"], 1: FORMATS["signed char"], 2: FORMATS["short int"], 3: INT, 4: LONG,
    5: FORMATS["c10::Half"], 6: FLOAT, 7: FORMATS["double"], 11: BOOL, 15: FORMATS["c10::BFloat16"],
}  # fmt: skip


class Tensor(NamedTuple):
    """Dims and format of a tensor; its address and strides are unknown."""

    dims: tuple[int, ...]
    format: Format

    @property
    def numel(self) -> int:
        return prod(self.dims)

    @property
    def bytes(self) -> int:
        return self.numel * self.format.size


class TensorGroup(NamedTuple):
    """The tensors of an argument that is a list. `itemsize`: bytes of an element, 0 if it is unknown: files record the
    dims of listed tensors only."""

    dims: tuple[tuple[int, ...], ...]
    itemsize: int

    @property
    def numel(self) -> int:
        return sum(prod(dims) for dims in self.dims)

    @property
    def bytes(self) -> int:
        if not self.itemsize:
            raise UnknownOperand
        return self.numel * self.itemsize


class Cost(NamedTuple):
    """The FLOPs and bytes of one call of an op; None if the file does not contain enough. `at_most`: the FLOPs are an
    upper bound. `format`: the format of the arithmetic, by the inputs. `on_matrix_units`: whether the arithmetic is a
    matrix product; None if the account of the op determines it. `assumes`: what the formula assumes about values that
    files do not record, as a sentence; empty for a formula without assumptions."""

    flops: int | None
    bytes: int | None
    format: Format
    at_most: bool = False
    on_matrix_units: bool | None = None
    assumes: str = ""


class CallFacts(NamedTuple):
    """What a trace shows about a call outside its own arguments. `element`: the format of tensors in lists, by the name
    of the kernel that the call launched; `partner`: for a forward op the arguments of its node in the backward pass,
    which are the gradients of its results; for such a node the arguments of the forward op. None if not known."""

    element: Format | None = None
    partner: OperandShape | None = None


NO_FACTS = CallFacts()


class OpArguments:
    """An op's arguments by index, or by name if its schema's `names` are given (separated by blanks). `args[key]` is a
    tensor; indexing and the methods raise `UnknownOperand` for a value that is missing or has another type."""

    def __init__(self, shape: OperandShape, names: str = "", facts: CallFacts = NO_FACTS) -> None:
        self._shape, self.facts = shape, facts
        self._indices = {name: index for index, name in enumerate(names.split())}

    def __len__(self) -> int:
        return len(self._shape.types)

    @property
    def has_values(self) -> bool:
        """Whether the file records the values of numbers and flags."""
        return any(self._shape.values)

    def __contains__(self, name: str) -> bool:
        """Whether the op has such an argument."""
        return name in self._indices

    def __getitem__(self, key: Key) -> Tensor:
        tensor = self.maybe(key)
        if tensor is None:
            raise UnknownOperand
        return tensor

    def maybe(self, key: Key) -> Tensor | None:
        """The tensor under `key`; None if it is not a tensor. Raises for a tensor of unknown format or size."""
        index = self._index(key)
        kind = self._kind(index)
        if kind in _NOT_TENSORS:
            return None
        if kind not in FORMATS or index >= len(self._shape.dims):
            raise UnknownOperand
        dims = self._shape.dims[index]
        if any(not isinstance(length, int) or length < 0 for length in dims):
            raise UnknownOperand
        return Tensor(dims, FORMATS[kind])

    def group(self, key: Key) -> TensorGroup:
        """The list of tensors under `key`. Raises if the argument is not one, or if its dims are not recorded."""
        index = self._index(key)
        if self._kind(index) not in ("TensorList", "GenericList") or index >= len(self._shape.lists):
            raise UnknownOperand
        dims = self._shape.lists[index]
        if not dims:
            raise UnknownOperand
        return TensorGroup(dims, self.facts.element.size if self.facts.element else 0)

    def result(self, index: int = 0) -> Tensor:
        """The op's result number `index`: the gradient that its node in the backward pass received. Raises if the file
        does not show that node."""
        if self.facts.partner is None:
            raise UnknownOperand
        return OpArguments(self.facts.partner)[index]

    def value(self, key: Key) -> Tensor | TensorGroup | tuple[int, ...] | int | None:
        """The argument as its recorded type has it: a tensor, a list of tensors, integers, an integer or a flag as 0 or
        1; None if it was not passed. Raises for other types and for values that are not recorded."""
        index = self._index(key)
        match self._kind(index):
            case "":
                return None
            case "TensorList" | "GenericList":
                return self.group(index)
            case "ScalarList":
                return self.ints(index)
            case "Scalar" | "Bool" | "Int":
                text = self._value(index)
                return text == "True" if text in ("True", "False") else self.int(index)
            case _:
                return self[index]

    def tensors(self, stop: int | None = None) -> list[Tensor]:
        """All tensors among the first `stop` arguments. Raises for a list of tensors, whose formats are unknown."""
        indices = range(len(self) if stop is None else min(stop, len(self)))
        if any(self._kind(index) in ("TensorList", "GenericList") for index in indices):
            raise UnknownOperand
        return [tensor for index in indices if (tensor := self.maybe(index)) is not None]

    def flag(self, key: Key) -> bool:
        """The value of a boolean argument."""
        text = self._value(key)
        if text not in ("True", "False"):
            raise UnknownOperand
        return text == "True"

    def flags(self, key: Key) -> tuple[bool, ...]:
        """Flags of an argument such as `[True, False, True]`."""
        parts = [part.strip() for part in self._value(key).strip("[]").split(",")]
        if not set(parts) <= {"True", "False"}:
            raise UnknownOperand
        return tuple(part == "True" for part in parts)

    def ints(self, key: Key) -> tuple[int, ...]:
        """Integers of an argument such as `[1, 1]`, `[]` or `2`."""
        text = self._value(key)
        match = _INTEGERS.match(text)
        if not text or match is None:
            raise UnknownOperand
        return tuple(int(part) for part in (match[1] or "").split(",") if part)

    def int(self, key: Key) -> int:
        """The value of an integer argument."""
        values = self.ints(key)
        if len(values) != 1:
            raise UnknownOperand
        return values[0]

    def is_nonzero(self, key: Key) -> bool:
        """Whether a numeric argument is recorded as other than zero; raises for one that is not recorded."""
        try:
            return float(self._value(key)) != 0
        except ValueError as error:
            raise UnknownOperand from error

    def is_given(self, key: Key) -> bool:
        """Whether an optional argument other than a tensor was given; raises if the file has no values."""
        if not self.has_values:
            raise UnknownOperand
        index = self._index(key)
        return index < len(self._shape.values) and bool(self._shape.values[index])

    def format(self, key: Key, otherwise: Format) -> Format:
        """The format of an optional `dtype` argument; `otherwise` if it was not given."""
        if self._kind(self._index(key)) == "":
            return otherwise
        scalar_type = self.int(key)
        if scalar_type not in _FORMAT_BY_SCALAR_TYPE:
            raise UnknownOperand
        return _FORMAT_BY_SCALAR_TYPE[scalar_type]

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
        """The argument's type in Kineto's words; "" if it was not given."""
        return self._shape.types[index] if index < len(self._shape.types) else ""

    def _index(self, key: Key) -> int:
        return self._indices[key] if isinstance(key, str) else key

    def _value(self, key: Key) -> str:
        index = self._index(key)
        if index >= len(self._shape.values):
            raise UnknownOperand
        return self._shape.values[index]


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Dims of a pointwise result of tensors with dims `shapes`, by torch's rules: missing leading dims count as 1, and
    along each axis all lengths other than 1 are equal. Raises `UnknownOperand` for shapes that do not broadcast."""
    axis_count = max((len(dims) for dims in shapes), default=0)
    result = []
    for lengths in zip(*((1,) * (axis_count - len(dims)) + dims for dims in shapes)):
        lengths_not_1 = {length for length in lengths if length != 1}
        if len(lengths_not_1) > 1:
            raise UnknownOperand
        result.append(lengths_not_1.pop() if lengths_not_1 else 1)
    return tuple(result)


def promote_formats(tensors: list[Tensor]) -> Format:
    """The result's format by torch's rules of type promotion: that of the highest category (bool, integer, float,
    complex), tensors with dims before those without; within it the widest. Raises `UnknownOperand` without tensors, for
    results in torch's default format, and for float8 with other floats, which torch does not promote.

    float16 with bfloat16 gives float32; integer formats of the same width are not distinguished.
    """
    if not tensors:
        raise UnknownOperand
    formats_with_dims = [tensor.format for tensor in tensors if tensor.dims]
    formats_without_dims = [tensor.format for tensor in tensors if not tensor.dims]
    top_category = max((format.category for format in formats_with_dims), default=-1)
    if any(format.category > top_category for format in formats_without_dims):
        # A real scalar with integer tensors gives the default format, which is not in the file.
        if formats_with_dims:
            raise UnknownOperand
        formats_with_dims = formats_without_dims
        top_category = max(format.category for format in formats_without_dims)
    formats = {format for format in formats_with_dims if format.category == top_category}
    if len(formats) > 1 and top_category == _FLOAT_CATEGORY and any(format.size == 1 for format in formats):
        raise UnknownOperand
    widest = max(formats, key=lambda format: format.size)
    return FLOAT if widest.size == 2 and len(formats) > 1 and top_category == _FLOAT_CATEGORY else widest


def require_float(format: Format) -> Format:
    """`format` itself; raises for integers, which would be converted to the default format."""
    if format.category < _FLOAT_CATEGORY:
        raise UnknownOperand
    return format


def sum_format(format: Format) -> Format:
    """The format of a sum: integers become 64-bit."""
    return LONG if format.category < _FLOAT_CATEGORY else format
