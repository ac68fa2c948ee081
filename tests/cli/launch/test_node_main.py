"""The exit code that the head of a job writes into its folder."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from trainyard.cli.launch import node_main
from trainyard.launch.launch_spec import EXIT_CODE, LEFT, TOKEN


def words(folder: Path, node: int, job: str = "absent.toml") -> list[str]:
    options = {"--folder": folder, "--job-id": "7", "--nodes": 2, "--node": node, "--head": "127.0.0.1:1", "--job": job}
    return [str(word) for option in options.items() for word in option]


def test_head_writes_the_code_of_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "secret")
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path / "store"))
    before = signal.getsignal(signal.SIGTERM)
    try:
        code = node_main.main(words(tmp_path / "node0", 0))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert code == 2
    assert (tmp_path / "node0" / EXIT_CODE).read_text() == "2\n"


def test_other_nodes_write_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert node_main.main(words(tmp_path / "node1", 1)) == 2
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not (tmp_path / "node1" / EXIT_CODE).exists()


@pytest.mark.torch
def test_unwritable_folder_of_a_node_names_its_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv(TOKEN, "secret")
    (tmp_path / "file").write_text("in the way")
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert node_main.main(words(tmp_path / "file" / "node1", 1)) == 4
    finally:
        signal.signal(signal.SIGTERM, before)
    err = capsys.readouterr().err
    assert "not-writable" in err
    assert "--folder" in err


def test_head_that_leaves_before_the_start_writes_75(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "secret")

    def leave(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(node_main, "_run_head", leave)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert node_main.main(words(tmp_path / "node0", 0)) == LEFT
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (tmp_path / "node0" / EXIT_CODE).read_text() == f"{LEFT}\n"
