"""The modes of `trainyard probe`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli import one_screen
from tests.predict.calibrate.test_fit_constants import BASE, HERE, LAYOUTS, SEEN, a_job, as_probed, as_run
from trainyard import api, machine
from trainyard.api import probe_machine
from trainyard.cli.main import answer
from trainyard.machine_load import MachineLoad
from trainyard.predict.calibrate import machine_file


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of two ranks with known rates."""
    monkeypatch.setattr(probe_machine.devices, "devices", lambda ranks, dtype: (SEEN, ranks or 2, ()))
    monkeypatch.setattr(probe_machine.devices, "probe", lambda vendor, ranks, dtype: (as_probed(), None))
    monkeypatch.setattr(probe_machine, "wait_until_idle", lambda wait_s, say: None)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The file of a machine; a run's name is the index of its layout."""
    runs = [as_run(HERE, BASE, a_job(layout), str(at)) for at, layout in enumerate(LAYOUTS)]
    monkeypatch.setattr(probe_machine, "measured_run", lambda name, say: runs[int(name)])
    path = tmp_path / "here.toml"
    path.write_text(machine_file.write(HERE, "A test."))
    return str(path)


@pytest.mark.usefixtures("probed")
def test_probe_prints_one_screen_and_all_calls_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["probe"]) == 0
    one_screen.check(capsys.readouterr().out)
    assert answer(["probe", "--full"]) == 0
    assert capsys.readouterr().out.count("matmul") > 9


@pytest.mark.usefixtures("probed")
def test_probe_writes_a_machine_file_that_plan_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "here.toml"
    assert answer(["probe", "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["calls"]) == len(as_probed())
    assert machine.load(str(out)) == api.probe().machine
    plan = ("plan", "tiny", "--machine", str(out), "--batch", "64", "--seq-len", "128", "--fix", "dtype=float32")
    assert answer(list(plan)) == 0


@pytest.mark.usefixtures("probed")
def test_busy_machine_is_measured_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits_s: list[float] = []

    def wait(wait_s: float, say: Callable[[str], None]) -> MachineLoad:
        waits_s.append(wait_s)
        say("waiting")
        return MachineLoad(window_s=0.25, cores=2, run_cores=0.0, other_cores=1.7)

    monkeypatch.setattr(probe_machine, "wait_until_idle", wait)
    assert answer(["probe", "--wait", "3", "--json"]) == 0
    printed = capsys.readouterr()
    assert any("1.7 of 2" in warning for warning in json.loads(printed.out)["warnings"])
    assert "waiting" in printed.err
    assert answer(["probe"]) == 0
    assert waits_s == [3, 60]
    assert answer(["probe", "--wait", "-1"]) == 2


def test_fit_prints_one_screen_with_the_errors(measured: str, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(at) for at in range(len(LAYOUTS))]
    assert answer(["probe", "fit", *runs, "--machine", measured]) == 0
    one_screen.check(capsys.readouterr().out)
    assert answer(["probe", "fit", *runs, "--machine", measured, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in document["runs"]] == runs
    for run in document["runs"]:
        assert run["after_s"] == pytest.approx(run["measured_s"], rel=0.1)


@pytest.mark.parametrize("words", [("a-run",), ("a-run", "--machine", "here.toml"), ("--machine", "here.toml")])
def test_runs_without_the_mode_name_it(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["probe", *words]) == 2
    assert "trainyard probe fit" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--machine", "h100"), ("a-run",)])
def test_fit_requires_runs_and_a_machine(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["probe", "fit", *words]) == 2
    assert "Missing" in capsys.readouterr().err


@pytest.mark.usefixtures("probed")
def test_results_are_shown_in_notebooks(measured: str) -> None:
    for result in (api.probe(ranks=2), api.fit_machine(["0"], machine=measured), api.catalogue("machines")):
        assert "<table>" in result._repr_html_()
