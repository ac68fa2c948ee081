"""The local launcher: starts ranks through torch, names the one that died, and leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.ports import free_port
from tests.processes import alive, until
from tests.refused import missing_values, refused
from trainyard.errors import BadInput, MissingLibrary, PortInUse, UnknownName
from trainyard.job import Job
from trainyard.launch import local
from trainyard.launch.launch_spec import Spec
from trainyard.launch.local import Local
from trainyard.launch.supervisor import failure_report as failures
from trainyard.launch.supervisor.failure_report import Failure
from trainyard.launch_request import LaunchRequest, RankOptions, Variable
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe

JOB = Job(
    model=Model(layers=1, hidden_size=8, ffn_hidden_size=8, heads=1, kv_heads=1, head_dim=8),
    layout=Layout(dp_replicate=2),
    recipe=Recipe(seq_len=8, tokens_per_step=16),
)

WORKER = """
import os, signal, sys, time
from pathlib import Path
folder, how = Path(sys.argv[1]), sys.argv[2]
rank = int(os.environ["RANK"])
(folder / f"pid{rank}").write_text(str(os.getpid()))
print(f"rank {rank} of {os.environ['WORLD_SIZE']} is here", file=sys.stderr)
if how == "well":
    sys.exit(0)
while not all((folder / f"pid{peer}").exists() for peer in range(2)):
    time.sleep(0.01)
if rank == 1:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raise":
        raise ValueError("the number is wrong")
    if how == "exit":
        print("the last straw", file=sys.stderr)
        os._exit(3)
if how == "raise" and rank == 0:
    time.sleep(0.02)
    raise RuntimeError("connection closed by peer")
if how == "kill" and rank == 0:
    raise RuntimeError("connection closed by peer")
if how == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
(folder / f"waiting{rank}").write_text("")
time.sleep(120)
"""


@pytest.fixture
def job_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to launch in, with a worker that does as it is told."""
    (tmp_path / "told_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def request(*command: str, port: int | None = None, **options: Any) -> LaunchRequest:
    return LaunchRequest(job=JOB, command=command, port=port, **options)


def start(job_folder: Path, how: str, launcher: Local, **options: Any) -> str:
    for name, text in launcher.render(request("told_worker", str(job_folder), how, **options)).items():
        (job_folder / name).write_text(text)
    return launcher.submit(job_folder)


ASKING = """
import os, sys
from pathlib import Path
folder, said = Path(sys.argv[1]), [os.environ[name] for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT")]
(folder / ("rank" + os.environ["RANK"])).write_text(" ".join(said))
"""


def pids(job_folder: Path) -> list[int]:
    return [int((job_folder / f"pid{rank}").read_text()) for rank in range(2)]


def test_a_rendered_job_says_what_will_start() -> None:
    files = Local().render(request("some.module", "a", "b"))
    spec = msgspec.json.decode(files["launch.json"], type=Spec)
    assert spec == Spec(ranks=2, port=0, module="some.module", args=("a", "b"))


def test_a_port_in_use_is_refused_before_anything_starts() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with refused(PortInUse, port, "127.0.0.1") as caught:
            Local().render(request("module", port=port))
    assert caught.value.exit_code == 4
    assert msgspec.json.decode(Local().render(request("module", port=port))["launch.json"], type=Spec).port == port


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_number_that_is_no_port_is_bad_input(port: int) -> None:
    with refused(BadInput, port, "1 to 65535", "--port"):
        Local().render(request("module", port=port))


def test_missing_torch_has_next_step(job_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "find_spec", lambda _: None)
    with refused(MissingLibrary, "torch", "trainyard[train]"):
        start(job_folder, "well", Local())


def test_an_unknown_job_is_refused() -> None:
    with refused(UnknownName, "'1'"):
        Local().status("1")


@pytest.mark.torch
def test_ranks_that_end_well(job_folder: Path) -> None:
    pytest.importorskip("torch")
    launcher = Local()
    variable = Variable(value="lo", reason="The ranks share a host.")
    id = start(job_folder, "well", launcher, environment={"GLOO_SOCKET_IFNAME": variable})
    assert until(lambda: launcher.status(id).is_over)
    assert launcher.status(id).state == "ended"
    assert (job_folder / "logs" / "rank1.err").read_text() == "rank 1 of 2 is here\n"


@pytest.mark.torch
def test_port_taken_at_last_moment_is_a_clear_failure(job_folder: Path) -> None:
    pytest.importorskip("torch")
    launcher, port = Local(), free_port()
    files = launcher.render(request("told_worker", str(job_folder), "well", port=port))
    (job_folder / "launch.json").write_text(files["launch.json"])
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        id = launcher.submit(job_folder)
        assert until(lambda: launcher.status(id).is_over)
    pattern = rf"the ranks cannot meet at 127\.0\.0\.1:{port}: .*address already in use"
    assert launcher.failure(id).rank == -1
    assert re.search(pattern, launcher.status(id).reason)
    assert not (job_folder / "pid0").exists()


@pytest.mark.torch
def test_concurrent_jobs_use_separate_ports(job_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "asking_worker.py").write_text(ASKING)
    launcher, folders = Local(), [tmp_path / name for name in ("aaaa0001", "aaaa0002")]
    ids = []
    for folder in folders:
        folder.mkdir()
        (folder / "launch.json").write_text(launcher.render(request("asking_worker", str(folder)))["launch.json"])
        ids.append(launcher.submit(folder))
    assert until(lambda: all(launcher.status(id).is_over for id in ids))
    assert [launcher.status(id).state for id in ids] == ["ended", "ended"]
    places = [(folder / f"rank{rank}").read_text() for folder in folders for rank in range(2)]
    assert [text.split()[0] for text in places] == ["aaaa0001"] * 2 + ["aaaa0002"] * 2
    ports = [text.split()[1] for text in places]
    assert ports[0] == ports[1] != ports[2] == ports[3]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("how", "code", "says", "words"),
    [
        ("kill", -9, "rank 1 died: killed by SIGKILL", "rank 1 of 2 is here"),
        ("raise", 1, "rank 1 died: exit code 1", "ValueError: the number is wrong"),
        ("exit", 3, "rank 1 died: exit code 3", "rank 1 of 2 is here\nthe last straw"),
    ],
)
def test_the_first_rank_to_die_is_named(job_folder: Path, how: str, code: int, says: str, words: str) -> None:
    pytest.importorskip("torch")
    launcher = Local()
    id = start(job_folder, how, launcher)
    assert until(lambda: (job_folder / "pid0").exists() and (job_folder / "pid1").exists())
    begun = time.monotonic()
    assert until(lambda: launcher.status(id).is_over)
    assert time.monotonic() - begun < 60, "a rank that waits two minutes is not waited for"
    failure = launcher.failure(id)
    assert (failure.rank, failure.exit_code, failure.last_words) == (1, code, words)
    assert failure.pid == pids(job_folder)[1]
    assert launcher.status(id).reason.startswith(says)
    assert until(lambda: not any(map(alive, pids(job_folder))), 30)


