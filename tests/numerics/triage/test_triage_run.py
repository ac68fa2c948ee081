"""The diagnosis of stored runs by their losses, and the command."""

from __future__ import annotations

from math import nan
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cli import one_screen
from tests.cli.schema_check import valid
from tests.numerics.triage.test_triage_record import gradient, write
from tests.stored import JOB, JOB_TEXT
from trainyard.cli.main import answer
from trainyard.record import Run, Sample
from trainyard.store.store import Store, new_id


def losses(spiked: dict[int, float], steps: int = 60) -> list[float]:
    return [spiked.get(step, 3 + 4 * 0.95**step + 0.02 * (step % 3)) for step in range(steps)]


def store_run(values: list[float], rank: int = 1) -> str:
    """A complete run whose rank `rank` reports these losses; its id."""
    store = Store()
    run = Run(id=new_id(), job=JOB, started="2025-01-01T00:00:00.000+00:00")
    store.begin(run, JOB_TEXT)
    samples = tuple(
        Sample(step=step, rank=at, repeat=0, wall_ns=1, tokens=8, memory_bytes=1, loss=value if at == rank else None)
        for step, value in enumerate(values)
        for at in range(2)
    )
    return store.finish(replace(run, state="complete", samples=samples)).id


@pytest.fixture(autouse=True)
def empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path))


def triage(*arguments: str) -> int:
    return answer(["numerics", "triage", *arguments])


def test_spike_of_a_stored_run_and_the_command_that_records_it(capsys: pytest.CaptureFixture[str]) -> None:
    run = store_run(losses({40: 9.0, 41: 8.0}))
    assert triage(run, "--json") == 1
    document = valid("numerics-triage", capsys.readouterr().out)
    (spike,) = document["spikes"]
    assert (spike["step"], spike["last_step"], spike["value"]) == (40, 41, 9.0)
    assert "37-41" in document["replay"]
    assert Path(document["replay"][-1]).read_text() == JOB_TEXT


def test_first_loss_that_is_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    run = store_run(losses({50: nan, 51: nan}))
    assert triage(run, "--json") == 1
    document = valid("numerics-triage", capsys.readouterr().out)
    assert document["nonfinite_loss_step"] == 50
    assert document["spikes"] == []


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = store_run(losses({}))
    assert triage(good) == 0
    assert triage(store_run(losses({3: nan}, steps=16))) == 1
    assert triage(store_run(losses({}, steps=16))) == 3
    assert triage("unknown") == 2
    assert triage(good, str(tmp_path)) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_replay_records_the_steps_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[tuple[object, ...]] = []

    def record(command: list[str], out: Path, *, steps: str, replicas: int, say: object) -> None:
        commands.append((Path(command[0]).read_text(), out.name, steps, replicas))
        write(out, [gradient(step, "layer", 1.0) for step in range(3)])

    monkeypatch.setattr("trainyard.api.triage_record.record_numerics", record)
    good, bad = store_run(losses({})), store_run(losses({2: nan}))
    assert triage(good, "--replay", str(tmp_path / "none")) == 0
    assert commands == []
    capsys.readouterr()
    assert triage(bad, "--replay", str(tmp_path / "replay"), "--json") == 1
    document = valid("numerics-triage", capsys.readouterr().out)
    assert commands == [(JOB_TEXT, "first", "0-3", 0), (JOB_TEXT, "again", "0-3", 0)]
    assert document["is_replayed"]
    assert (document["nonfinite_loss_step"], document["nonfinite"]) == (2, None)
    assert document["determinism"]["identical"] == document["determinism"]["compared"] == 3
    assert triage(bad, "--replay", str(tmp_path / "shown")) == 1
    assert "The replay is finite" in capsys.readouterr().out
    assert triage(str(tmp_path / "replay" / "first"), "--replay", str(tmp_path / "other")) == 2


def test_screen_starts_before_the_spike(capsys: pytest.CaptureFixture[str]) -> None:
    run = store_run(losses({40: 9.0}))
    capsys.readouterr()
    assert triage(run) == 1
    printed = capsys.readouterr().out
    one_screen.check("\n".join(line for line in printed.splitlines() if "job.toml" not in line))
    assert "step 40" in printed
    assert [line for line in printed.splitlines() if line.split()[:1] == ["37"]]
    assert not [line for line in printed.splitlines() if line.split()[:1] == ["36"]]
