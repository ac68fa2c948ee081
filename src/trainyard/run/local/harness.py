"""Executes a job: checks that it fits, starts the ranks, watches them, books what they captured, stores the run.

No torch here: the ranks are processes of their own, and what they say comes through the run's folder.
"""

from __future__ import annotations

import fcntl
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from trainyard import job_file as jobs
from trainyard import plugins
from trainyard.errors import BadInput, Preempted, RankDied, RunInUse, TrainyardError, WrongRunState
from trainyard.job import SCRIPT, Job
from trainyard.launch.local import Local
from trainyard.launch.supervisor import event_log
from trainyard.launch.supervisor.failure import Failure
from trainyard.ledger import Ledger
from trainyard.plugins import Vendor
from trainyard.record import DeviceSeen, Origin, Run, Sample
from trainyard.redact import redact
from trainyard.run.local.progress_events import News
from trainyard.run.local.rank_facts import read_facts
from trainyard.run.record import provenance, run_claims
from trainyard.run.resume import recovery, resume_hint
from trainyard.store.disk_space import write_whole
from trainyard.store.run_folder import decode_sample, rank_files, read_samples
from trainyard.store.store import Store, new_id, now
from trainyard.train.data import text
from trainyard.train.rules import device_rules, memory_rules
from trainyard.units import show_time

WORKER = "trainyard.run.local.worker"
_POLL_S = 0.1
_PRELOAD = (
    "trainyard.run.local.checkpointing",
    "trainyard.run.local.capture",
    "trainyard.run.probe.matmul_rate",
    "trainyard.train.model.language_task",
)
"""What the ranks' module imports that is slow to import: it is loaded once for all."""

Book = Callable[[list[Path]], Sequence[Ledger]]
"""Profiler files -> ledgers: per rank and step, the mean over full steps last."""


class Progress(NamedTuple):
    """Rank 0 has ended step `step` of `of`, counted from one."""

    step: int
    of: int
    loss: float | None
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
    begun: Callable[[Path], object] = lambda _: None,
    tag: str = "",
    origin: Origin | None = None,
) -> Run:
    """Runs `job` on this machine and returns the stored run.

    `devices`: take these instead of asking the vendors. `worker`: the module that each rank runs. `begun`: is given the
    run's folder, before anything is started in it. `tag`: names the run as soon as it has started. `origin`: where the
    checkpoint comes from that `begun` puts there.
    Raises `BadJob` for what does not fit or cannot be trained, `UnknownName` for its workload, `PortInUse` and
    `MissingLibrary`, all before anything starts, and `RankDied` after storing what was measured until then.
    What goes wrong while it runs is got over as `job.recovery` says, and stands in the run's `incidents`; a job that is
    asked to leave (SIGTERM) saves its state, leaves and raises `Preempted`.
    Interrupted, it ends every process and leaves the run marked incomplete.
    """
    vendors = plugins.load_all("vendors")
    seen = tuple(devices) if devices is not None else find_devices(vendors)
    job_text = jobs.complete(job_text, job)
    jobs.check_secrets(job_text, "the job")
    _check(job, seen)
    for notice in device_rules.notices(job.recipe, seen[0].vendor):
        say(notice)
    ranks_get = environment(job.layout.ranks, vendors)
    launcher = _launcher(job, port, ranks_get, worker)
    about = provenance.gather(seen, vendors, ranks_get)
    run = Run(id=new_id(), job=job, started=now(), origin=origin, provenance=about)
    files = launcher.render(job, [worker, str(store.runs / run.id), seen[0].vendor])
    folder = store.begin(run, job_text)
    with alone(folder):
        try:
            begun(folder)
            news = News(folder, job)
            started = _start(launcher, folder, files)
        except TrainyardError:
            store.delete(run.id)  # what never started is no run
            raise
        say(f"run {run.id}: {job.layout.ranks} x {seen[0].name}, in {folder}")
        return _see_through(launcher, started, run, folder, vendors, store, book, progress, say, news, tag)


