"""`trainyard run` and its modes: old options, one screen, JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import one_screen
from tests.cli.schema_check import valid
from tests.refused import code_of, missing_values
from tests.stored import stored
from trainyard.cli.main import answer
from trainyard.cli.run.print_run import show_chaos
from trainyard.error_report import report_of
from trainyard.errors import RankDied
from trainyard.printable import encode_json
from trainyard.report.view.run_result import RunResult, result_of_run
from trainyard.run.chaos.chaos_files import SCORE
from trainyard.run.chaos.experiment import ChaosScore
from trainyard.run.chaos.fault_plan import Fault, FaultPlan
from trainyard.run.chaos.score_recovery import FaultScore
from trainyard.run.script import run_command
from trainyard.store.store import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path / "store"))
    return Store()


def scored(store: Store, faults: int) -> RunResult:
    """A run with that many injected faults, the first of which was blamed on another rank."""
    run = stored(store)
    rows = tuple(
        FaultScore(
            kind="kill_worker", step=number, rank=1, injected_step=number, blamed="worker_death",
            blamed_rank=min(number, 1), correctly_blamed=number > 0, detect_s=0.25, restart_s=3.5, lost_s=1.25,
            outcome="recovered", losses="identical",
        )
        for number in range(faults)
    )  # fmt: skip
    plan = FaultPlan(fault=tuple(Fault(kind="kill_worker", step=row.step, rank=1) for row in rows))
    score = ChaosScore(reference="0badcafe", plan=plan, faults=rows, unplanned=run.incidents)
    folder = store.runs / run.id
    (folder / SCORE).write_bytes(encode_json(score))
    return result_of_run(run, folder, error=report_of(RankDied("rank 1 died.", "Look at its log.")))


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        (["--resume", "3f9c"], "trainyard run resume RUN"),
        (["--chaos=plan.toml", "job.toml"], "trainyard run chaos PLAN.toml JOB.toml"),
        (["job.toml", "--against", "3f9c"], "--against RUN"),
    ],
)
def test_replaced_option_names_the_mode(words: list[str], mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["run", *words]) == 2
    printed = capsys.readouterr().err
    assert code_of(printed) == "bad-usage"
    assert missing_values(printed, mode) == []


@pytest.mark.parametrize("words", [["resume"], ["chaos"], ["chaos", __file__], []])
def test_mode_without_arguments_is_bad_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["run", *words]) == 2
    assert code_of(capsys.readouterr().err) == "bad-usage"


@pytest.mark.parametrize("faults", [1, 40])
@pytest.mark.parametrize("columns", [40, 80])
def test_chaos_score_fits_one_screen(
    faults: int, columns: int, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = scored(store, faults)
    show_chaos(result, as_json=False, full=False)
    shown = capsys.readouterr().out
    if columns == 80:
        one_screen.check(shown)
    assert f"{faults - 1} of {faults} fault{'s' if faults > 1 else ''}" in " ".join(shown.split())
    monkeypatch.delenv("COLUMNS")
    show_chaos(result, as_json=False, full=True)
    assert capsys.readouterr().out.count(" 0.25 ") == faults


def test_json_of_a_chaos_run_has_its_score_and_error(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    result = scored(store, 2)
    show_chaos(result, as_json=True, full=False)
    document = valid("run", capsys.readouterr().out)
    assert [fault["correctly_blamed"] for fault in document["chaos"]["faults"]] == [False, True]
    assert (document["error"]["code"], document["error"]["exit_code"]) == ("rank-died", 4)
    valid("chaos", Path(result.folder, SCORE).read_text())
    assert result._repr_html_().startswith("<iframe srcdoc=")


def test_script_prints_a_valid_document(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The words after `--` are the script's, even if they name a mode or an option."""
    commands = []

    def execute(command: tuple[str, ...], *_: object) -> object:
        commands.append(command)
        return stored(store)

    monkeypatch.setattr(run_command, "execute", execute)
    assert answer(["run", "--json", "--", "python", "train.py", "--resume", "chaos"]) == 0
    document = valid("run", capsys.readouterr().out)
    assert (document["state"], document["summary"]["step_ns"]) == ("complete", 125)
    assert commands == [("python", "train.py", "--resume", "chaos")]
