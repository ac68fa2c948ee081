"""`trainyard numerics parity`: one screen, JSON, exit codes."""

from __future__ import annotations

import pytest

from tests.cli import one_screen
from tests.cli.schema_check import valid
from trainyard.api import check_parity
from trainyard.cli.main import answer
from trainyard.numerics.parity_trial import Trial
from trainyard.train.step.outcome import Outcome


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layout of several ranks is off by 1e-7."""

    def trial(job: object, steps: int, replicas: int) -> Trial:
        loss = 1.0 if job.layout.ranks == 1 else 1.0 + 1e-7  # type: ignore[attr-defined]
        outcomes = [Outcome(loss=loss, grad_norm=1.0)] * steps
        return Trial(outcomes, 0.5, [outcomes] * replicas)

    monkeypatch.setattr(check_parity, "trial", trial)


@pytest.mark.usefixtures("trials")
def test_all_mixes_fit_one_screen_and_full_lists_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["numerics", "parity"]) == 0
    shown = capsys.readouterr().out
    one_screen.check(shown)
    assert answer(["numerics", "parity", "--json"]) == 0
    mixes = [result["mix"] for result in valid("parity", capsys.readouterr().out)["results"]]
    assert f"{len(mixes) - 24} more mixes" in shown
    assert answer(["numerics", "parity", "--full"]) == 0
    full = capsys.readouterr().out
    assert [mix for mix in mixes if mix not in full] == []
    monkeypatch.setenv("COLUMNS", "40")
    assert answer(["numerics", "parity", "--only", "HSDP"]) == 0
    one_screen.check(capsys.readouterr().out, columns=40)


@pytest.mark.usefixtures("trials")
def test_parity_shows_its_table_in_a_notebook() -> None:
    results = check_parity.parity(only="HSDP", steps=2)
    assert results.different == ()
    assert "<table>" in results._repr_html_()
