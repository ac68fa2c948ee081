"""Writes docs/reference/python.md: the functions of `trainyard.api`, their options and their results.

    python docs/python_api.py

A test fails when the file differs from the code.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any

from page_parts import first_paragraph, table
from schemas import DOCUMENTS

from trainyard import api
from trainyard.finding import Finding, Remedy
from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.plan import Plan
from trainyard.record import Run, Sample

PAGE = Path(__file__).parent / "reference" / "python.md"
RESULTS = {document.__name__: document for document in DOCUMENTS.values()}
PARTS_OF_RESULTS = (Account, Entry, Finding, Ledger, Plan, Remedy, Run, Sample, Scope)
HEAD = """# Python

This page answers: which function does the work of a command, and which fields does its result have?

Each command but those of `trainyard runs` prints, as text or with `--json`, the result of a function of
`trainyard.api` (`runs join` is `api.join`,
`runs watch` is `api.watch_run`). Options are keywords, results are plain data, and a notebook shows an
analysis, a comparison and plans as their pages. `trainyard.analyse`, `diff`, `gate`, `history`, `parity` and `probe`
are short for those of `trainyard.api`. In signatures, `Path` is a string or a path object, and `JobSource` is that or a
`Job`. Errors are subclasses of `trainyard.TrainyardError`; [their codes](../reference.md#error-codes-and-exit-codes)
are those of the commands.
`docs/python_api.py` writes this page from the code.
"""


def render() -> str:
    """The text of the page."""
    functions = [getattr(api, name) for name in dir(api) if inspect.isfunction(getattr(api, name))]
    options = [getattr(api, name) for name in dir(api) if inspect.isclass(getattr(api, name))]
    results = {RESULTS[_result_of(function)] for function in functions}
    parts = [HEAD.strip(), "## Functions"]
    for function in functions:
        parts += [f"### {function.__name__}", f"```python\n{_call(function)}\n```", _doc(function)]
    parts.append("## Options and results")
    for kind in sorted({*options, *results, *PARTS_OF_RESULTS}, key=lambda kind: kind.__name__):
        parts += [f"### {kind.__name__}", _doc(kind), table(("name", "type", ""), _members(kind))]
    return "\n\n".join(parts) + "\n"


def _result_of(function: Callable[..., Any]) -> str:
    """The name of the type that a function returns, or of whose values it yields."""
    return _type(inspect.signature(function).return_annotation).removeprefix("Iterator[").removesuffix("]")


def _call(function: Callable[..., Any]) -> str:
    """The signature of a function, one parameter per line."""
    signature = inspect.signature(function)
    lines: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "    *," not in lines:
            lines.append("    *,")
        default = parameter.default
        text = "..." if callable(default) else repr(default)
        suffix = "" if default is parameter.empty else f" = {text}"
        lines.append(f"    {parameter.name}: {_type(parameter.annotation)}{suffix},")
    return "\n".join([f"def {function.__name__}(", *lines, f") -> {_type(signature.return_annotation)}"])


def _type(annotation: object) -> str:
    """An annotation as in the source, without the names of modules."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text.replace("os.PathLike[str]", "PathLike"))


def _doc(documented: object) -> str:
    """A docstring as Markdown."""
    return inspect.getdoc(documented) or ""


def _members(kind: type) -> Iterator[tuple[str, str, str]]:
    """(name, type, meaning) of the fields of a class, and of its public properties and methods; inherited ones too."""
    classes = [base for base in reversed(kind.__mro__) if base.__module__.startswith("trainyard")]
    types = {name: text for base in classes for name, text in vars(base).get("__annotations__", {}).items()}
    meanings = {name: text for base in classes for name, text in _field_docs(base).items()}
    attributes = ("__struct_fields__", "__dataclass_fields__", "_fields")
    fields = next((tuple(getattr(kind, name)) for name in attributes if hasattr(kind, name)), ())
    for name in fields:
        yield f"`{name}`", f"`{_type(types[name])}`", meanings.get(name, "")
    for name, member in {name: member for base in classes for name, member in vars(base).items()}.items():
        function = member.fget if isinstance(member, property) else member
        if name.startswith("_") or name in fields or not inspect.isfunction(function):
            continue
        returned = _type(inspect.signature(function).return_annotation)
        label = name if isinstance(member, property) else f"{name}()"
        yield f"`{label}`", f"`{returned}`", first_paragraph(function.__doc__)


def _field_docs(kind: type) -> dict[str, str]:
    """Field -> the string literal after it, on one line."""
    (definition,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)  # noqa: S101
    docs: dict[str, str] = {}
    for field, literal in pairwise(definition.body):
        match field, literal:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
            case _:
                pass
    return docs


if __name__ == "__main__":
    PAGE.write_text(render(), "utf-8")
    print(f"{PAGE.relative_to(Path.cwd())} is written.")
