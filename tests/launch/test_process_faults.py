"""Faults of the machine under a running job: clocks that are set, full shared memory, too little memory, loaders that
never return. Each is a real one, on real ranks, judged by what is recorded and by the losses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.marks import nightly
from tests.processes import alive, until
from tests.tiny_job import ONE_LAYER

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="faults are made by Linux interfaces"),
]

PATIENCE_S = 400
STEPS = 100
"""Measured steps, twice: so many that a job of milliseconds a step still trains when the fault is made."""
JOB = f"""{ONE_LAYER}vocab = {{vocab}}
[layout]
dp_replicate = 2
[recipe]
seq_len = 64
tokens_per_step = 128
dataset = "text.txt"
num_workers = {{workers}}
[measure]
warmup = 2
steps = {{steps}}
repeats = 2
profiled = 0
[checkpoint]
interval = 3
[recovery]
max_restarts = {{restarts}}
hang_timeout_s = {{hang_timeout_s}}
"""
DRIVER = """
import json, os, sys
from pathlib import Path
import msgspec
from trainyard.errors import TrainyardError
from trainyard.job_file import parse
from trainyard.launch.supervisor import event_log
from trainyard.record import DeviceSeen
from trainyard.run.local.harness import execute
from trainyard.run.session import Session
from trainyard.store.store import Store

scope = {"fault": lambda step, folder: None}
exec(Path("fault.py").read_text(), scope)
store, text, done = Store(Path("store")), Path("job.toml").read_text(), []
devices = (DeviceSeen(index=0, name="cores", vendor="cpu", facts={"cores": "2"}),)

def progress(at):
    if not done:
        done.extend([True] if scope["fault"](at.step, next(store.runs.glob("*/logs")).parent) else [])

code, error = 0, ""
try:
    execute(parse(text, "job.toml"), text, Session(store, lambda _: [], progress=progress, devices=devices))
except TrainyardError as caught:
    code, error = caught.exit_code, str(caught)
folder = next(store.runs.iterdir())
run = store.load(folder.name)
print(json.dumps({"code": code, "error": error, "run": msgspec.to_builtins(run),
                  "events": msgspec.to_builtins(event_log.read(folder))}))
"""

NEVER = 1 << 30
"""A step that no job comes to."""


Losses = list[tuple[int, int, float]]
"""Rank, step and loss, sorted."""


class Result:
    """The run that a driver recorded."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self.code, self.error = answer["code"], answer["error"]
        self.run, self.events = answer["run"], answer["events"]
        self.incidents = self.run.get("incidents", ())

    @property
    def losses(self) -> Losses:
        """Rank, step and loss of the last attempt at each step."""
        last = {(sample["rank"], sample["step"]): sample["loss"] for sample in
                sorted(self.run["samples"], key=lambda sample: sample.get("attempt", 0))}  # fmt: skip
        return sorted((rank, step, loss) for (rank, step), loss in last.items())


class Runs:
    """Runs jobs in processes of their own, with a fault that strikes while they train.

    `undisturbed`: losses of jobs without a fault, by their options; it is shared, so that each of these jobs runs once.
    """

    def __init__(self, folder: Path, undisturbed: dict[str, Losses]) -> None:
        self.folder = folder
        self.undisturbed = undisturbed
        self.count = 0

    def run(
        self, fault: str = "", before: Sequence[str] = (), environment: Mapping[str, str] | None = None, **job: Any
    ) -> Result:
        """`fault`: the source of a function of (step, run folder), called after each step until it returns true.
        `before`: a command that starts the driver."""
        folder = self.folder / f"job{self.count}"
        self.count += 1
        folder.mkdir()
        (folder / "text.txt").write_bytes(bytes(range(256)) * 40)
        values = {"vocab": 256, "workers": 0, "steps": STEPS, "restarts": 1, "hang_timeout_s": 60.0} | job
        (folder / "job.toml").write_text(JOB.format(**values))
        (folder / "fault.py").write_text(fault)
        (folder / "driver.py").write_text(DRIVER)
        ended = subprocess.run(
            [*before, sys.executable, "driver.py"], cwd=folder, env={**os.environ, **(environment or {})},
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        logs = "\n".join(path.read_text("utf-8", "replace")[-2000:] for path in folder.glob("store/runs/*/logs/*.err"))
        assert ended.returncode == 0, (ended.stderr[-3000:], logs)
        return Result(json.loads(ended.stdout.splitlines()[-1]))

    def expected_losses(self, **job: Any) -> Losses:
        """Losses of this job without a fault."""
        key = repr(sorted(job.items()))
        if key not in self.undisturbed:
            self.undisturbed[key] = self.run(**job).losses
        return self.undisturbed[key]


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Losses]:
    return {}