SLOW = """
import time
from pathlib import Path
here = Path(__file__).parent
(here / "importing").write_text("")
while not (here / "go").exists():
    time.sleep(0.01)
"""


@pytest.mark.torch
def test_job_asked_to_leave_before_start_leaves_at_once(job_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "slow_to_import.py").write_text(SLOW)
    launcher = Local()
    id = start(job_folder, "wait", launcher, ranks=RankOptions(preload=("slow_to_import",)))
    assert until((tmp_path / "importing").exists)
    launcher.cancel(id, save=True)
    assert until(lambda: launcher.status(id).is_over), "without an end of the import"
    assert launcher.failure(id).kind == "preempted"
    assert launcher.failure(id).summary.endswith("it was ended before its first step.")
    assert not (job_folder / "pid0").exists()


@pytest.mark.torch
@pytest.mark.parametrize("how", ["wait", pytest.param("deaf", marks=pytest.mark.slow)])
def test_cancel_ends_every_process(job_folder: Path, how: str) -> None:
    pytest.importorskip("torch")
    launcher = Local()
    id = start(job_folder, how, launcher)
    assert until(lambda: all((job_folder / f"waiting{rank}").exists() for rank in range(2)))
    launcher.cancel(id)
    assert launcher.status(id).state == "failed"
    assert until(lambda: not any(map(alive, [int(id), *pids(job_folder)])), 30)


STARTER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_launch import start
from trainyard.launch.local import Local
print(start(Path(sys.argv[1]), "wait", Local()), flush=True)
time.sleep(120)
"""


@pytest.mark.torch
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux")
def test_ranks_do_not_outlive_a_killed_parent(job_folder: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-c", STARTER, str(job_folder), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        agent = int(parent.stdout.readline())
        assert until(lambda: all((job_folder / f"waiting{rank}").exists() for rank in range(2)))
        parent.send_signal(signal.SIGKILL)
    assert until(lambda: not any(map(alive, [agent, *pids(job_folder)])), 30)


def test_launcher_death_is_reported_with_its_output(job_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "find_spec", lambda _: object())
    launcher = Local()
    (job_folder / "launch.json").write_text("{}")
    failures.write(job_folder, Failure(rank=3, pid=1, exit_code=1, when=0.0, last_words="of the run before"))
    id = launcher.submit(job_folder)
    assert until(lambda: launcher.status(id).is_over)
    assert launcher.status(id).reason.startswith("the launcher died: exit code 1")
    assert launcher.failure(id).rank == -1
    assert launcher.failure(id).last_words


def test_failure_report_round_trip(tmp_path: Path) -> None:
    assert failures.read(tmp_path) is None
    failure = Failure(rank=3, pid=7, exit_code=-11, when=1.5)
    failures.write(tmp_path, failure)
    assert failures.read(tmp_path) == failure
    assert missing_values(failure.summary, "rank 3", "SIGSEGV", "pid 7") == []
    assert missing_values(Failure(rank=0, pid=1, exit_code=-250, when=0).summary, "signal 250") == []


def test_the_tail_of_a_log_is_its_last_lines_however_long(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert failures.tail(log) == ""
    log.write_bytes(b"\xff first\n" + b"x" * 100_000 + b"\n\n  last \n\n")
    assert failures.tail(log).endswith("\n  last")
    log.write_text("\n".join(map(str, range(100))))
    assert failures.tail(log).split("\n") == [str(n) for n in range(92, 100)]
