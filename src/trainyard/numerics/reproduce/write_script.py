"""The source of a reproducer: inputs, the operations of A and those of B, and the error of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trainyard.errors import NotEnoughEvidence
from trainyard.numerics.reproduce.captured_slice import CapturedOperation, CapturedSlice
from trainyard.printable import printable

if TYPE_CHECKING:
    from trainyard.numerics.reproduce.script_values import Value, ValueSource

_FLOATS = ("float16", "bfloat16", "float32")
"""Formats that the reference widens to float64."""
_LOADERS = """
def load(text, dtype, shape):
    data = bytearray(zlib.decompress(base64.b64decode(text)))
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def load_file(name, dtype, shape):
    data = bytearray(Path(__file__).with_name(name).read_bytes())
    return torch.frombuffer(data, dtype=dtype).reshape(shape)

"""


class Side(NamedTuple):
    """The operations of a side, and the names that its inputs have in the script."""

    captured: CapturedSlice
    names: Mapping[str, str]


class ScriptParts(NamedTuple):
    """`title`: lines on the difference. `b`: None if B compiled the operations of A. `compares`: the difference
    is one of the result's values, dtype or shape. `limit`: relative error that rounding explains."""

    title: Sequence[str]
    values: Sequence[tuple[Value, ValueSource]]
    a: Side
    b: Side | None
    limit: float
    compares: Literal["values", "dtype", "shape"]


def write_script(parts: ScriptParts) -> str:
    """The script. Raises `NotEnoughEvidence` if an argument cannot be written as source."""
    body = "\n".join(_lines(parts))
    loaders = _LOADERS if "load(" in body or "load_file(" in body else ""
    imports = "import base64\nimport sys\nimport zlib\nfrom pathlib import Path\n" if loaders else "import sys\n"
    title = "\n".join(printable(line).replace('"""', "'''").replace("\\", "/") for line in parts.title)
    return f'"""{title}\n"""\n\n{imports}\nimport torch\n{loaders}\n{body}\n'


def _lines(parts: ScriptParts) -> Iterator[str]:
    yield "torch.set_grad_enabled(False)"
    yield "torch.manual_seed(0)"
    for value, source in parts.values:
        yield f"{value.name} = {source.text}"
    names_a = list(dict.fromkeys(parts.a.names.values()))
    yield from _function("operations_of_a", parts.a, names_a)
    names_b = names_a
    if parts.b is not None:
        names_b = list(dict.fromkeys(parts.b.names.values()))
        yield from _function("operations_of_b", parts.b, names_b)
    else:
        yield ""
        yield ""
        yield "operations_of_b = torch.compile(operations_of_a)"
    yield ""
    yield ""
    yield "def wide(value):"
    yield "    return value.double() if value.is_floating_point() else value"
    yield ""
    yield ""
    yield "def error(result):"
    yield "    if result.shape != reference.shape:"
    yield '        return float("nan")'
    yield "    # infinities of a mask are equal on both sides"
    yield "    distance = torch.where(result == reference, 0.0, result.double() - reference)"
    yield "    return (distance.norm() / reference.nan_to_num(0.0, 0.0, 0.0).norm()).item()"
    yield ""
    yield ""
    wide = [*(f"wide({name})" for name in names_a), *(f"{each}=torch.float64" for each in _dtypes(parts.a.captured))]
    yield f"reference = operations_of_a({', '.join(wide)}).double()"
    yield f"result_a, result_b = operations_of_a({_copies(names_a)}), operations_of_b({_copies(names_b)})"
    yield f"limit = {parts.limit:.3g}  # relative error that rounding explains"
    for side in ("A", "B"):
        result = f"result_{side.lower()}"
        yield f'print(f"{side}: error {{error({result}):.3g}} of {{{result}.dtype}} {{list({result}.shape)}}")'
    if parts.compares == "values":
        yield "sys.exit(1 if error(result_a) <= limit and not error(result_b) <= limit else 0)"
    else:
        yield f"sys.exit(1 if result_a.{parts.compares} != result_b.{parts.compares} else 0)"


def _copies(names: Sequence[str]) -> str:
    """Arguments of a call; operations in place must not change the inputs of the next call."""
    return ", ".join(f"{name}.clone()" for name in names)


def _function(name: str, side: Side, parameters: Sequence[str]) -> Iterator[str]:
    """The operations of a side as a function of its inputs. Floating-point formats are parameters too, so that the
    reference computes in float64."""
    keywords = [f"{dtype}=torch.{dtype}" for dtype in _dtypes(side.captured)]
    signature = ", ".join([*parameters, *(["*", *keywords] if keywords else [])])
    yield ""
    yield ""
    yield f"def {name}({signature}):"
    operations, names = _needed(side.captured), dict(side.names)
    for number, operation in enumerate(operations):
        names[operation.name] = f"v{number}"
        arguments = [_source(value, names) for value in operation.arguments]
        arguments += [f"{keyword}={_source(value, names)}" for keyword, value in operation.keywords.items()]
        comment = printable(", ".join(filter(None, (operation.module, operation.location))))
        if comment:
            yield f"    # {comment}"
        yield f"    v{number} = torch.ops.{operation.operation}({', '.join(arguments)})"
    yield f"    return {_source(side.captured.result, names)}"


def _needed(captured: CapturedSlice) -> list[CapturedOperation]:
    """The operations from which the result follows, in order."""
    needed = set(_tensors(captured.result))
    chosen: list[CapturedOperation] = []
    for operation in reversed(captured.operations):
        used = set(_tensors([list(operation.arguments), list(operation.keywords.values())]))
        if operation.name in needed or (needed & used and operation.operation.split(".")[1].endswith("_")):
            needed |= used
            chosen.append(operation)
    return chosen[::-1]


def needed_inputs(captured: CapturedSlice) -> set[str]:
    """Names of the inputs that the result depends on."""
    used = set(_tensors(captured.result))
    for operation in _needed(captured):
        used |= set(_tensors([list(operation.arguments), list(operation.keywords.values())]))
    return used & {each.name for each in captured.inputs}


def _tensors(value: Any) -> Iterator[str]:
    """Names of the tensors in an encoded argument."""
    if isinstance(value, list):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict) and "tensor" in value:
        yield value["tensor"]


def _dtypes(captured: CapturedSlice) -> list[str]:
    """The floating-point formats among the arguments of the needed operations."""
    formats: set[str] = set()
    for operation in _needed(captured):
        for value in (*operation.arguments, *operation.keywords.values()):
            if isinstance(value, dict) and value.get("torch") in _FLOATS:
                formats.add(value["torch"])
    return sorted(formats)


def _source(value: Any, names: Mapping[str, str]) -> str:
    """An encoded argument as source."""
    match value:
        case {"tensor": name, "output": output}:
            return f"{names[name]}[{int(output)}]"
        case {"tensor": name}:
            return names[name]
        case {"torch": text}:
            return text if text in _FLOATS else f"torch.{text}"
        case {"float": text}:
            return f'float("{float(text)}")'
        case {"opaque": kind}:
            raise NotEnoughEvidence(
                f"an operation has an argument of type {kind}, which cannot be written as source.",
                "Collectives and custom objects are not reproduced.",
            )
        case list():
            return f"[{', '.join(_source(item, names) for item in value)}]"
        case _:
            return repr(value)
