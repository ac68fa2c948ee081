"""Modules of the packages that run jobs: none imports itself by way of others, and those named in strings exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

import trainyard

SOURCE = Path(trainyard.__file__).parent
PACKAGES = ("launch", "run", "train", "workloads", "numerics")


def trees() -> dict[str, ast.Module]:
    """Module name -> its syntax tree, of every module in `PACKAGES`."""
    return {
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): ast.parse(path.read_text("utf-8"))
        for package in PACKAGES
        for path in (SOURCE / package).rglob("*.py")
    }


def imported(tree: ast.Module) -> Iterator[str]:
    """What is imported anywhere in a module, also within functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_module_imports_itself_by_way_of_others() -> None:
    modules = trees()
    graph = {name: modules.keys() & set(imported(tree)) for name, tree in modules.items()}
    assert "trainyard.launch.agents.elastic" in graph["trainyard.launch.agents.fork_server"]
    TopologicalSorter(graph).prepare()  # raises CycleError


def named() -> list[str]:
    pattern = re.compile(r"trainyard(\.[a-z_]\w*)+")
    constants = {
        node.value
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and pattern.fullmatch(node.value)
    }
    return sorted(constants)


@pytest.mark.parametrize("name", named())
def test_a_module_named_in_a_string_exists(name: str) -> None:
    assert find_spec(name) is not None
