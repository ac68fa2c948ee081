"""Executes a job: checks that it fits, starts the ranks, watches them, books what they captured, stores the run.

No torch here: the ranks are processes of their own, and what they say comes through the run's folder.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from trainyard import plugins
from trainyard.errors import RankDied, TrainyardError
from trainyard.job import Job
from trainyard.launch.local import Local
from trainyard.ledger import Ledger
from trainyard.plugins import Vendor
from trainyard.record import DeviceSeen, Run, Sample
from trainyard.run import claims, provenance
from trainyard.run.facts import read_facts
from trainyard.store.disk import write_whole
from trainyard.store.folder import decode_sample, rank_files, read_samples
from trainyard.store.store import Store, new_id, now
from trainyard.train import text
from trainyard.units import show_time

WORKER = "trainyard.run.worker"
_POLL_S = 0.1

Book = Callable[[list[Path]], Sequence[Ledger]]
"""Profiler files -> ledgers: per rank and step, the mean over full steps last."""


class Progress(NamedTuple):
    """Rank 0 has ended step `step` of `of`, counted from one."""

    step: int
    of: int
    loss: float
    tokens_per_s: float


def execute(
    job: Job,
    job_text: str,
    store: Store,
    book: Book,
    progress: Callable[[Progress], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    port: int | None = None,
    devices: Sequence[DeviceSeen] | None = None,
    worker: str = WORKER,
) -> Run:
    """Runs `job` on this machine and returns the stored run.

    `devices`: take these instead of asking the vendors. `worker`: the module that each rank runs.
    Raises `BadJob` for what does not fit or cannot be trained, `UnknownName` for its workload, `PortInUse` and
    `MissingLibrary`, all before anything starts, and `RankDied` after storing what was measured until then.
    Interrupted, it ends every process and leaves the run marked incomplete.
    """
    vendors = plugins.load_all("vendors")
    seen = tuple(devices) if devices is not None else find_devices(vendors)
    job.check_fits(capacity(seen), f"this machine ({seen[0].name})")
    plugins.load("workloads", job.workload).expect(job)  # refuses what it cannot train
    text.check(job.recipe)
    ranks_get = environment(job.layout.ranks, vendors)
    launcher = Local(port, ranks_get)
    run = Run(id=new_id(), job=job, started=now(), provenance=provenance.gather(seen, vendors, ranks_get))
    files = launcher.render(job, [worker, str(store.runs / run.id), seen[0].vendor])
    folder = store.begin(run, job_text)
    try:
        for name, contents in files.items():
            write_whole(folder / name, contents.encode())
        started = launcher.submit(folder)
    except TrainyardError:
        store.delete(run.id)  # what never started is no run
        raise
    say(f"run {run.id}: {job.layout.ranks} x {seen[0].name}, in {folder}")
    try:
        _follow(launcher, started, folder, job, progress)
    finally:
        launcher.cancel(started)  # nothing is left to end, unless we were interrupted
    if launcher.status(started) != "ended":
        failure, kept = launcher.failure(started), measured(run, folder, vendors)
        store.finish(_failed(kept, failure.says))
        until = _last_step(kept, failure.rank)
        raise RankDied(failure.says, f"{failure.next_step} {until}What was measured is kept as run {run.id}.")
    return _booked(measured(run, folder, vendors), folder, store, book, say)


def find_devices(vendors: Mapping[str, Vendor]) -> tuple[DeviceSeen, ...]:
    """The accelerators of the first vendor that has any (a pretended one first), else the host's cores."""
    for name in sorted(vendors.keys() - {"cpu"}, key=lambda name: (name != "pretend", name)):
        if found := tuple(vendors[name].devices()):
            return found
    return tuple(vendors["cpu"].devices())


def capacity(devices: Sequence[DeviceSeen]) -> int:
    """How many ranks these devices hold: one each; one a core of a CPU."""
    if devices[0].vendor == "cpu":
        return int(devices[0].facts.get("cores", "1"))
    return len(devices)


def environment(ranks: int, vendors: Mapping[str, Vendor]) -> dict[str, str]:
    """What the ranks get where the user's environment does not say otherwise.

    Each rank its share of the cores; ranks of one host meet over loopback, whatever the host's name resolves to.
    """
    given = {"OMP_NUM_THREADS": str(max(1, capacity(vendors["cpu"].devices()) // ranks))}
    if sys.platform.startswith("linux"):
        given["GLOO_SOCKET_IFNAME"] = "lo"
    return given


def _follow(launcher: Local, started: str, folder: Path, job: Job, progress: Callable[[Progress], None]) -> None:
    """Until the launcher says that the job has ended or failed."""
    told = _appended(folder / "samples" / "rank0.jsonl")
    step = 0
    running = True
    while running:
        running = launcher.status(started) == "running"
        for sample in next(told):
            step += 1
            rate = job.recipe.tokens_per_step * 1e9 / max(1, sample.wall_ns)
            progress(Progress(step, job.measure.in_all, sample.loss, rate))
        if running:
            time.sleep(_POLL_S)


def _appended(path: Path) -> Iterator[list[Sample]]:
    """At each `next`, the samples that were added to the file since; half a line waits for its rest."""
    at = 0
    while True:
        data = b""
        if path.exists():
            with path.open("rb") as file:
                file.seek(at)
                data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        at += len(whole)
        yield [decode_sample(line) for line in whole.splitlines()]


def measured(run: Run, folder: Path, vendors: Mapping[str, Vendor]) -> Run:
    """`run` with what the ranks left in its folder: samples, facts, and the claims that follow from them."""
    facts = read_facts(folder)
    samples = tuple(read_samples(folder))
    traces = (f"traces/{path.name}" for path in rank_files(folder / "traces", ".json", ".json.gz"))
    about = provenance.with_facts(run.provenance, facts)
    known = replace(run, samples=samples, trace=tuple(traces), provenance=about)
    return replace(known, claims=claims.of_run(known, facts, vendors))


def _booked(run: Run, folder: Path, store: Store, book: Book, say: Callable[[str], None]) -> Run:
    """Stores the run with its ledgers; as failed, and the error goes on, when its traces cannot be booked."""
    ledgers: Sequence[Ledger] = ()
    if run.trace:
        store.finish(run)  # incomplete, should booking be interrupted
        start = time.perf_counter_ns()
        try:
            ledgers = book([folder / name for name in run.trace])
        except Exception as error:  # even a fault of ours must not lose what was measured
            store.finish(_failed(run, f"its traces could not be booked: {error}"))
            raise
        say(f"booked {len(run.trace)} traces in {show_time(time.perf_counter_ns() - start)}")
    return store.finish(replace(run, state="complete", ledgers=tuple(ledgers)))


def _last_step(run: Run, rank: int) -> str:
    own = [sample for sample in run.samples if sample.rank == rank]
    return f"It ended step {own[-1].step} at loss {own[-1].loss:.4f}. " if own else ""


def _failed(run: Run, why: str) -> Run:
    return replace(run, state="failed", failure=why)
