"""Arithmetic expressions over the arguments of an op, as formula files contain them.

An expression has Python's syntax, limited to integers, `+ - * // %`, comparisons, `and or not`, `a if b else c`, the
names of arguments, `x[i]` and `x[i:j]` (dims of a tensor), four attributes and the functions below. The text is parsed
with `ast`, each node is checked against this list before anything is evaluated, and the tree is then interpreted: there
is no `eval`, no access to objects, no loop and no power, and all values are bounded, so that an expression from an
unknown source can neither run code nor exhaust memory.

A declarative list of products was considered instead: it cannot state a causal mask, an optional argument or a result
whose size follows from a stride, which half of the formulas of this package need.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from trainyard.errors import BadInput, nearest
from trainyard.trace.flops.operands import Tensor, TensorGroup, UnknownOperand
from trainyard.trace.flops.pairs import kept_pairs

MAX_LENGTH = 1_000
"""Largest number of characters of an expression."""
_MAX_NODES = 400
_MAX_VALUE = 2**100
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


class Inputs(NamedTuple):
    """All tensors that a call was passed: their number of elements and their size in bytes."""

    numel: int
    bytes: int


Value = int | tuple[int, ...] | Tensor | TensorGroup | Inputs | None
"""The value of an expression. None: an argument that was not given."""
_ATTRIBUTES: dict[str, Callable[[Tensor | TensorGroup], int]] = {
    "numel": lambda tensor: tensor.numel,
    "bytes": lambda tensor: tensor.bytes,
    "itemsize": lambda tensor: tensor.format.size if isinstance(tensor, Tensor) else tensor.itemsize,
    "ndim": lambda tensor: len(tensor.dims),
}
ATTRIBUTES = {
    "numel": "number of elements",
    "bytes": "size in bytes",
    "itemsize": "bytes of an element",
    "ndim": "number of dims; of a list, the number of tensors",
}
"""Attributes of tensors and of lists of tensors, with their meaning."""
FUNCTIONS = {
    "given(x)": "whether the argument was passed",
    "default(x, n)": "the value of `x`, or `n` if it was not passed",
    "bytes(x, y, ...)": "size of all these tensors in bytes; an argument that was not passed counts 0",
    "prod(x[i:j])": "product of dims",
    "min(a, b, ...)": "the smallest value",
    "max(a, b, ...)": "the largest value",
    "ceil_div(a, b)": "a / b, rounded up",
    "pairs(rows, columns, causal, left, right)": "query-key pairs of an attention matrix that the mask keeps: causal "
    "to the last key, and a window of `left` and `right` keys (below 0: unlimited); the last three may be omitted",
}
"""Functions of expressions, with their meaning."""
_FUNCTION_NAMES = [text.partition("(")[0] for text in FUNCTIONS]


class Expression:
    """A checked expression. `names`: the arguments that it reads."""

    def __init__(self, text: str, known_names: Sequence[str], where: str) -> None:
        """Parses `text`. `known_names`: arguments that it may read; `where`: file and entry, for errors. Raises
        `BadInput`."""
        self.text, self._where = text, where
        if len(text) > MAX_LENGTH:
            raise BadInput(f"{where}: the expression has {len(text):,} characters; at most {MAX_LENGTH:,} are allowed.")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", SyntaxWarning)
                self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            message = getattr(error, "msg", "it cannot be parsed")
            raise BadInput(f"{where}: {text!r} is not a valid expression: {message}.", _SYNTAX) from error
        nodes = list(ast.walk(self._tree))
        if len(nodes) > _MAX_NODES:
            raise BadInput(f"{where}: the expression has {len(nodes)} parts; at most {_MAX_NODES} are allowed.")
        callees = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        self.names = frozenset(node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in callees)
        for name in sorted(self.names - set(known_names)):
            raise BadInput(
                f"{where}: {text!r} reads {name!r}, which is not an argument: {' '.join(known_names)}.",
                nearest(name, known_names),
            )
        self._check(self._tree)

    def value(self, read: Callable[[str], Value]) -> Value:
        """The value of the expression. `read`: argument name -> value. Raises `UnknownOperand` if a value is missing,
        if a dim does not exist, for a division by zero, and for numbers beyond any real cost."""
        return _evaluate(self._tree, read)

    def number(self, read: Callable[[str], Value]) -> int:
        """The value, which must be a number of at least 0; raises `UnknownOperand` for others."""
        value = _integer(self.value(read))
        if value < 0:
            raise UnknownOperand
        return value

    def _check(self, node: ast.AST) -> None:
        """Raises `BadInput` if `node` or a part of it is outside the grammar."""
        match node:
            case ast.Constant(value=int(value)) if abs(value) < _MAX_VALUE:
                return
            case ast.Name():
                return
            case ast.BinOp(op=operator) if type(operator) in _OPERATORS:
                parts = [node.left, node.right]
            case ast.UnaryOp(op=ast.USub() | ast.Not()):
                parts = [node.operand]
            case ast.BoolOp():
                parts = node.values
            case ast.Compare(ops=[comparison]) if type(comparison) in _COMPARISONS:
                parts = [node.left, *node.comparators]
            case ast.IfExp():
                parts = [node.test, node.body, node.orelse]
            case ast.Attribute(attr=attribute) if attribute in _ATTRIBUTES:
                parts = [node.value]
            case ast.Subscript(slice=ast.Slice(lower=lower, upper=upper, step=None)):
                parts = [node.value, *filter(None, (lower, upper))]
            case ast.Subscript(slice=index) if not isinstance(index, ast.Slice):
                parts = [node.value, index]
            case ast.Call(func=ast.Name(id=function), keywords=[]) if function in _FUNCTION_NAMES and node.args:
                parts = node.args
            case _:
                excerpt = ast.get_source_segment(self.text.strip(), node) or type(node).__name__
                raise BadInput(f"{self._where}: {excerpt!r} is not allowed in a formula.", _SYNTAX)
        for part in parts:
            self._check(part)


_SYNTAX = (
    "Allowed are integers, + - * // %, comparisons, and, or, not, `a if b else c`, argument names, x[i], x[i:j], "
    f"{', '.join('x.' + name for name in ATTRIBUTES)}, {', '.join(FUNCTIONS)}."
)


def _evaluate(node: ast.AST, read: Callable[[str], Value]) -> Value:
    """The value of a checked node; raises `UnknownOperand` as `Expression.value` does."""
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return read(name)
        case ast.BinOp(left=left, op=operator, right=right):
            a, b = _integer(_evaluate(left, read)), _integer(_evaluate(right, read))
            if b == 0 and isinstance(operator, ast.FloorDiv | ast.Mod):
                raise UnknownOperand
            return _bounded(_OPERATORS[type(operator)](a, b))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_integer(_evaluate(operand, read))
        case ast.UnaryOp(operand=operand):
            return not _integer(_evaluate(operand, read))
        case ast.BoolOp(op=operator, values=values):
            stops_at = isinstance(operator, ast.Or)
            return next(
                (stops_at for part in values if bool(_integer(_evaluate(part, read))) == stops_at), not stops_at
            )
        case ast.Compare(left=left, ops=[comparison], comparators=[right]):
            return _COMPARISONS[type(comparison)](_integer(_evaluate(left, read)), _integer(_evaluate(right, read)))
        case ast.IfExp(test=test, body=body, orelse=otherwise):
            return _evaluate(body if _integer(_evaluate(test, read)) else otherwise, read)
        case ast.Attribute(value=owner, attr=attribute):
            tensor = _evaluate(owner, read)
            if isinstance(tensor, Inputs) and attribute in ("numel", "bytes"):
                return _bounded(getattr(tensor, attribute))
            if not isinstance(tensor, Tensor | TensorGroup):
                raise UnknownOperand
            return _bounded(_ATTRIBUTES[attribute](tensor))
        case ast.Subscript(value=owner, slice=index):
            return _dims_at(_evaluate(owner, read), index, read)
        case ast.Call(func=ast.Name(id=function), args=arguments):
            return _call(function, [_evaluate(argument, read) for argument in arguments])
        case _:
            raise UnknownOperand


def _dims_at(owner: Value, index: ast.expr, read: Callable[[str], Value]) -> Value:
    """`owner[index]`: a dim of a tensor or a number of a list; for a slice, a tuple of them."""
    values = owner.dims if isinstance(owner, Tensor) else owner
    if not isinstance(values, tuple) or isinstance(values, TensorGroup | Inputs):
        raise UnknownOperand
    if isinstance(index, ast.Slice):
        bounds = [None if part is None else _integer(_evaluate(part, read)) for part in (index.lower, index.upper)]
        return values[slice(*bounds)]
    position = _integer(_evaluate(index, read))
    if not -len(values) <= position < len(values):
        raise UnknownOperand
    return values[position]


def _call(function: str, arguments: list[Value]) -> Value:
    """The result of one of FUNCTIONS; raises `UnknownOperand` for arguments that it does not take."""
    match function, arguments:
        case "given", [value]:
            return value is not None
        case "default", [value, otherwise]:
            return otherwise if value is None else value
        case "bytes", tensors:
            return _bounded(sum(_size(tensor) for tensor in tensors))
        case "prod", [tuple() as dims] if not isinstance(dims, Tensor | TensorGroup | Inputs):
            return _bounded(prod(dims))
        case "min", values:
            return min(_integer(value) for value in values)
        case "max", values:
            return max(_integer(value) for value in values)
        case "ceil_div", [a, b] if b:
            return -(-_integer(a) // _integer(b))
        case "pairs", [rows, columns, *rest] if len(rest) <= 3:
            mask = [_integer(value) for value in rest]
            return _bounded(kept_pairs(_integer(rows), _integer(columns), *mask))
        case _:
            raise UnknownOperand


def _size(value: Value) -> int:
    """Bytes of a tensor or of a list of tensors; 0 for an argument that was not given."""
    if value is None:
        return 0
    if not isinstance(value, Tensor | TensorGroup):
        raise UnknownOperand
    return value.bytes


def _integer(value: Value) -> int:
    if not isinstance(value, int):
        raise UnknownOperand
    return value


def _bounded(value: int) -> int:
    if abs(value) > _MAX_VALUE:
        raise UnknownOperand
    return value
