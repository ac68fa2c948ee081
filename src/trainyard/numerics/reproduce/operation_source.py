"""The captured operations of a side as a Python function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from trainyard.errors import NotEnoughEvidence
from trainyard.numerics.reproduce.captured_slice import CapturedOperation, CapturedSlice
from trainyard.numerics.reproduce.collective_calls import collective_calls, functional_call, is_collective
from trainyard.printable import printable

_FLOATS = ("float16", "bfloat16", "float32")
"""Formats that the reference widens to float64."""


def function_lines(
    name: str, captured: CapturedSlice, names: Mapping[str, str], parameters: Sequence[str]
) -> Iterator[str]:
    """The operations of a side as a function of its inputs, which have the names `names`. Floating-point formats are
    parameters too, so that the reference computes in float64."""
    keywords = [f"{dtype}=torch.{dtype}" for dtype in _dtypes(captured)]
    signature = ", ".join([*parameters, *(["*", *keywords] if keywords else [])])
    yield ""
    yield ""
    yield f"def {name}({signature}):"
    names = dict(names)
    for number, operation in enumerate(needed_operations(captured)):
        names[operation.name] = f"v{number}"
        comment = printable(", ".join(filter(None, (operation.module, operation.location))))
        if comment:
            yield f"    # {comment}"
        source = partial(_source, names=names)
        if operation.operation.startswith("c10d."):
            calls = collective_calls(operation.operation, operation.arguments, source)
            yield from (f"    {call}" for call in calls)
        elif is_collective(operation.operation):
            yield f"    v{number} = {functional_call(operation.operation, operation.arguments, source)}"
        else:
            arguments = [*map(source, operation.arguments)]
            arguments += [f"{keyword}={source(value)}" for keyword, value in operation.keywords.items()]
            yield f"    v{number} = torch.ops.{operation.operation}({', '.join(arguments)})"
    yield f"    return {_source(captured.result, names)}"


def needed_operations(captured: CapturedSlice) -> list[CapturedOperation]:
    """The operations from which the result follows, in order, with those whose results are sent to other ranks."""
    aliases = _aliases(captured.operations)
    needed = {aliases.get(name, name) for name in tensor_names(captured.result)}
    chosen: list[CapturedOperation] = []
    for operation in reversed(captured.operations):
        written = {aliases.get(name, name) for name in (operation.name, *operation.written)}
        if needed & written or operation.operation.startswith("c10d.send"):
            used = tensor_names([list(operation.arguments), list(operation.keywords.values())])
            needed |= {aliases.get(name, name) for name in used}
            chosen.append(operation)
    return chosen[::-1]


def _aliases(operations: Sequence[CapturedOperation]) -> dict[str, str]:
    """Result of an operation that shares memory with an earlier tensor -> the first such tensor."""
    aliases: dict[str, str] = {}
    for operation in operations:
        first = next(tensor_names(list(operation.arguments)), "") if operation.is_alias else ""
        if first:
            aliases[operation.name] = aliases.get(first, first)
    return aliases


def needed_inputs(captured: CapturedSlice) -> set[str]:
    """Names of the inputs that the result depends on."""
    used = set(tensor_names(captured.result))
    for operation in needed_operations(captured):
        used |= set(tensor_names([list(operation.arguments), list(operation.keywords.values())]))
    return used & {each.name for each in captured.inputs}


def tensor_names(value: Any) -> Iterator[str]:
    """Names of the tensors in an encoded argument."""
    if isinstance(value, list):
        for item in value:
            yield from tensor_names(item)
    elif isinstance(value, dict) and "tensor" in value:
        yield value["tensor"]


def _dtypes(captured: CapturedSlice) -> list[str]:
    """The floating-point formats among the arguments of the needed operations."""
    formats: set[str] = set()
    for operation in needed_operations(captured):
        for value in (*operation.arguments, *operation.keywords.values()):
            if isinstance(value, dict) and value.get("torch") in _FLOATS:
                formats.add(value["torch"])
    return sorted(formats)


def wide_keywords(captured: CapturedSlice) -> str:
    """Keyword arguments of a function with which it computes in float64."""
    return "".join(f", {dtype}=torch.float64" for dtype in _dtypes(captured))


def _source(value: Any, names: Mapping[str, str]) -> str:
    """An encoded argument as source."""
    match value:
        case {"tensor": name, "output": output}:
            return f"{names[name]}[{int(output)}]"
        case {"tensor": name}:
            return names[name]
        case {"torch": text}:
            return text if text in _FLOATS else f"torch.{text}"
        case {"group": ranks}:
            return f"groups[{', '.join(map(str, ranks))}{',' * (len(ranks) == 1)}]"
        case {"reduce_op": text}:
            return f"dist.ReduceOp.{text}"
        case {"float": text}:
            return f'float("{float(text)}")'
        case {"opaque": kind}:
            raise NotEnoughEvidence(
                f"an operation has an argument of type {kind}, which cannot be written as source.",
                "Custom objects are not reproduced.",
            )
        case list():
            return f"[{', '.join(_source(item, names) for item in value)}]"
        case _:
            return repr(value)