@pytest.fixture
def runs(tmp_path: Path, undisturbed: dict[str, Losses]) -> Runs:
    pytest.importorskip("torch")
    return Runs(tmp_path, undisturbed)


# Clocks

LIBFAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
faketime = pytest.mark.skipif(not LIBFAKETIME, reason="libfaketime is not installed (Debian: faketime)")
JUMPS = """
from pathlib import Path
import os, signal
def fault(step, folder):
    clock, killed = Path("clock"), Path("killed")
    clock.with_name("next").write_text("+5h" if step < 5 else "-3h" if step < 9 else "+0")
    clock.with_name("next").replace(clock)
    if step >= 6 and not killed.exists():
        killed.touch()
        os.kill(int((folder / "logs" / "rank1.pid").read_text()), signal.SIGKILL)
"""
"""Sets the clock forward and back before and after a rank is killed, and to the right time in the end."""
SLEEP = """
import select, time
time.sleep = lambda seconds: select.select([], [], [], seconds) and None
"""
"""A sitecustomize: libfaketime 0.9.10 refuses to sleep until a time of the monotonic clock if it does not fake that
clock too, which is how Python sleeps since 3.11."""
HOUR_NS = 3600 * 10**9


@faketime
def test_a_clock_that_is_set_changes_no_duration(runs: Runs) -> None:
    (runs.folder / "sitecustomize.py").write_text(SLEEP)
    folder, paths = runs.folder / "job0", (str(runs.folder), os.environ.get("PYTHONPATH", ""))
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "LD_PRELOAD": str(LIBFAKETIME[0]), "FAKETIME_TIMESTAMP_FILE": str(folder / "clock"), "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip
    result = runs.run(JUMPS, environment=environment)
    assert (result.code, result.run["state"]) == (0, "complete"), result.error
    assert [incident["kind"] for incident in result.incidents] == ["worker_death"]
    samples = [sample for sample in result.run["samples"] if sample["rank"] == 0]
    assert {sample["step"] for sample in samples} == set(range(2 + 2 * STEPS))
    assert all(0 < sample["wall_ns"] < PATIENCE_S * 10**9 for sample in samples)
    ends = [sample["ended_ns"] for sample in samples]
    times = [event.get("noticed", 0) or event["at"] for event in result.events]
    for stamps in (ends, times):
        assert all(0 <= after - before < HOUR_NS for before, after in pairwise(stamps)), stamps
    assert times[0] <= ends[0] <= ends[-1] <= times[-1]
    for incident in result.incidents:
        assert all(0 <= incident.get(cost, 0.0) < PATIENCE_S for cost in ("detect_s", "restart_s", "lost_s"))
    assert sum(result.run["goodput"].values()) == pytest.approx((times[-1] - times[0]) / 1e9)
    assert result.losses == runs.expected_losses()


# Shared memory


def private_mounts() -> bool:
    """Whether this process may mount file systems of its own."""
    unshare = shutil.which("unshare")
    return bool(unshare) and subprocess.run([unshare, "-m", "true"], capture_output=True, check=False).returncode == 0


FILL = """
import threading, time
def fill():
    with open("/dev/shm/full", "wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                time.sleep(0.001)
def fault(step, folder):
    if step >= {step}:
        threading.Thread(target=fill, daemon=True).start()
        return True
"""
"""Takes all that is left of a small shared memory, and what is given back."""
MOUNT = 'mount -t tmpfs -o size=1m none /dev/shm && head -c {bytes} /dev/zero > /dev/shm/some && exec "$@"'


