"""The JavaScript modules of pages: all used, their names unique, nothing of the module syntax left in a script."""

import re
from pathlib import Path

import pytest

from trainyard.report.render.bundle import bundle, modules
from trainyard.report.render.html import __file__ as rendering

PAGE = Path(rendering).parents[1] / "page"
ENTRIES = ("analysis", "plans", "history", "memory", "comparison", "numerics")
DECLARED = re.compile(r"^(?:export )?(?:async )?(?:function|class|const|let) (\[[^\]]*\]|\w+)", re.MULTILINE)


def test_every_module_is_used():
    used = {name for entry in ENTRIES for name in modules(entry)}
    assert used == {path.stem for path in PAGE.glob("*.js")}


@pytest.mark.parametrize("entry", ENTRIES)
def test_top_level_names_are_unique(entry):
    texts = [(PAGE / f"{name}.js").read_text("utf-8") for name in modules(entry)]
    names = [name for text in texts for declared in DECLARED.findall(text) for name in re.findall(r"\w+", declared)]
    assert len(names) > 50
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_import_or_export_is_left(entry):
    assert not re.search(r"^\s*(import|export)\b", bundle(entry), re.MULTILINE)
    assert modules(entry)[-1] == entry


@pytest.mark.parametrize("entry", ENTRIES)
def test_constants_are_defined_before_their_module_runs(entry):
    """Only functions may be used across a cycle of imports: the modules of a cycle run in one order."""
    order = modules(entry)
    for position, name in enumerate(order):
        later = set(order[position + 1 :])
        text = (PAGE / f"{name}.js").read_text("utf-8")
        statements = re.findall(r"^(?:export )?(?:const|let) .* = (?!.*=>)(.*)$", text, re.MULTILINE)
        imported = re.findall(r'^import \{ ([\w, ]+) \} from "\./(\w+)\.js";$', text, re.MULTILINE)
        names = {item for items, module in imported if module in later for item in items.split(", ")}
        used = set(re.findall(r"\w+", "\n".join(statements)))
        assert not names & used, name
