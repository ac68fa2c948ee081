"""`trainyard plan measure`, with made-up runs and with real ones."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.cli import one_screen
from tests.cli.schema_check import valid
from tests.predict.calibrate.test_fit_constants import BASE, HERE, SEEN, as_run
from tests.refused import code_of, missing_values
from trainyard import api, machine, plugins
from trainyard.api import measure_rounds
from trainyard.cli.main import answer
from trainyard.errors import BadJob, RankDied
from trainyard.job import Job
from trainyard.predict.calibrate import machine_file
from trainyard.record import Provenance, Run, Sample
from trainyard.report.plans.plans_file import read as read_plans
from trainyard.report.view.run_result import RunResult, result_of_run
from trainyard.run.local.rank_environment import environment, variable_values
from trainyard.run.record import provenance
from trainyard.run.session import Session
from trainyard.store.store import Store, new_id, now

WORK = ("tiny", "--batch", "16", "--seq-len", "256", "--fix", "dtype=float32")
CLUSTER = ("llama3-8b", "--machine", "h100", "--devices", "64", "--batch", "256", "--seq-len", "8192")
CHANGED_VARIABLES = ("TRAINYARD_STORE", "NCCL_ALGO")
NAMES = ("measure-tiny-1", "measure-tiny-2", "measure-tiny-3")


class FakeRuns:
    """Runs of jobs without ranks, whose steps have a known time. Keys are names of candidates: `factors`: multiples of
    that time; `failures`: errors of the runs. `order`: the candidates in the order of their runs."""

    def __init__(self) -> None:
        self.factors: dict[str, float] = {}
        self.failures: dict[str, BaseException] = {}
        self.order: list[str] = []
        self.noise = np.random.default_rng(0)

    def __call__(self, job: Job, *, session: Session) -> RunResult:
        name = session.tag.rpartition(".")[0]
        self.order.append(name)
        if error := self.failures.get(name):
            raise error
        predicted = as_run(HERE, BASE._replace(passes=BASE.passes / 2), job, "a run")
        wall = predicted.ledger.wall_ns * self.factors.get(name, 1.0) * self.noise.uniform(0.999, 1.001)
        run = Run(
            id=new_id(),
            job=job,
            started=now(),
            provenance=present_provenance(job.layout.ranks, *map(os.getenv, CHANGED_VARIABLES)),
        )
        folder = session.store.begin(run, "")
        samples = tuple(
            Sample(step=step, rank=0, repeat=0, wall_ns=round(wall), tokens=1, memory_bytes=10**9) for step in range(3)
        )
        run = session.store.finish(replace(run, state="complete", samples=samples, ledgers=(predicted.ledger,)))
        session.store.tag(run.id, session.tag)
        return result_of_run(run, folder)


@cache
def present_provenance(ranks: int, *_: str | None) -> Provenance:
    """The provenance of a run that is started now, cached by values of the variables that tests change."""
    vendors = plugins.load_all("vendors")
    return provenance.gather((SEEN,), vendors, variable_values(environment(ranks, vendors, "cpu")))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    """Fake runs on a host with two cores, in a store of their own; the folder has `here.toml`, its
    machine, and `linked.toml`, the same with a link between nodes."""
    fake = FakeRuns()
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measure_rounds, "find_devices", lambda vendors: (SEEN,))
    monkeypatch.setattr(measure_rounds, "run_job", fake)
    (tmp_path / "here.toml").write_text(machine_file.write(HERE, "A test."))
    linked = replace(HERE, inter_node=HERE.intra_node)
    (tmp_path / "linked.toml").write_text(machine_file.write(linked, "A test."))
    return fake


def measured(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The document of a command that ends well."""
    assert answer(["plan", "measure", *WORK, "--machine", "here.toml", *words, "--json"]) == 0
    return valid("measured-plans", capsys.readouterr().out)


