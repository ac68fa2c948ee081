"""docs/reference.md is up to date and covers all commands, job keys, settings, words, errors and plugins."""

import re
from pathlib import Path

import pytest
import reference

from trainyard import errors, plugins, words
from trainyard.job import Checkpoint, Job, Measure, Recovery
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe

SETTING = re.compile(r"TRAINYARD_[A-Z_]+")


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs" / "reference.md").read_text("utf-8")


def test_the_page_is_up_to_date(page):
    assert page == reference.render(), "run 'make docs'"


def test_every_command_is_documented(page):
    from trainyard.cli.main import COMMANDS

    for name in COMMANDS:
        assert f"\n### trainyard {name}\n" in page


@pytest.mark.parametrize("kind", [Job, Model, Layout, Recipe, Measure, Checkpoint, Recovery])
def test_every_job_key_is_documented(page, kind):
    section = "### Top" if kind is Job else f"### [{kind.__name__.lower()}]"
    text = page.partition(f"\n{section}\n")[2].partition("\n#")[0]
    nested = {"model", "layout", "recipe", "measure", "checkpoint", "recovery"} if kind is Job else set()
    for key in set(kind.__struct_fields__) - nested:
        assert f"\n| `{key}` |" in text


def test_every_environment_variable_is_documented(root, page):
    read = {name for path in (root / "src").rglob("*.py") for name in SETTING.findall(path.read_text("utf-8"))}
    assert read == set(reference.SETTINGS)
    assert all(f"\n| `{name}` |" in page for name in read)


def test_every_word_is_documented(page):
    tables = {name: table for name, table in vars(words).items() if name.isupper() and not name.startswith("_")}
    assert len(tables) > 15
    for table in tables.values():
        for word in table:
            assert f"\n| `{word}` |" in page


def test_every_error_has_a_unique_documented_code(page):
    def tree(kind):
        yield kind
        for child in kind.__subclasses__():
            yield from tree(child)

    kinds = [kind for kind in tree(errors.TrainyardError) if kind.__module__.startswith("trainyard.")]
    assert all("code" in vars(kind) for kind in kinds)
    assert len({kind.code for kind in kinds}) == len(kinds) >= 13
    for kind in kinds:
        assert re.search(rf"\b{kind.__name__}\b[^\n]*\s{kind.exit_code}  {kind.code}\s", page), kind


def test_every_plugin_is_documented(page):
    for group in plugins.PROTOCOLS:
        text = page.partition(f"\n### {group}\n")[2].partition("\n#")[0]
        for name, point in plugins.names(group).items():
            if point.value.startswith("trainyard."):
                assert f"\n| `{name}` |" in text


def test_documents_name_no_absolute_paths(root):
    names = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "constraints.txt")]
    for path in [*names, *Path(root / "docs").glob("*.md")]:
        assert not re.search(r"(?<![\w.~/])/(work|root|home|tmp|opt|Users)/", path.read_text("utf-8")), path
