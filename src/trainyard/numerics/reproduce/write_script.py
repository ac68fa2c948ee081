"""The source of a reproducer: inputs, the operations of A and those of B, and the error of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from trainyard.numerics.reproduce.captured_slice import CapturedSlice
from trainyard.numerics.reproduce.operation_source import function_lines, wide_keywords
from trainyard.printable import printable

if TYPE_CHECKING:
    from trainyard.numerics.reproduce.script_values import Value, ValueSource

_LOADERS = """

def load(text, dtype, shape):
    data = bytearray(zlib.decompress(base64.b64decode(text)))
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def load_file(name, checksum, dtype, shape):
    path = Path(__file__).with_name(name)
    if not path.exists():
        raise FileNotFoundError(f"{path} is a part of this script: copy it to this folder")
    data = bytearray(path.read_bytes())
    if zlib.crc32(data) != checksum:
        raise ValueError(f"{path} is not the file that was written with this script: copy it again")
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


"""
COPIES = '''

def copies(*tensors):
    """Operations in place must not change the inputs of the next call."""
    return [tensor.clone() for tensor in tensors]


def wide(*tensors):
    return [tensor.double() if tensor.is_floating_point() else tensor.clone() for tensor in tensors]
'''
ERROR = '''

def error(result, reference):
    """Relative error; infinities of a mask are equal on both sides."""
    if result.shape != reference.shape:
        return float("nan")
    distance = torch.where(result == reference, 0.0, result.double() - reference).norm()
    return (distance / reference.nan_to_num(0.0, 0.0, 0.0).norm()).item() if distance else 0.0
'''


_FAIL = '''

def fail(*error):
    """An error must not end with the exit code of the fault."""
    sys.__excepthook__(*error)
    sys.exit(2)


sys.excepthook = fail
'''


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
    return join_script(parts.title, ["sys"], ["torch"], _lines(parts))


def join_script(title: Sequence[str], standard: Sequence[str], torch: Sequence[str], lines: Iterable[str]) -> str:
    """A script: its title, the modules of the standard library and of torch that it imports, and its lines. `load` and
    `load_file` are added if it calls them."""
    body = "\n".join(lines)
    has_loaders = "load(" in body or "load_file(" in body
    modules = sorted([*standard, *(("base64", "pathlib", "zlib") if has_loaders else ())])
    imports = "\n".join(_import(module) for module in modules)
    torch_imports = "\n".join(f"import {module}" for module in torch)
    loaders = _LOADERS if has_loaders else "\n"
    return f"{_docstring(title)}\n{imports}\n\n{torch_imports}\n{_FAIL}{loaders}{body}\n"


def _import(module: str) -> str:
    names = {"pathlib": "Path", "datetime": "timedelta"}
    return f"from {module} import {names[module]}" if module in names else f"import {module}"


def _docstring(lines: Sequence[str]) -> str:
    """The first lines of a script."""
    text = "\n".join(printable(line).replace('"""', "'''").replace("\\", "/") for line in lines)
    return f'"""{text}\n"""\n'


def _lines(parts: ScriptParts) -> Iterator[str]:
    yield "torch.set_grad_enabled(False)"
    yield "torch.manual_seed(0)"
    for value, source in parts.values:
        yield f"{value.name} = {source.text}"
    names_a = list(dict.fromkeys(parts.a.names.values()))
    yield from function_lines("operations_of_a", parts.a.captured, parts.a.names, names_a)
    names_b = names_a
    if parts.b is not None:
        names_b = list(dict.fromkeys(parts.b.names.values()))
        yield from function_lines("operations_of_b", parts.b.captured, parts.b.names, names_b)
    else:
        yield ""
        yield ""
        yield "operations_of_b = torch.compile(operations_of_a)"
    yield from (COPIES + ERROR).splitlines()
    yield ""
    yield ""
    keywords = wide_keywords(parts.a.captured)
    yield f"reference = operations_of_a(*wide({', '.join(names_a)}){keywords}).double()"
    yield f"result_a = operations_of_a(*copies({', '.join(names_a)}))"
    yield f"result_b = operations_of_b(*copies({', '.join(names_b)}))"
    yield f"limit = {parts.limit:.3g}  # relative error that rounding explains"
    for side in ("A", "B"):
        result = f"result_{side.lower()}"
        described = f"{{{result}.dtype}} {{list({result}.shape)}}"
        yield f'print(f"{side}: error {{error({result}, reference):.3g}} of {described}")'
    if parts.compares == "values":
        yield "sys.exit(1 if error(result_a, reference) <= limit and not error(result_b, reference) <= limit else 0)"
    else:
        yield f"sys.exit(1 if result_a.{parts.compares} != result_b.{parts.compares} else 0)"