def resume(
    name: str,
    store: Store,
    book: Book,
    progress: Callable[[Progress], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    port: int | None = None,
    devices: Sequence[DeviceSeen] | None = None,
    worker: str = WORKER,
    tag: str = "",
) -> Run:
    """Goes on with a stored run that did not end, in its own folder and under its own id, from its last good
    checkpoint; from its beginning where it has none. Its job is the one it has. `tag`: another name for it.

    Raises `WrongRunState` for a run that is complete or damaged, `BadInput` for one of a script, `RunInUse` for one
    that another process is running, and as `execute`.
    """
    run, folder = store.load(name), store.find(name)
    if run.state == "complete":
        raise WrongRunState(f"run {run.id} is complete: nothing of it is left to do.")
    if run.state == "damaged":
        raise WrongRunState(
            f"run {run.id} is damaged: {run.failure}.",
            f"`trainyard run --resume {run.id} JOB.toml` starts a new run from its last good checkpoint.",
        )
    if run.job.workload == SCRIPT:
        raise BadInput(f"run {run.id} is of a command of your own.", "Only what a job trains is gone on with.")
    if folder.parent.resolve() != store.runs.resolve():
        raise BadInput(f"{folder} is not in the store {store.root}.", "Only stored runs can be gone on with.")
    vendors = plugins.load_all("vendors")
    seen = tuple(devices) if devices is not None else find_devices(vendors)
    _check(run.job, seen)
    ranks_get = environment(run.job.layout.ranks, vendors)
    launcher = _launcher(run.job, port, ranks_get, worker)
    with alone(folder):
        here = provenance.gather(seen, vendors, ranks_get)
        changed = [
            part for part in ("code", "packages", "devices") if getattr(here, part) != getattr(run.provenance, part)
        ]
        if changed:
            say(f"run {run.id} goes on with other {', '.join(changed)} than it began with; its record keeps the first.")
        files = launcher.render(run.job, [worker, str(folder), seen[0].vendor])
        run = replace(store.finish(replace(run, state="incomplete", failure="")), samples=(), digest="")
        log = folder / "samples" / "rank0.jsonl"
        told = log.stat().st_size if log.exists() else 0
        news = News(folder, run.job)
        started = _start(launcher, folder, files)
        ranks = f"{run.job.layout.ranks} x {seen[0].name}"
        say(f"run {run.id}, {resume_hint.where(resume_hint.saved(folder), run.job)}: {ranks}, in {folder}")
        return _see_through(launcher, started, run, folder, vendors, store, book, progress, say, news, tag, told)


def _check(job: Job, seen: Sequence[DeviceSeen]) -> None:
    """Raises `BadJob` where these devices do not hold the job or nobody can train it."""
    job.check_fits(capacity(seen), f"this machine ({seen[0].name})")
    workload = plugins.load("workloads", job.workload)
    workload.expect(job)  # refuses what it cannot train
    if job.model is not None:  # any other workload has data of its own
        text.check(job.recipe)
    device_rules.check(job.recipe, seen[0].vendor)
    memory_rules.check(job, workload.weights(job), seen[0].memory_bytes, seen[0].name, shared=seen[0].vendor == "cpu")


def _launcher(job: Job, port: int | None, ranks_get: Mapping[str, str], worker: str) -> Local:
    """Raises `BadJob` where the job cannot go on with as few nodes as it says."""
    sizes = recovery.sizes(job, plugins.load("workloads", job.workload).expect)
    return Local(port, ranks_get, sizes, _PRELOAD if worker == WORKER else ())


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Inside, no other process starts ranks in this folder. Raises `RunInUse` if one has."""
    with (folder / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunInUse(f"run {folder.name} is still going.", "Wait for it, or end it first.") from error
        yield


def _start(launcher: Local, folder: Path, files: Mapping[str, str]) -> str:
    for name, contents in files.items():
        write_whole(folder / name, contents.encode())
    return launcher.submit(folder)


def _see_through(
    launcher: Local,
    started: str,
    run: Run,
    folder: Path,
    vendors: Mapping[str, Vendor],
    store: Store,
    book: Book,
    progress: Callable[[Progress], None],
    say: Callable[[str], None],
    news: News,
    tag: str,
    told: int = 0,
) -> Run:
    """Until the ranks have ended; the stored run. `told`: bytes of rank 0's samples that are old news."""
    try:
        try:
            with _passing_on(launcher, started) as asked:
                if tag:
                    store.tag(run.id, tag)
                _follow(launcher, started, folder, run.job, progress, told, lambda: _say_news(news, asked, say))
        finally:
            launcher.cancel(started)  # nothing is left to end, unless we were interrupted
        if launcher.status(started) != "ended":
            raise _ended_early(launcher.failure(started), measured(run, folder, vendors), folder, store)
        return booked(measured(run, folder, vendors), folder, store, book, say)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(f"run {run.id}: {resume_hint.way(folder, run.job)}")
        raise


def _ended_early(failure: Failure, kept: Run, folder: Path, store: Store) -> TrainyardError:
    """Stores what was measured; the error to raise, which says how to go on."""
    store.finish(failed(kept, failure.says))
    way, rest = resume_hint.way(folder, kept.job), f"What was measured is kept as run {kept.id}."
    if failure.kind == "preempted":
        return Preempted(failure.says, f"{way} {rest}")
    if not kept.job.recovery.restarts:
        way += " With [recovery] restarts = N it does so by itself."
    said = (failure.next_step, _last_step(kept, failure.rank), way, rest)
    return RankDied(failure.says, " ".join(filter(None, said)))


@contextmanager
def _passing_on(launcher: Local, started: str) -> Iterator[list[int]]:
    """Inside, a SIGTERM asks the job to save and leave, and is added to the list. Only the main thread can take
    signals."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def pass_on(sign: int, _: object) -> None:
        asked.append(sign)
        launcher.notice(started)

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)


def _say_news(news: News, asked: list[int], say: Callable[[str], None]) -> None:
    if asked:
        asked.clear()
        say("asked to leave (SIGTERM): ranks that train end their step, save and leave")
    for line in news.lines():
        say(line)


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


def _follow(
    launcher: Local,
    started: str,
    folder: Path,
    job: Job,
    progress: Callable[[Progress], None],
    at: int,
    each_turn: Callable[[], object],
) -> None:
    """Until the launcher says that the job has ended or failed."""
    told = _appended(folder / "samples" / "rank0.jsonl", at)
    running = True
    while running:
        running = launcher.status(started) == "running"
        for sample in next(told):
            rate = job.recipe.tokens_per_step * 1e9 / max(1, sample.wall_ns)
            progress(Progress(sample.step + 1, job.measure.in_all, sample.loss, rate))
        each_turn()
        if running:
            time.sleep(_POLL_S)


def _appended(path: Path, at: int = 0) -> Iterator[list[Sample]]:
    """At each `next`, the samples that were added to the file since, first since byte `at`; half a line waits for its
    rest."""
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
    """`run` with what the ranks left in its folder: samples, facts, and the claims that follow from them; what happened
    in its life, and where that went."""
    events = event_log.read(folder)
    ranks = recovery.last_ranks(events, run.job)
    facts = [fact for fact in read_facts(folder) if not ranks or fact.rank < ranks]
    samples = tuple(read_samples(folder))
    traces = [f"traces/{path.name}" for path in rank_files(folder / "traces", ".json", ".json.gz", ranks=ranks)]
    about = provenance.with_facts(run.provenance, facts)
    known = replace(
        run,
        samples=samples,
        trace=tuple(traces),
        provenance=about,
        incidents=recovery.incidents(events, samples),
        goodput=recovery.goodput(events, samples),
    )
    return replace(known, claims=run_claims.of_run(known, facts, vendors))


def booked(run: Run, folder: Path, store: Store, book: Book, say: Callable[[str], None]) -> Run:
    """Stores the run with its ledgers; as failed, and the error goes on, when its traces cannot be booked."""
    ledgers: Sequence[Ledger] = ()
    if run.trace:
        store.finish(run)  # incomplete, should booking be interrupted
        start = time.perf_counter_ns()
        try:
            ledgers = book([folder / name for name in run.trace])
        except Exception as error:  # even a fault of ours must not lose what was measured
            store.finish(failed(run, f"its traces could not be booked: {error}"))
            raise
        say(f"booked {len(run.trace)} traces in {show_time(time.perf_counter_ns() - start)}")
    return store.finish(replace(run, state="complete", ledgers=tuple(ledgers)))


def _last_step(run: Run, rank: int) -> str:
    own = [sample for sample in run.samples if sample.rank == rank]
    if not own:
        return ""
    loss = "" if own[-1].loss is None else f", at loss {own[-1].loss:.4f}"
    return f"Its last step was {own[-1].step + 1} of {run.job.measure.in_all}{loss}."


def failed(run: Run, why: str) -> Run:
    return replace(run, state="failed", failure=redact(why))
