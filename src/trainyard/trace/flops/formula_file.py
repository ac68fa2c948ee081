"""Formulas of library operations in TOML files: those of the package (`data/formulas/`) and those of users.

An entry states the names of ops, their arguments by position, and the FLOPs and bytes of one call as expressions
(`expressions.py`). `[formula.backward]` is the node of the op in the backward pass, which receives the gradient `grad`
and reads the arguments of the forward op. Traces do not record outputs: the size of `result` is that of the gradient
that the op's backward node receives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from trainyard.errors import BadFile, BadInput
from trainyard.events import OperandShape
from trainyard.formats import toml
from trainyard.trace.flops.expressions import Expression, Inputs, Value
from trainyard.trace.flops.operands import UNKNOWN_FORMAT, CallFacts, Cost, Format, OpArguments, UnknownOperand

MAX_FILE_BYTES = 1 << 20
_MAX_FORMULAS = 2_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RESERVED = ("result", "grad", "inputs")


class BackwardEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The backward pass of an entry. `ops`: names of its nodes, by default the op's name followed by `Backward`;
    `flops`, `bytes`: expressions, which also read `grad`, the first gradient that the node receives."""

    ops: tuple[str, ...] = ()
    flops: str
    bytes: str


class FormulaEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of a formula file.

    `ops`: names as in the trace; `*` matches any text. `arguments`: their names by position, separated by blanks.
    `requires`: an expression that must hold, for ops whose arguments differ between versions. `flops`, `bytes`:
    expressions for one call. `format`: the argument whose number format the arithmetic has, by default the first
    tensor. `matrix`: the FLOPs are matrix products, so the peak of the matrix units applies; by default as the op's
    class. `at_most`: the FLOPs are an upper bound. `assumes`: what the formula assumes, as a sentence. `note`:
    the source of the arguments, for readers of the file. `library`: the library's name.
    """

    ops: tuple[str, ...]
    arguments: str = ""
    requires: str = ""
    flops: str
    bytes: str
    format: str = ""
    matrix: bool | None = None
    at_most: bool = False
    assumes: str = ""
    note: str = ""
    library: str = ""
    backward: BackwardEntry | None = None


class FormulaFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A formula file: a list of entries `[[formula]]`. Of several entries for an op, the first applies whose `requires`
    holds and whose values are all in the trace."""

    formula: tuple[FormulaEntry, ...]


class _Part(NamedTuple):
    """The compiled expressions of an entry or of its backward pass."""

    entry: FormulaEntry
    backward: bool
    requires: Expression | None
    flops: Expression
    bytes: Expression


class FormulaSet:
    """Entries by the name of an op, each compiled when the first op of its name is looked up: a trace uses few."""

    def __init__(self, entries: Sequence[FormulaEntry], source: str) -> None:
        """`entries`: in order of precedence; `source`: the file's name for errors."""
        self._source = source
        self._entries = list(enumerate(entries, 1))
        self._by_name: dict[str, tuple[_Part, ...]] = {}

    def parts(self, op: str) -> tuple[_Part, ...]:
        """The compiled formulas of an op, in order of precedence; none for an op without one. Raises `BadInput` for an
        entry that is not valid."""
        if op not in self._by_name:
            self._by_name[op] = tuple(self._compile(op))
        return self._by_name[op]

    def check(self) -> None:
        """Compiles all entries. Raises `BadInput` for one that is not valid."""
        for number, entry in self._entries:
            _compile(entry, f"{self._source}, formula {number}")

    def unmatched(self, names: Iterable[str]) -> list[tuple[str, ...]]:
        """The patterns of each entry that none of `names`, the names of a trace's ops, matches."""
        ops = set(names)
        return [
            entry.ops
            for _, entry in self._entries
            if not any(_matches((*entry.ops, *_node_names(entry)), op) for op in ops)
        ]

    def _compile(self, op: str) -> Iterator[_Part]:
        """Compiles the parts of entries whose names match `op`."""
        for number, entry in self._entries:
            is_forward, is_node = _matches(entry.ops, op), _matches(_node_names(entry), op)
            if is_forward or is_node:
                parts = _compile(entry, f"{self._source}, formula {number}")
                yield from (part for part in parts if (is_node if part.backward else is_forward))

    def cost(self, op: str, shape: OperandShape, facts: CallFacts) -> Cost | None:
        """FLOPs and bytes of one call; None without a formula, or if the file lacks a value that it needs."""
        for part in self.parts(op):
            try:
                if cost := _apply(part, shape, facts):
                    return cost
            except (UnknownOperand, IndexError):
                continue
        return None

    def pairs(self, forward: str, node: str) -> bool:
        """Whether an entry has `forward` as its op and `node` as its node in the backward pass."""
        entries = [part.entry for part in self.parts(node) if part.backward]
        return any(part.entry in entries for part in self.parts(forward) if not part.backward)

    def reads_partner(self, op: str) -> bool:
        """Whether a formula of the op reads the op's other half: a node its forward op, or an op its result."""
        return any(part.backward or "result" in part.flops.names | part.bytes.names for part in self.parts(op))


def _matches(patterns: Sequence[str], op: str) -> bool:
    """Whether an op's name matches a pattern, in which `*` is any text."""
    return any(op == pattern or ("*" in pattern and fnmatchcase(op, pattern)) for pattern in patterns)


def _node_names(entry: FormulaEntry) -> tuple[str, ...]:
    """The names of an entry's nodes in the backward pass; none without one."""
    if entry.backward is None:
        return ()
    return entry.backward.ops or tuple(f"{name}Backward" for name in entry.ops)


@lru_cache(maxsize=8)
def compiled(entries: tuple[FormulaEntry, ...], source: str = "formulas") -> FormulaSet:
    """The set of `entries`, the same one for each call in a process."""
    return FormulaSet(entries, source)


