"""The examples in the documents are what the commands print (docs/examples.py writes them)."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load_examples():
    spec = importlib.util.spec_from_file_location("docs_examples", ROOT / "docs" / "examples.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


TOOL = load_examples()
PAGES = list(TOOL.pages())


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_tutorial_has_examples():
    assert ROOT / "docs" / "tutorial.md" in PAGES


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_unmeasured_examples_print_what_the_page_shows(path, tmp_path):
    blocks = TOOL.examples(path.read_text("utf-8"))
    steady = [block for block in blocks if not block.measured]
    env = TOOL.prepare_folder(tmp_path)
    for block in steady:
        *first, last = block.commands
        for command in first:
            TOOL.run(command, tmp_path, env)
        if block.picture is None:
            printed, shown = TOOL.run(last, tmp_path, env), block.text
        else:
            drawn = tmp_path / Path(block.picture).name
            TOOL.draw_terminal(last, TOOL.run_in_terminal(last, tmp_path, env), drawn)
            printed, shown = drawn.read_text("utf-8"), (path.parent / block.picture).read_text("utf-8")
        assert shown is None or printed == shown, f"run python docs/examples.py {name(path)}"


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_measured_examples_are_as_new_as_their_scripts(path):
    for block in TOOL.examples(path.read_text("utf-8")):
        if block.measured:
            assert block.digest == TOOL.digest(block.commands), f"run python docs/examples.py {name(path)}"


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=name)
def test_measured_examples_run(path, tmp_path):
    pytest.importorskip("torch")
    blocks = TOOL.examples(path.read_text("utf-8"))
    if not any(block.measured for block in blocks):
        return
    env = TOOL.prepare_folder(tmp_path)
    for block in blocks:
        for command in block.commands:
            TOOL.run(command, tmp_path, env)


def test_every_picture_of_an_example_exists():
    for path in PAGES:
        text = path.read_text("utf-8")
        pictures = [block.picture for block in TOOL.examples(text) if block.picture]
        pictures += [match["picture"] for match in TOOL.SCREENSHOT.finditer(text)]
        for picture in pictures:
            assert (path.parent / picture).is_file(), picture