@pytest.mark.skipif(not private_mounts(), reason="a private /dev/shm needs `unshare -m` (CAP_SYS_ADMIN)")
@pytest.mark.parametrize(("filled", "step"), [(1 << 20, NEVER), nightly(0, 4)])
def test_full_shared_memory_is_a_clear_failure(runs: Runs, filled: int, step: int) -> None:
    """Before a loader makes its queues, and while it passes batches through them."""
    before = ["unshare", "-m", "sh", "-c", MOUNT.format(bytes=filled), "sh"]
    result = runs.run(FILL.format(step=step), before=before, workers=1, restarts=0, steps=500)
    assert (result.code, result.run["state"]) == (4, "failed")
    assert [incident["kind"] for incident in result.incidents] == ["worker_death"]
    assert "shm is full" in result.error


# Loaders

STOP_LOADER = """
import os, signal
from pathlib import Path
def fault(step, folder):
    if step < 4:
        return False
    rank = int((folder / "logs" / "rank1.pid").read_text())
    tasks = Path(f"/proc/{rank}/task").iterdir()
    children = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    for pid in children:
        os.kill(pid, signal.SIGSTOP)
    Path("stopped.txt").write_text(" ".join(map(str, children)))
    return bool(children)
"""


@pytest.mark.parametrize("restarts", [0, nightly(1)])
def test_a_loader_that_returns_no_batch_is_named(runs: Runs, restarts: int) -> None:
    result = runs.run(STOP_LOADER, workers=1, restarts=restarts, hang_timeout_s=12.0)
    assert [(incident["kind"], incident["rank"]) for incident in result.incidents] == [("hang", 1)]
    assert result.incidents[0]["verdict"] == "data_loader"
    if restarts:
        assert (result.code, result.run["state"]) == (0, "complete")
        assert result.losses == runs.expected_losses(), "a loader's process reads the same batches"
    else:
        assert (result.code, result.run["state"]) == (4, "failed")
        assert "rank 1" in result.error
    stopped = (runs.folder / "job0" / "stopped.txt").read_text().split()
    assert stopped
    assert until(lambda: not any(alive(int(pid)) for pid in stopped), 10)


# Memory

CGROUP = Path("/sys/fs/cgroup/memory")
"""Version 1, in which a process can be moved with its memory left behind."""
CONFINE = """
import os
from pathlib import Path
def fault(step, folder):
    if step < 4:
        return False
    (Path({group!r}) / "cgroup.procs").write_text((folder / "logs" / "rank1.pid").read_text())
    return True
"""
LIMIT = """
import resource, time
from pathlib import Path
def fault(step, folder):
    if step < 4:
        return False
    rank = int((folder / "logs" / "rank1.pid").read_text())
    used = 1 << 60
    for _ in range(200):  # for a second, which is several steps: the least is without the logits
        used = min(used, int(Path(f"/proc/{rank}/statm").read_text().split()[0]) * resource.getpagesize())
        time.sleep(0.005)
    resource.prlimit(rank, resource.RLIMIT_AS, (used + (8 << 20), used + (8 << 20)))
    return True
"""
LARGE = {"vocab": 140_000, "steps": 20}
"""Logits of 36 MB, which a step allocates and gives back: glibc keeps freed blocks of less than 32 MiB."""


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory cgroup of 8 MiB."""
    path = CGROUP / f"trainyard-test-{os.getpid()}"
    try:
        path.mkdir()
        (path / "memory.limit_in_bytes").write_text(str(8 << 20))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made: {error}")
    yield path
    path.rmdir()


@pytest.mark.parametrize("restarts", [0, nightly(1)])
def test_a_rank_that_the_kernel_kills_for_memory_is_named(runs: Runs, group: Path, restarts: int) -> None:
    result = runs.run(CONFINE.format(group=str(group)), restarts=restarts, **LARGE)
    assert [(incident["kind"], incident["rank"]) for incident in result.incidents] == [("worker_death", 1)]
    assert "out of memory" in result.incidents[0]["summary"]
    if restarts:
        assert (result.code, result.run["state"]) == (0, "complete")
        assert result.losses == runs.expected_losses(**LARGE)
    else:
        assert (result.code, result.run["state"]) == (4, "failed")
        assert "out of memory" in result.error


def test_a_rank_that_cannot_allocate_is_named(runs: Runs) -> None:
    result = runs.run(LIMIT, **LARGE)
    assert [(incident["kind"], incident["rank"]) for incident in result.incidents] == [("worker_death", 1)]
    assert "memory" in result.incidents[0]["summary"]
    assert (result.code, result.run["state"]) == (0, "complete")
    assert result.losses == runs.expected_losses(**LARGE)
