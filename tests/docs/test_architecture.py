"""docs/architecture.md names existing files and the layers of the import contract."""

import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+(?:\.py|/))`", TEXT)))


@pytest.mark.parametrize("name", NAMED)
def test_files_named_in_the_document_exist(name: str) -> None:
    assert (ROOT / "src" / "trainyard" / name).exists() or (ROOT / name).exists()


def test_layers_match_the_import_contract() -> None:
    contracts = configparser.ConfigParser(interpolation=None)
    contracts.read(ROOT / ".importlinter", "utf-8")
    layers = re.findall(r"[\w.]+", contracts["importlinter:contract:layers"]["layers"])
    block = TEXT.split("```")[3]
    drawn = re.findall(r"[a-z_]+", re.sub(r" {3,}.*", "", block))
    assert drawn == [layer.removeprefix("trainyard.") for layer in layers]
