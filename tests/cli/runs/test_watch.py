"""`trainyard runs watch`: in a pipe, as JSON, on a terminal; runs that end, are damaged, or have not begun."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from tests.cli import one_screen
from tests.cli.schema_check import valid
from tests.refused import code_of
from tests.stored import JOB, JOB_TEXT, LEDGER, samples, stored
from trainyard import api
from trainyard.cli.main import answer
from trainyard.launch.supervisor.event_log import SUPERVISOR, EventLogWriter, JobEvent
from trainyard.record import Incident, Run, Sample
from trainyard.report.render.blocks import EIGHTHS, sparkline
from trainyard.report.render.live_terminal import LiveLines
from trainyard.run.folder_lock import lock_folder
from trainyard.run.live_run import LiveRun, LiveStep
from trainyard.store.store import Store

ID = "00c0ffee"
# A shell's background processes ignore SIGINT, and so would the command.
_START = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from trainyard.cli.main import main; main()"
)
WATCH = [sys.executable, "-c", _START, "runs", "watch"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path / "store"))
    return Store()


def begin(store: Store) -> tuple[Run, Path]:
    run = Run(id=ID, job=JOB, started="2026-01-01T00:00:00+00:00")
    return run, store.begin(run, JOB_TEXT)


def append(folder: Path, sample: Sample) -> None:
    with (folder / "samples" / f"rank{sample.rank}.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(sample) + b"\n")


def test_complete_run_is_shown_once(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run = stored(store)
    assert answer(["runs", "watch", run.id[:5]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("step 6/")
    assert "loss 0.0000" in lines[0]
    assert LEDGER.entries[0].account.label in lines[1]
    assert run.id in lines[2]
    one_screen.check("\n".join(lines))


@pytest.mark.parametrize(("state", "code"), [("failed", 4), ("complete", 0)])
def test_exit_code_is_that_of_the_run(store: Store, state: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = begin(store)
    store.finish(msgspec.structs.replace(run, state=state, samples=samples(), failure="rank 1 died: \x1b[31mout"))
    assert answer(["runs", "watch", ID]) == code
    shown = capsys.readouterr().out
    assert "rank 1 died" in shown
    assert "\x1b" not in shown


def test_damaged_stopped_and_unknown_runs(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run = stored(store)
    (store.runs / run.id / "ledgers.json").write_bytes(b"{}")
    assert answer(["runs", "watch", run.id]) == 2
    assert "ledgers.json" in capsys.readouterr().out
    _, folder = begin(store)
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    assert answer(["runs", "watch", ID]) == 4
    printed = capsys.readouterr()
    assert "stopped" in printed.out
    assert f"run resume {ID}" in printed.err
    assert answer(["runs", "watch", "nightly"]) == 2
    assert code_of(capsys.readouterr().err) == "unknown-name"


def test_updates_as_json_are_valid_documents(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run = stored(store)
    assert answer(["runs", "watch", run.id, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    document = valid("live-run", line)
    assert (document["id"], document["state"], len(document["new_steps"])) == (run.id, "complete", 6)
    assert document["ledger"]["wall_ns"] == LEDGER.wall_ns


def test_run_that_has_not_begun_is_waited_for(store: Store) -> None:
    def write() -> None:
        time.sleep(0.3)
        run, folder = begin(store)
        with lock_folder(folder):
            time.sleep(0.2)
            for sample in samples():
                append(folder, sample)
            time.sleep(0.2)
            store.finish(msgspec.structs.replace(run, state="complete", samples=samples()))

    messages: list[str] = []
    writer = threading.Thread(target=write)
    writer.start()
    updates = list(api.watch_run(ID, interval_s=0.02, wait_s=60, say=messages.append))
    writer.join()
    assert len(messages) == 1
    assert ID in messages[0]
    assert [step.step for update in updates for step in update.new_steps] == [0, 1, 2, 3, 4, 5]
    assert updates[-1].state == "complete"


def test_piped_watcher_prints_each_update_and_stops_on_request(store: Store) -> None:
    _, folder = begin(store)
    with lock_folder(folder), subprocess.Popen([*WATCH, ID, "--interval", "0.1"], stdout=-1, text=True) as process:
        assert process.stdout is not None
        try:
            assert "starting" in process.stdout.readline()
            for step in range(3):
                append(folder, Sample(step=step, rank=0, repeat=0, wall_ns=10**6, tokens=8, memory_bytes=1))
                assert process.stdout.readline().startswith(f"step {step + 1}/")
            EventLogWriter(folder, SUPERVISOR).add(
                JobEvent(type="fault", kind="worker_death", at=1, noticed=2, message="rank 0 died: [bold]x[/bold]")
            )
            assert "rank 0 died: [bold]x[/bold]" in process.stdout.readline()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_watcher_on_a_terminal_draws_a_panel(store: Store) -> None:
    run, folder = begin(store)
    incident = Incident(kind="hang", time="2026-01-01T10:11:12.000+00:00", attempt=0, summary="rank 1 hung")
    done = msgspec.structs.replace(
        run, state="complete", samples=samples(), ledgers=(LEDGER,), incidents=(incident,), goodput={"good": 9.0}
    )
    store.finish(done)
    reader, writer = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "40"}
    process = subprocess.Popen([*WATCH, ID], stdout=writer, stderr=writer, env=environment)
    os.close(writer)
    shown = b""
    while True:
        try:
            data = os.read(reader, 65536)
        except OSError:  # the terminal's other end is closed
            break
        shown += data
    assert process.wait(30) == 0
    text = shown.decode()
    for part in (f"run {ID}", "complete", "step time", "loss", "rank 1 hung", LEDGER.entries[0].account.label, "steps"):
        assert part in text
    assert any(column in text for column in EIGHTHS[1:])
    assert folder.is_dir()


def test_lines_report_each_event_once() -> None:
    def update(**changes: object) -> LiveRun:
        fields = {"id": ID, "job": "tiny", "started": "", "state": "running", "steps": 9}
        return LiveRun(**{**fields, **changes})  # type: ignore[arg-type]

    step = LiveStep(step=3, wall_ns=10**6, slowest_rank=2, loss=float("nan"), attempt=1, skipped=True)
    incident = Incident(kind="hang", time="", attempt=0, summary="rank 1 hung")
    live = LiveLines()
    assert len(list(live.lines(update()))) == 1
    assert list(live.lines(update())) == []
    first, second = live.lines(update(incidents=(incident,), new_steps=(step,), last=step, ranks=4))
    assert "rank 1 hung" in first
    assert second.startswith("step 4/9  loss nan")
    assert all(part in second for part in ("rank 2 of 4", "attempt 2", "not applied"))
    assert list(live.lines(update(incidents=(incident,), last=step))) == []
    assert len(list(live.lines(update(state="finishing", last=step)))) == 1


@pytest.mark.parametrize(
    ("values", "width", "picture"),
    [
        ([], 10, ""),
        ([1.0, 1.0], 10, "▄▄"),
        ([0.0, 7.0], 10, "▁█"),
        ([0.0, 1.0, 7.0, 0.0], 2, "▂█"),
        ([0.0, float("nan"), 7.0], 10, "▁ █"),
        ([float("inf")], 10, ""),
    ],
)
def test_sparkline(values: list[float], width: int, picture: str) -> None:
    assert sparkline(values, width) == picture


@pytest.mark.torch
@pytest.mark.slow
def test_real_run_is_followed_to_its_end(store: Store, root: Path) -> None:
    command = [sys.executable, "-m", "trainyard.cli.main", "run", str(root / "examples" / "tiny.toml"), "--tag", "live"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        watcher = subprocess.run(
            [*WATCH, "live", "--wait", "300", "--interval", "0.2", "--json"], stdout=-1, check=True
        )
        assert job.wait() == 0
    updates = [json.loads(line) for line in watcher.stdout.splitlines()]
    (run,) = store.rows()
    kept = store.load(run.id)
    states = list(dict.fromkeys(update["state"] for update in updates))
    assert states[-1] == "complete"
    assert "running" in states
    followed = [step["step"] for update in updates for step in update["new_steps"]]
    assert followed == sorted({sample.step for sample in kept.samples})
    assert updates[-1]["ledger"]["wall_ns"] == kept.ledgers[-1].wall_ns
    losses = {sample.step: sample.loss for sample in kept.samples if sample.rank == 0}
    assert updates[-1]["last"]["loss"] == losses[max(losses)]
    assert updates[-1]["ranks"] == 2
