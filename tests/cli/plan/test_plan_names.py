"""Names and paths in the output and the errors of `trainyard plan`."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

from tests.models.test_models import LLAMA
from trainyard.cli.main import answer

STEP = ("--devices", "8", "--batch", "8", "--seq-len", "2048")


def copy_of_h100(path: Path, name: str) -> str:
    """A machine file like that of the package, with another name of its device. `name`: as TOML."""
    text = (resources.files("trainyard") / "data" / "machines" / "h100.toml").read_text("utf-8")
    path.write_text(text.replace('name = "NVIDIA H100 SXM 80GB"', f"name = {name}", 1), "utf-8")
    return str(path)


def test_names_with_line_breaks_are_one_line_of_the_heading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, machine = tmp_path / "a\nb.json", copy_of_h100(tmp_path / "machine.toml", '"two\\nlines"')
    config.write_text(json.dumps({**LLAMA, "_name_or_path": "x/my\nmodel\x1b[31m", "odd\nkey": 1}), "utf-8")
    assert answer(["plan", str(config), "--machine", machine, *STEP]) == 0
    out, err = capsys.readouterr()
    words = out.split()
    assert words[:4] == ["my⟨U+000A⟩model⟨U+001B⟩[31m", "on", "8", "x"]
    assert "two⟨U+000A⟩lines" in words
    assert "odd⟨U+000A⟩key" in err
    config.write_text(json.dumps(LLAMA), "utf-8")
    assert answer(["plan", str(config), "--machine", "h100", *STEP]) == 0
    assert capsys.readouterr().out.startswith("a⟨U+000A⟩b on 8 x NVIDIA H100")
