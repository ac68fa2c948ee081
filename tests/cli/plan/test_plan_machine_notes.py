"""Notes of `trainyard plan` on machine files: unknown devices and their constants, and links of unusual bandwidths."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.refused import missing_values
from trainyard import machine as machines
from trainyard.cli.main import answer

H100 = machines.known()["h100"].read_text("utf-8")
NAME = "NVIDIA H100 SXM 80GB"
STEP = ("--batch", "16", "--seq-len", "128")


def notes_of(capsys: pytest.CaptureFixture[str], folder: Path, text: str, devices: int = 8) -> str:
    """The notes of a plan on a machine file with this text, in one line."""
    path = folder / "m.toml"
    path.write_text(text, "utf-8")
    assert answer(["plan", "tiny", "--machine", str(path), "--devices", str(devices), *STEP, "--json"]) == 0
    return " ".join(json.loads(capsys.readouterr().out).get("notes", ()))


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        (NAME, "Our accelerator", ["'Our accelerator'", "numbers of h100", repr(NAME), "all but", "device.achieved"]),
        ("[device.achieved.matmul]", "[device.achieved.attention]", ["'Our accelerator'", "all: no known device"]),
        ("3.35e12", "3.5e12", ["probe fit"]),
    ],
)
def test_assumed_constants_of_an_unknown_device_are_explained(
    old: str, new: str, values: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = notes_of(capsys, tmp_path, H100.replace(old, new, 1).replace(NAME, "Our accelerator", 1))
    assert missing_values(notes, "constants of h100 are assumed", *values) == []


@pytest.mark.parametrize("name", ["h100", "NVIDIA H100 SXM 8GB"])
def test_a_misspelt_device_is_suggested(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = notes_of(capsys, tmp_path, H100.replace(NAME, name, 1).replace("3.35e12", "3.5e12", 1))
    assert f"Did you mean {NAME!r}?" in notes


def test_constants_of_a_known_device_have_no_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = H100.replace('name = "h100"', 'name = "my-cluster"', 1)
    assert "constants" not in notes_of(capsys, tmp_path, text)
    assert "constants" not in notes_of(capsys, tmp_path, text.replace(NAME, "NVIDIA H100 80GB HBM3", 1))


def test_faster_links_between_nodes_than_in_a_node_are_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow_node = H100.replace("value = 450e9", "value = 32e9", 1)
    notes = notes_of(capsys, tmp_path, slow_node, 16)
    assert missing_values(notes, "InfiniBand NDR", "50 GB/s", "NVLink 4", "32 GB/s", "one direction") == []
    assert "GB/s" not in notes_of(capsys, tmp_path, slow_node, 8)
    assert "GB/s" not in notes_of(capsys, tmp_path, H100, 16)
