"""docs/reference/python.md is up to date and complete, and some of its examples run."""

import re
import shutil
from inspect import getdoc

import pytest
import python_api

from trainyard import api


def test_the_page_is_up_to_date():
    assert python_api.PAGE.read_text("utf-8") == python_api.render(), "run 'make docs'"


def test_every_field_has_a_type():
    page = python_api.PAGE.read_text("utf-8")
    assert "| `` |" not in page
    assert "| --- | --- | --- |\n\n" not in page, "a table without rows"
    headings = re.findall(r"^### (\w+)$", page, re.MULTILINE)
    assert len(headings) == len(set(headings))


def test_inherited_and_dataclass_fields_are_documented():
    sections = re.split(r"^### ", python_api.PAGE.read_text("utf-8"), flags=re.MULTILINE)
    section = {text.split("\n")[0]: text for text in sections}
    for name, members in {
        "RunResult": ("goodput", "missing_ranks"),
        "GateReport": ("exit_code",),
        "Session": ("store", "tag", "hosts"),
        "LaunchOptions": ("nodes",),
    }.items():
        assert all(f"\n| `{member}` | `" in section[name] for member in members), name


@pytest.mark.parametrize("name", ["analyse", "plan", "catalogue", "diff", "critical_path", "query", "what_if"])
def test_examples_run(root, tmp_path, monkeypatch, capsys, name):
    if name == "query":
        pytest.importorskip("duckdb")
    demo = root / "src" / "trainyard" / "data" / "demo"
    for rank, folder in ((0, "traces"), (1, "traces"), (0, "traces/before"), (1, "traces/after")):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(demo / f"rank{rank}.json.gz", tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", getdoc(getattr(api, name)), re.DOTALL)
    exec(example, {"api": api})  # noqa: S102 - of this repository
    assert capsys.readouterr().out.count("\n") >= 1
