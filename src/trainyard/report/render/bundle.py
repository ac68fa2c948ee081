"""The script of a page: JavaScript modules of the folder report/page/, concatenated into one scope.

The page is a single file that opens from a disk, where browsers load no modules. Top-level names are unique among
modules that are used together, so that removing `import` and `export` preserves the meaning.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_IMPORT = re.compile(r'^import \{ [\w, ]+ \} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let) )", re.MULTILINE)


@cache
def bundle(module: str) -> str:
    """The script that runs `module` (the name of a file of page/ without its suffix) after all modules that it imports,
    directly or not."""
    return '(() => {\n"use strict";\n' + "\n".join(_statements(name) for name in modules(module)) + "})();\n"


def modules(module: str) -> list[str]:
    """`module` and all modules that it imports, each after its own imports; a module of a cycle of imports may come
    before another one of that cycle."""
    order: dict[str, None] = {}
    visited: set[str] = set()

    def visit(name: str) -> None:
        if name in visited:
            return
        visited.add(name)
        for imported in _IMPORT.findall(page_file(f"{name}.js")):
            visit(imported)
        order[name] = None

    visit(module)
    return list(order)


def page_file(name: str) -> str:
    """A file of the folder page/."""
    return resources.files("trainyard.report").joinpath("page", name).read_text(encoding="utf-8")


def _statements(name: str) -> str:
    """A module without its `import` statements and `export` keywords."""
    return _EXPORT.sub("", _IMPORT.sub("", page_file(f"{name}.js")))
