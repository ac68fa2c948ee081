"""The lock of a run's folder lasts until the last process of the job has ended."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import msgspec
import pytest

from tests.processes import alive, until
from tests.refused import refused
from trainyard.errors import RunInUse
from trainyard.launch import process_lock
from trainyard.launch.launch_spec import FILE, Spec
from trainyard.launch.local import Local
from trainyard.launch.process_lock import FILE as LOCK
from trainyard.launch.process_lock import lock_for_processes

WORKER = """
import os, sys, time
from pathlib import Path
held = bytearray(200 << 20)  # memory that the kernel has to free: the process ends later than its parents
(Path(sys.argv[1]) / f"pid{os.environ['RANK']}").write_text(str(os.getpid()))
time.sleep(60)
"""


def has_memory(pid: int) -> bool:
    """Whether a process has memory. The kernel frees it, then closes the files, and only then ends the process."""
    try:
        return "VmSize" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_locked(folder: Path) -> bool:
    with (folder / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@pytest.mark.torch
@pytest.mark.slow
def test_ranks_hold_the_lock_until_they_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    (tmp_path / "sleeping_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    spec = Spec(module="sleeping_worker", args=(str(tmp_path),), ranks=2, port=0)
    (tmp_path / FILE).write_bytes(msgspec.json.encode(spec))
    launcher = Local()
    job = launcher.submit(tmp_path)
    paths = [tmp_path / f"pid{rank}" for rank in range(2)]
    try:
        assert until(lambda: all(path.exists() and path.read_text() for path in paths))
        ranks = [int(path.read_text()) for path in paths]
        assert is_locked(tmp_path)
        with refused(RunInUse, "0.1 s"), lock_for_processes(tmp_path, wait_s=0.1):
            pass
    finally:
        os.kill(int(job), signal.SIGKILL)
    deadline_s = time.monotonic() + 30
    while is_locked(tmp_path):
        assert time.monotonic() < deadline_s
    assert not any(has_memory(rank) for rank in ranks)
    assert until(lambda: not any(alive(rank) for rank in ranks))
    launcher.status(job)  # reaps the supervisor


def test_lock_waits_for_processes_that_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with lock_for_processes(tmp_path):
        child = os.fork()
        if not child:
            os.close(writer)
            os.read(reader, 1)  # until the parent has closed its end
            os._exit(0)
    os.close(reader)
    assert is_locked(tmp_path)
    ended: list[int] = []

    def end_child(_: float) -> None:
        if not ended:
            os.close(writer)
            ended.append(os.waitpid(child, 0)[0])

    monkeypatch.setattr(process_lock.time, "sleep", end_child)  # of the first poll, which finds the lock taken
    with lock_for_processes(tmp_path, wait_s=60):
        assert ended == [child]