def test_measured_steps_decide_which_is_fastest(runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    runs.factors[NAMES[0]] = 2.0
    document = measured(capsys)
    by_name = {candidate["name"]: candidate for candidate in document["candidates"]}
    slow, *others = document["candidates"]
    assert [len(candidate["measured"]["runs"]) for candidate in by_name.values()] == [5, 5, 5]
    assert slow["versus_fastest"]["separated"]
    assert slow["versus_fastest"]["low"] > 1.5
    assert any(candidate["versus_fastest"]["ratio"] == 1 for candidate in others)
    for candidate in by_name.values():
        step = candidate["measured"]["step"]
        assert 0 < step["low_ns"] < step["step_ns"] < step["high_ns"]
        assert candidate["measured"]["error"] == pytest.approx(step["step_ns"] / candidate["predicted_ns"] - 1)
        assert candidate["measured"]["memory_bytes"] == 10**9
        assert Store().load(candidate["name"]).id in candidate["measured"]["runs"]


def test_rounds_run_every_candidate_once(runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    measured(capsys, "--rounds", "4", "--top", "2")
    assert len(runs.order) == 8
    assert all(len(set(runs.order[start : start + 2])) == 2 for start in range(0, 8, 2))


def test_fit_moves_predictions_to_the_measurement(
    runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = measured(capsys, "--out", "fitted.toml")
    fitted = machine.load(str(tmp_path / "fitted.toml"))
    ranked = sorted(document["candidates"], key=lambda each: each["versus_fastest"]["ratio"])
    assert fitted.calibration["passes"].value < HERE.calibration["passes"].value
    assert [run["name"] for run in document["fit"]["runs"]] == [each["name"] for each in ranked]
    for candidate in document["candidates"]:
        errors = [
            abs(candidate[key] / candidate["measured"]["step"]["step_ns"] - 1)
            for key in ("predicted_ns", "after_fit_ns")
        ]
        assert errors[1] < errors[0]
    assert document["recommended_after_fit"]


def test_four_candidates_calibrate_the_interval(runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    assert measured(capsys, "--top", "3", "--rounds", "1")["fit"]["machine"]["prediction_interval"] is None
    assert measured(capsys, "--top", "4", "--rounds", "1")["fit"]["machine"]["prediction_interval"] is not None


def test_repeated_command_reuses_matching_runs(runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    first = measured(capsys, "--rounds", "2")
    again = measured(capsys, "--rounds", "3")
    assert len(runs.order) == 9
    for before, after in zip(first["candidates"], again["candidates"]):
        assert after["measured"]["runs"][:2] == before["measured"]["runs"]
        assert after["measured"]["reused"] == 2
    measured(capsys, "--rounds", "3", "--steps", "7")
    assert len(runs.order) == 18
    measured(capsys, "--rounds", "3", "--fresh")
    assert len(runs.order) == 27


def test_runs_in_another_environment_are_not_reused(
    runs: FakeRuns, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(capsys, "--rounds", "2")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    measured(capsys, "--rounds", "2")
    assert len(runs.order) == 12


def test_interrupted_command_continues(runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    runs.failures = {NAMES[1]: KeyboardInterrupt()}
    assert answer(["plan", "measure", *WORK, "--machine", "here.toml"]) == 130
    runs.failures.clear()
    complete = sum(row.state == "complete" for row in Store().rows())
    document = measured(capsys)
    assert sum(candidate["measured"]["reused"] for candidate in document["candidates"]) == complete


@pytest.mark.parametrize("error", [RankDied("rank 1 is out of memory."), BadJob("the job does not fit.")])
def test_failed_candidate_leaves_the_others(
    error: Exception, runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.failures[NAMES[1]] = error
    document = measured(capsys)
    failed = document["candidates"][1]
    assert failed["failure"] == str(error)
    assert failed["measured"] is failed["versus_fastest"] is None
    assert len(runs.order) == 11
    assert [candidate["measured"] is None for candidate in document["candidates"]] == [False, True, False]
    assert len(document["fit"]["runs"]) == 2
    assert answer(["plan", "measure", *WORK, "--machine", "here.toml"]) == 0
    one_screen.check(capsys.readouterr().out)


def test_no_measured_candidate_fails_the_command(runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    runs.failures = dict.fromkeys(NAMES, RankDied("rank 0 is out of memory."))
    command = ["plan", "measure", *WORK, "--machine", "here.toml", "--out", "fitted.toml"]
    assert answer(command) == 4
    assert code_of(capsys.readouterr().err) == "command-failed"
    assert answer([*command, "--json"]) == 4
    assert valid("measured-plans", capsys.readouterr().out)["fit"] is None
    assert not Path("fitted.toml").exists()


def test_output_is_one_screen(runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ("--rounds", "2"),
        ("--dry-run",),
        ("--top", "8", "--rounds", "1"),
        ("--out-dir", "jobs", "--top", "8"),
    ):
        assert answer(["plan", "measure", *WORK, "--machine", "here.toml", *words]) == 0
        one_screen.check(capsys.readouterr().out)


def test_full_output_has_every_layout_and_constant(runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    document = measured(capsys, "--top", "6", "--rounds", "1")
    assert answer(["plan", "measure", *WORK, "--machine", "here.toml", "--top", "6", "--rounds", "1", "--full"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f"{each['measured']['step']['step_ns'] / 1e6:.1f}" in shown for each in document["candidates"])
    assert all(f"{name} " in shown for name in document["fit"]["machine"]["calibration"])


def test_dry_run_estimates_the_steps_and_runs_nothing(runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    document = measured(capsys, "--dry-run", "--rounds", "2", "--steps", "4")
    predicted_s = sum(candidate["predicted_ns"] for candidate in document["candidates"]) / 1e9
    assert document["mode"] == "dry-run"
    assert document["predicted_s"] == pytest.approx(2 * document["steps"] * predicted_s)
    assert document["timed_steps"] == 4
    assert not runs.order


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("tiny", "--batch", "16", "--seq-len", "128"), ("--machine",)),
        ((*WORK, "--machine", "linked.toml", "--devices", "4"), (4, 2)),
        ((*WORK, "--machine", "linked.toml", "--devices", "4"), ("--out-dir", "launch")),
        ((*WORK, "--machine", "h100:8,a100:8"), ("h100:8,a100:8",)),
        ((*WORK, "--machine", "h100", "--devices", "2"), ("h100", "nvidia", "cpu")),
        ((*WORK, "--machine", "here.toml", "--for", "metagron"), ("megatron",)),
        (("--machine", "here.toml"), ()),
    ],
)
def test_bad_input(
    words: tuple[str, ...], values: tuple[object, ...], runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["plan", "measure", *words]) == 2
    error = capsys.readouterr().err
    assert code_of(error) in ("bad-input", "unknown-name")
    assert missing_values(error, *values) == []
    assert not runs.order


@pytest.mark.parametrize("flag", ["--top", "--rounds", "--steps"])
def test_numbers_below_one_are_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["plan", "measure", *WORK, "--machine", "h100", flag, "0"]) == 2
    assert missing_values(capsys.readouterr().err, flag, 0) == []


@pytest.mark.parametrize(
    ("framework", "suffix", "program"),
    [
        ("trainyard", ".toml", "trainyard launch"),
        ("megatron", ".args", "torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py"),
        ("torchtitan", ".toml", "torchrun --nnodes 8 --nproc-per-node 8 -m torchtitan.train"),
        ("deepspeed", ".json", "deepspeed --num_nodes 8 --num_gpus 8"),
    ],
)
def test_configurations_for_other_hosts_and_frameworks_are_written(
    framework: str, suffix: str, program: str, runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["plan", "measure", *CLUSTER, "--for", framework, "--out-dir", "candidates"]
    assert answer([*command, "--json"]) == 0
    document = valid("measured-plans", capsys.readouterr().out)
    assert document["mode"] == "files"
    assert document["framework"] == framework
    assert not runs.order
    for candidate in document["candidates"]:
        assert program in candidate["commands"][0]
        assert candidate["files"][0].endswith(f"{candidate['name']}{suffix}")
        assert candidate["files"][0] in candidate["commands"][0]
        assert all(Path(file).is_file() for file in candidate["files"])
        if framework != "trainyard":
            written = read_plans(Path(f"candidates/{candidate['name']}.plan.json"))
            assert written is not None
            assert written.best.plan.ledger.wall_ns == candidate["predicted_ns"]
    assert bool(document["feedback_commands"]) == (framework == "trainyard")
    assert answer(command) == 0
    one_screen.check(capsys.readouterr().out)


def test_written_configuration_is_that_of_its_candidate(runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["plan", "measure", *CLUSTER, "--for", "megatron", "--json"]) == 0
    document = valid("measured-plans", capsys.readouterr().out)
    for candidate in document["candidates"]:
        file = candidate["files"][0]
        assert file.startswith("measure-llama3-8b/")
        assert answer(["plan", "check", file, "--machine", "h100", "--devices", "64", "--json"]) == 0
        checked = json.loads(capsys.readouterr().out)["choices"][0]["plan"]
        assert checked["ledger"]["wall_ns"] == candidate["predicted_ns"]


def test_files_of_other_layouts_are_not_replaced(runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "measure", *CLUSTER, "--for", "megatron", "--out-dir", "candidates"]
    assert answer(command) == 0
    before = {path: path.read_bytes() for path in Path("candidates").iterdir()}
    assert answer(command) == 0  # the same files
    capsys.readouterr()
    assert answer([*command, "--fix", "tp=4"]) == 2
    error = capsys.readouterr().err
    assert code_of(error) == "bad-input"
    assert missing_values(error, "candidates/measure-llama3-8b-1", "--out-dir") == []
    assert {path: path.read_bytes() for path in Path("candidates").iterdir()} == before
    assert answer([*command[:-1], "others", "--fix", "tp=4"]) == 0


def test_folder_that_cannot_be_created_is_an_environment_failure(
    runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a-file").touch()
    assert answer(["plan", "measure", *CLUSTER, "--out-dir", "a-file"]) == 4
    error = capsys.readouterr().err
    assert code_of(error) == "not-writable"
    assert missing_values(error, "a-file") == []


def test_result_is_shown_in_notebooks(runs: FakeRuns) -> None:
    result = api.measure_plan("tiny", machine="here.toml", batch=16, seq_len=256, fix=["dtype=float32"], rounds=1)
    assert len(result.measured) == 3
    assert result._repr_html_().count("<table>") == 2


@pytest.mark.torch
@pytest.mark.slow
def test_candidates_are_run_and_fitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    Path("here.toml").write_text(machine_file.write(HERE, "A test."))
    command = ["plan", "measure", "tiny", "--machine", "here.toml", "--devices", "2", "--batch", "8", "--seq-len", "32"]
    command += [
        "--fix",
        "dtype=float32",
        "--top",
        "2",
        "--rounds",
        "2",
        "--steps",
        "2",
        "--out",
        "fitted.toml",
        "--json",
    ]
    assert answer(command) == 0
    document = valid("measured-plans", capsys.readouterr().out)
    assert len(document["candidates"]) == 2
    ids = [run for candidate in document["candidates"] for run in candidate["measured"]["runs"]]
    assert len(set(ids)) == 4
    for run in ids:
        assert Store().load(run).state == "complete"
        assert (tmp_path / "store" / "runs" / run).is_dir()
    assert all(candidate["measured"]["step"]["step_ns"] > 0 for candidate in document["candidates"])
    assert machine.load("fitted.toml").calibration != machine.load("here.toml").calibration
    names = [candidate["name"] for candidate in document["candidates"]]
    assert answer(["probe", "fit", *names, "--machine", "here.toml", "--json"]) == 0
    assert answer(["diff", *names, "--json"]) == 0