@lru_cache(maxsize=1)
def compiled_library() -> FormulaSet:
    """The set of the package's own entries."""
    return FormulaSet(library(), "data/formulas")


@lru_cache(maxsize=1)
def library() -> tuple[FormulaEntry, ...]:
    """The entries of the package's own files, in order of the files' names."""
    folder = Path(__file__).parents[2] / "data" / "formulas"
    return tuple(entry for path in sorted(folder.glob("*.toml")) for entry in _decode(path.read_bytes(), path.name))


def read_formulas(path: Path | str) -> tuple[FormulaEntry, ...]:
    """Reads and checks a user's formula file. Raises `BadFile` for a file that cannot be read or is not TOML with the
    fields of `FormulaFile`, `BadInput` for an expression outside the grammar; both name the entry."""
    path = Path(path)
    try:
        if not path.is_file():
            raise BadFile(f"{path}: no such file.", "Pass the path of a TOML file with entries [[formula]].")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadFile(f"{path}: cannot be read: {error.strerror}.", "Check the permissions of the file.") from error
    if len(data) > MAX_FILE_BYTES:
        raise BadFile(f"{path}: more than {MAX_FILE_BYTES:,} bytes, the limit of a formula file.", "Divide the file.")
    entries = _decode(data, str(path))
    FormulaSet(entries, str(path)).check()
    return entries


def _decode(data: bytes, name: str) -> tuple[FormulaEntry, ...]:
    """The entries of a file's text. Raises `BadFile`."""
    try:
        entries = msgspec.convert(toml.loads(data.decode("utf-8")), FormulaFile).formula
    except (toml.DecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise BadFile(
            f"{name}: not a formula file: {error}.",
            'An entry is [[formula]] with ops = ["NAME"], arguments = "x y", flops = "...", bytes = "...".',
        ) from error
    if len(entries) > _MAX_FORMULAS:
        raise BadFile(f"{name}: {len(entries):,} formulas; at most {_MAX_FORMULAS:,} are allowed.", "Divide the file.")
    return entries


def _compile(entry: FormulaEntry, where: str) -> list[_Part]:
    """The compiled forward and backward parts of an entry. `where`: its file and number. Raises `BadInput`."""
    where = f"{where} ({', '.join(entry.ops[:2]) or 'no ops'})"
    arguments = entry.arguments.split()
    if not entry.ops or not all(name.strip() for name in entry.ops):
        raise BadInput(
            f"{where}: `ops` is empty.", 'Name the op as the trace does, such as ops = ["mylib::fused_mlp"].'
        )
    for name in arguments:
        if not _NAME.match(name) or name in _RESERVED or arguments.count(name) > 1:
            raise BadInput(
                f"{where}: {name!r} in `arguments` is not the name of an argument, or occurs twice.",
                "Use letters, digits and underscores; `result`, `grad` and `inputs` are reserved.",
            )
    if entry.format and entry.format not in arguments:
        raise BadInput(f"{where}: `format` is {entry.format!r}, which is not an argument: {' '.join(arguments)}.")
    requires = Expression(entry.requires, arguments, f"{where}, requires") if entry.requires else None
    readable = [*arguments, "inputs", "result"]
    flops, moved = (Expression(getattr(entry, key), readable, f"{where}, {key}") for key in ("flops", "bytes"))
    parts = [_Part(entry, False, requires, flops, moved)]
    if back := entry.backward:
        readable = [*arguments, "inputs", "grad"]
        flops, moved = (
            Expression(getattr(back, key), readable, f"{where}, backward.{key}") for key in ("flops", "bytes")
        )
        parts.append(_Part(entry, True, requires, flops, moved))
    return parts


def _apply(part: _Part, shape: OperandShape, facts: CallFacts) -> Cost | None:
    """The cost of a call by one formula; None if its `requires` does not hold. Raises `UnknownOperand` for missing
    values."""
    entry = part.entry
    recorded_op = OpArguments(shape)  # the backward node, if the part is of the backward pass
    forward_op = OpArguments(shape, entry.arguments, facts)
    if part.backward:
        # Without the forward op only a formula of the gradient alone applies.
        forward_op = OpArguments(facts.partner or OperandShape(), entry.arguments, CallFacts(facts.element))
        if facts.partner is None and (part.requires or part.flops.names | part.bytes.names > {"grad"}):
            return None

    def read(name: str) -> Value:
        """The value of `name` in a formula: an argument of the forward op, its `result`, the gradient `grad` that the
        backward node receives, or the totals over all tensor `inputs`. Raises `UnknownOperand` if the trace lacks
        it."""
        match name:
            case "result":
                return forward_op.result()
            case "grad":
                return recorded_op[0]  # a backward node receives the gradient as its first input
            case "inputs":
                tensors = forward_op.tensors()
                return Inputs(sum(tensor.numel for tensor in tensors), sum(tensor.bytes for tensor in tensors))
            case _:
                return forward_op.value(name)

    if part.requires and not part.requires.value(read):
        return None
    return Cost(
        flops=part.flops.number(read),
        bytes=part.bytes.number(read),
        format=_arithmetic_format(entry, forward_op if facts.partner or not part.backward else recorded_op),
        at_most=entry.at_most,
        on_matrix_units=entry.matrix,
        assumes=entry.assumes,
    )


def _arithmetic_format(entry: FormulaEntry, call: OpArguments) -> Format:
    """The format of the argument `entry.format`, else of the first tensor; unknown for an op of lists without one."""
    if entry.format:
        return call[entry.format].format
    for index in range(len(call)):
        try:
            if tensor := call.maybe(index):
                return tensor.format
        except UnknownOperand:
            continue
    return call.facts.element or UNKNOWN_FORMAT
