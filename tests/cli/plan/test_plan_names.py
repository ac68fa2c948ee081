"""Names and paths in the output and the errors of `trainyard plan`."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

from tests.models.test_models import LLAMA
from tests.refused import code_of, missing_values
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


@pytest.mark.parametrize("command", [(), ("check",)])
@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("model.safetensors", "\x10", "weights"),
        ("train.py", "import torch\n", "Python program"),
        ("train.ipynb", '{"cells": []}', "notebook"),
        ("job.yaml", "model: llama\n", "YAML"),
        ("trace.json", '{"traceEvents": []}', "profiler trace"),
        ("package.json", '{"name": "a", "dependencies": {}}', "package.json"),
        ("tokenizer.json", '{"added_tokens": [], "model": {}}', "tokenizer"),
    ],
)
def test_file_of_another_kind_is_named(
    command: tuple[str, ...], name: str, text: str, kind: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text, "utf-8")
    error = error_of(capsys, *command, name, "--machine", "h100", *STEP)
    assert code_of(error) == "bad-file"
    assert missing_values(error, name, kind, "Megatron's arguments") == []


def test_list_marks_the_models_that_are_not_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["plan", "list"]) == 0
    listed = capsys.readouterr().out
    assert missing_values(listed, "resnet-50*", "dlrm-dcnv2*", "sd1.5-unet*", "marked *") == []
    assert "llama3-8b*" not in listed


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert answer(["plan", *words]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "name", "kind", "option"),
    [
        (("h100",), "h100", "machine", "--machine h100"),
        (("check", "machine.toml"), "machine.toml", "machine", "--machine machine.toml"),
        (("machine.toml",), "machine.toml", "machine", "--machine machine.toml"),
        (("tiny", "--machine", "llama3-8b"), "llama3-8b", "model", "plan llama3-8b"),
        (("tiny", "--machine", "model.json"), "model.json", "model", "plan model.json"),
        (("tiny", "--machine", "model.toml"), "model.toml", "model", "plan model.toml"),
        (("tiny", "--machine", "job.toml"), "job.toml", "configuration", "plan check job.toml"),
    ],
)
def test_input_of_another_kind_names_its_kind_and_option(
    words: tuple[str, ...], name: str, kind: str, option: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    copy_of_h100(tmp_path / "machine.toml", '"mine"')
    (tmp_path / "model.json").write_text(json.dumps(LLAMA), "utf-8")
    (tmp_path / "model.toml").write_text("[model]\nlayers = 1", "utf-8")
    (tmp_path / "job.toml").write_text("[recipe]\nseq_len = 1", "utf-8")
    error = error_of(capsys, *words, *STEP)
    assert code_of(error) == "bad-input"
    assert missing_values(error, f"{name} is a {kind}", option) == []


@pytest.mark.parametrize(("words", "values"), [((), ["line 1"]), (("check",), ["neither a job file", "DeepSpeed"])])
def test_the_file_of_an_error_is_not_taken_for_a_secret(
    words: tuple[str, ...], values: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n", "utf-8")
    error = error_of(capsys, *words, "passwd", "--machine", "h100", *STEP)
    assert code_of(error) == "bad-file"
    assert missing_values(error, "passwd", *values) == []
    assert "***" not in error


@pytest.mark.parametrize("name", ["f/api_token.toml", "secret.toml", "f/password.toml", "passwd", "f/api_key.json"])
@pytest.mark.parametrize("command", [(), ("check",)])
def test_message_about_a_file_keeps_its_words_and_hides_secrets(
    name: str, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text('[training]\na b\npassword = "hunter2"\n' if path.suffix != ".json" else "{", "utf-8")
    error = error_of(capsys, *command, name, "--machine", "h100", *STEP)
    assert name in error
    assert "***" not in error
    path.write_text('[recipe]\nseq_len = "password=hunter2"\n', "utf-8")
    assert "hunter2" not in error_of(capsys, *command, name, "--machine", "h100", *STEP)


@pytest.mark.parametrize(
    "words", [("./none.json", "--machine", "h100"), ("dir/none.toml",), ("tiny", "--machine", "./none.toml")]
)
def test_missing_path_is_named_without_a_list_of_names(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    error = error_of(capsys, *words, *STEP)
    assert missing_values(error, "file", next(word for word in words if "none" in word)) == []
    assert "Known:" not in error


@pytest.mark.parametrize("kind", ["machine", "model"])
def test_out_never_replaces_a_file_that_the_command_reads(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, machine = tmp_path / "config.json", copy_of_h100(tmp_path / "machine.toml", '"mine"')
    config.write_text(json.dumps(LLAMA), "utf-8")
    out = Path(machine) if kind == "machine" else config
    before = out.read_bytes()
    assert answer(["plan", str(config), "--machine", machine, *STEP, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert code_of(error) == "bad-input"
    assert missing_values(error, "--out", str(out)) == []
    assert out.read_bytes() == before


def test_only_the_missing_size_of_a_step_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "llama3-8b", "--machine", "h100", "--devices", "8"]
    assert answer([*words, "--batch", "64"]) == 2
    error = capsys.readouterr().err
    assert "--seq-len" in error
    assert "--batch" not in error
    assert answer([*words, "--seq-len", "8192"]) == 2
    error = capsys.readouterr().err
    assert "--batch" in error
    assert "--seq-len" not in error


def test_a_machine_without_a_peak_is_to_be_completed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(copy_of_h100(tmp_path / "machine.toml", '"NVIDIA H100 SXM 80GB"'))
    text, formats = path.read_text("utf-8"), ("float32 =", "float16 =", "bfloat16 =", "float8 =")
    before, _, after = text.partition("[device.achieved.matmul]")
    text = before + after[after.index("[intra_node]") :]  # rates that would be above the only peak, of tf32
    path.write_text("\n".join(line for line in text.splitlines() if not line.startswith(formats)), "utf-8")
    for framework in ("megatron", "deepspeed"):
        assert answer(["plan", "llama3-8b", "--machine", str(path), *STEP, "--for", framework]) != 0
        assert missing_values(capsys.readouterr().err, "bfloat16", "[device.peak]") == []
