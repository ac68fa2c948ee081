"""`trainyard plan check` of job files that trainyard does not train, and with another model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.refused import code_of, missing_values
from trainyard import job_file
from trainyard import machine as machines
from trainyard.api.plan_layouts import PlanOptions, check_configuration
from trainyard.cli.main import answer
from trainyard.job import Job
from trainyard.train.fake_run import held_memory

_JOB = """
name = "small"
[model]
layers = 4
hidden_size = 128
ffn_hidden_size = 384
heads = 8
kv_heads = 4
head_dim = 16
{model}
[layout]
{layout}
[recipe]
seq_len = 128
tokens_per_step = 3072
{recipe}
"""
_EXPERTS = "experts = 8\ntop_k = 2\nmoe_ffn_hidden_size = 64"


@pytest.mark.parametrize(
    ("layout", "model", "recipe", "values"),
    [
        ("tp = 3", "", "", ("tp", 3, "heads 8", "1, 2, 4")),
        ("pp = 6", "", "schedule = 'gpipe'", ("$.layout", "pp 6", "4 layers")),
        ("cp = 3", "", "", ("cp = 3", "seq_len 128", "1, 2, 4, 8, 16, 32, 64")),
        ("dp_shard = 6\nep = 3", _EXPERTS, "", ("experts 8", "ep 3", "1, 2")),
        ("dp_shard = 5", "", "", ("$", "3,072", "data-parallel ranks 5")),
    ],
    ids=("heads", "layers", "sequence", "experts", "batch"),
)
def test_indivisible_layout_names_sizes_and_degrees(
    layout: str, model: str, recipe: str, values: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(_JOB.format(layout=layout, model=model, recipe=recipe), "utf-8")
    assert answer(["plan", "check", str(path), "--machine", "h100"]) == 2
    error = capsys.readouterr().err
    assert code_of(error) == "bad-job"
    assert missing_values(error, str(path), *values) == []


def test_the_progress_names_the_simulated_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    @contextmanager
    def progress(text: str) -> Iterator[None]:
        shown.append(text)
        yield

    def measure_rank(_job: Job, rank: int) -> held_memory.RankMemory:
        assert str(rank) in shown[-1]
        return held_memory.RankMemory(1, 1, 1, 1, 1)

    monkeypatch.setattr(held_memory, "measure_rank", measure_rank)
    path = tmp_path / "job.toml"
    path.write_text(_JOB.format(layout="pp = 2", model="", recipe="schedule = 'gpipe'"), "utf-8")
    plans = check_configuration(str(path), None, PlanOptions(machine="h100", progress=progress))
    assert plans.exact_bytes.keys() == {0, 1}
    assert [text for text in shown if "simulated run" in text] == [
        f"Counting the memory of rank {rank} in a simulated run" for rank in (0, 1)
    ]


def notes(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert answer(["plan", "check", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out).get("notes", [])


def test_model_of_the_command_replaces_that_of_the_file_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args, job, no_model = tmp_path / "run.args", tmp_path / "job.toml", tmp_path / "sizes.toml"
    step = ("--machine", "h100", "--devices", "8", "--batch", "8", "--seq-len", "2048")
    assert answer(["plan", "tiny", *step, "--for", "megatron", "--out", str(args)]) == 0
    text = _JOB.format(layout="dp_shard = 8", model="", recipe="").replace("3072", "8192")
    job.write_text(text, "utf-8")
    no_model.write_text(f"[layout]\ndp_shard = 8\n[recipe]{text.partition('[recipe]')[2]}", "utf-8")
    capsys.readouterr()
    for path, count in ((args, 1), (job, 1), (no_model, 0)):
        model = ("--model", "tiny", *step[:4])
        replaced = [note for note in notes(capsys, str(path), *model) if "--model" in note]
        assert len(replaced) == count
        assert all(missing_values(note, str(path), "tiny") == [] for note in replaced)
    assert not any("--model" in note for note in notes(capsys, str(job), "--machine", "h100"))


def test_a_decoder_does_not_replace_a_model_of_images(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["plan", "check", "examples/vit.toml", "--model", "llama3-8b", "--machine", "h100"]) == 2
    assert missing_values(capsys.readouterr().err, "examples/vit.toml", "vision", "--model", "llama3-8b") == []


@pytest.mark.parametrize("mode", ["check", "search", "list", "measure", "design", "rollout"])
def test_help_lists_exit_codes(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["plan", mode, "--help"]) == 0
    assert "Exit codes: 0 " in " ".join(capsys.readouterr().out.split())


def test_checked_file_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.toml"
    path.write_text(_JOB.format(layout="tp = 2", model="", recipe=""), "utf-8")
    (tmp_path / "link.toml").symlink_to(path)
    before = path.read_bytes()
    for out in ("job.toml", "link.toml"):
        assert answer(["plan", "check", str(path), "--machine", "h100", "--out", str(tmp_path / out)]) == 2
        assert missing_values(capsys.readouterr().err, out) == []
    assert path.read_bytes() == before


@pytest.mark.parametrize("setting", ["dtype = 'float8'", "offload = true"])
def test_job_without_simulated_run_is_predicted_with_a_note(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(_JOB.format(layout="dp_shard = 8", model="vocab = 256", recipe=setting), "utf-8")
    assert answer(["plan", "check", str(path), "--machine", "h100", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.get("exact_bytes", {}) == {}
    assert sum(setting in note for note in document["notes"]) == 1


def test_deepspeed_file_without_its_values_names_those_to_add(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 3}}', "utf-8")
    options = {"--model": "tiny", "--devices": "8", "--seq-len": "128", "--machine": "h100"}
    names = {"--model": "model", "--devices": "devices", "--seq-len": "sequence length", "--machine": "machine"}
    for missing in ({"--model"}, {"--devices"}, {"--seq-len"}, {"--model", "--machine"}, {"--devices", "--seq-len"}):
        given = [word for option, value in options.items() if option not in missing for word in (option, value)]
        assert answer(["plan", "check", str(path), *given]) == 2
        message, _, step = capsys.readouterr().err.partition("DeepSpeed file")[2].partition("\n")
        assert {option for option in options if option in step} == missing
        assert {option for option, name in names.items() if name in message} == missing


@pytest.mark.parametrize("is_file", [False, True], ids=["name", "file"])
def test_written_job_file_names_its_machine(
    is_file: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    machine = "h100"
    if is_file:
        machine = "mine.toml"
        text = machines.known()["h100"].read_text("utf-8")
        Path(machine).write_text(text.replace('name = "h100"', 'name = "mine"', 1), "utf-8")
    step = ("--devices", "8", "--batch", "8", "--seq-len", "128")
    assert answer(["plan", "tiny", *step, "--machine", machine, "--out", "job.toml"]) == 0
    assert job_file.load(Path("job.toml")).machine == machine
    capsys.readouterr()
    assert answer(["plan", "check", "job.toml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["machine"] == Path(machine).stem


def test_layout_of_a_job_file_keeps_its_machine(tmp_path: Path) -> None:
    job, planned = tmp_path / "job.toml", tmp_path / "planned.toml"
    text = _JOB.format(layout="dp_shard = 8", model="vocab = 256", recipe="")
    job.write_text(f'machine = "h100"\n{text}', "utf-8")
    for words in ((), ("check",)):
        assert answer(["plan", *words, str(job), "--out", str(planned)]) == 0
        assert job_file.load(planned).machine == "h100"


def test_no_model_is_suggested_in_place_of_a_faulty_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("[recipe]\nseq_len = 'x'\ntokens_per_step = 8\n", "utf-8")
    for words, is_suggested in ((("check",), False), ((), True)):
        assert answer(["plan", *words, str(bad), "--machine", "h100"]) == 2
        assert ("config.json" in capsys.readouterr().err) is is_suggested
