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
from trainyard.launch.supervisor.failure_report import Failure
from trainyard.ledger import Ledger
from trainyard.plugins import Vendor
from trainyard.record import DeviceSeen, Origin, Run, Sample
from trainyard.redact import redact
from trainyard.run.local.progress_events import ProgressMessages
from trainyard.run.local.rank_facts import read_facts
from trainyard.run.record import goodput, provenance, run_claims
from trainyard.run.resume import resume_hint, shrink_job
from trainyard.run.session import WORKER, Progress, Session
from trainyard.store.disk_space import write_whole
from trainyard.store.run_folder import decode_sample, rank_files, read_samples
from trainyard.store.store import Store, new_id, now
from trainyard.train.data import text
from trainyard.train.rules import device_rules, memory_rules
from trainyard.units import show_time

_POLL_S = 0.1
_PRELOAD = (
    "trainyard.run.local.checkpointing",
    "trainyard.run.local.capture",
    "trainyard.run.probe.matmul_rate",
    "trainyard.train.model.language_task",
)
"""What the ranks' module imports that is slow to import: it is loaded once for all."""


def execute(
    job: Job,
    job_text: str,
    session: Session,
    *,
    begun: Callable[[Path], object] = lambda _: None,
    tag: str = "",
    origin: Origin | None = None,
) -> Run:
    """Runs `job` on this machine and returns the stored run.

    `begun`: is given the run's folder, before anything is started in it. `tag`: names the run as soon as it has
    started. `origin`: where the checkpoint comes from that `begun` puts there.
    Raises `BadJob` for what does not fit or cannot be trained, `UnknownName` for its workload, `PortInUse` and
    `MissingLibrary`, all before anything starts, and `RankDied` after storing what was measured until then.
    What goes wrong while it runs is got over as `job.recovery` says, and stands in the run's `incidents`; a job that is
    asked to leave (SIGTERM) saves its state, leaves and raises `Preempted`.
    Interrupted, it ends every process and leaves the run marked incomplete.
    """
    vendors = plugins.load_all("vendors")
    seen = _devices(session, vendors)
    job_text = jobs.complete(job_text, job)
    jobs.check_secrets(job_text, "the job")
    _check(job, seen)
    for notice in device_rules.notices(job.recipe, seen[0].vendor):
        session.say(notice)
    ranks_get = environment(job.layout.ranks, vendors)
    launcher = _launcher(job, session, ranks_get)
    about = provenance.gather(seen, vendors, ranks_get)
    run = Run(id=new_id(), job=job, started=now(), origin=origin, provenance=about)
    files = launcher.render(job, [session.worker, str(session.store.runs / run.id), seen[0].vendor])
    folder = session.store.begin(run, job_text)
    with alone(folder):
        try:
            begun(folder)
            messages = ProgressMessages(folder, job)
            started = _start(launcher, folder, files)
        except TrainyardError:
            session.store.delete(run.id)  # its ranks never started
            raise
        session.say(f"run {run.id}: {job.layout.ranks} x {seen[0].name}, in {folder}")
        return _see_through(_Started(launcher, started, run, folder, messages), session, vendors, tag)


def resume(name: str, session: Session, *, tag: str = "") -> Run:
    """Goes on with a stored run that did not end, in its own folder and under its own id, from its last good
    checkpoint; from its beginning where it has none. Its job is the one it has. `tag`: another name for it.

    Raises `WrongRunState` for a run that is complete or damaged, `BadInput` for one of a script, `RunInUse` for one
    that another process is running, and as `execute`.
    """
    store = session.store
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
    seen = _devices(session, vendors)
    _check(run.job, seen)
    ranks_get = environment(run.job.layout.ranks, vendors)
    launcher = _launcher(run.job, session, ranks_get)
    with alone(folder):
        here = provenance.gather(seen, vendors, ranks_get)
        changed = [
            part for part in ("code", "packages", "devices") if getattr(here, part) != getattr(run.provenance, part)
        ]
        if changed:
            parts = ", ".join(changed)
            session.say(f"run {run.id} resumes with other {parts} than it began with; its record keeps the first.")
        files = launcher.render(run.job, [session.worker, str(folder), seen[0].vendor])
        run = replace(store.finish(replace(run, state="incomplete", failure="")), samples=(), digest="")
        log = folder / "samples" / "rank0.jsonl"
        reported_bytes = log.stat().st_size if log.exists() else 0
        messages = ProgressMessages(folder, run.job)
        started = _start(launcher, folder, files)
        ranks = f"{run.job.layout.ranks} x {seen[0].name}"
        where = resume_hint.where(resume_hint.saved(folder), run.job)
        session.say(f"run {run.id}, {where}: {ranks}, in {folder}")
        return _see_through(_Started(launcher, started, run, folder, messages, reported_bytes), session, vendors, tag)


class _Started(NamedTuple):
    """A run whose ranks have been started. `job_id`: its id at the launcher. `reported_bytes`: size of rank 0's samples
    that an earlier attempt has reported."""

    launcher: Local
    job_id: str
    run: Run
    folder: Path
    messages: ProgressMessages
    reported_bytes: int = 0


def _devices(session: Session, vendors: Mapping[str, Vendor]) -> tuple[DeviceSeen, ...]:
    return tuple(session.devices) if session.devices is not None else find_devices(vendors)


def _check(job: Job, seen: Sequence[DeviceSeen]) -> None:
    """Raises `BadJob` where these devices do not hold the job or nobody can train it."""
    job.check_fits(capacity(seen), f"this machine ({seen[0].name})")
    workload = plugins.load("workloads", job.workload)
    workload.expect(job)  # refuses what it cannot train
    if job.model is not None:  # any other workload has data of its own
        text.check(job.recipe)
    device_rules.check(job.recipe, seen[0].vendor)
    memory_rules.check(job, workload.weights(job), seen[0].memory_bytes, seen[0].name, shared=seen[0].vendor == "cpu")


def _launcher(job: Job, session: Session, ranks_get: Mapping[str, str]) -> Local:
    """Raises `BadJob` where the job cannot go on with as few nodes as it says."""
    sizes = shrink_job.sizes(job, plugins.load("workloads", job.workload).expect)
    return Local(session.port, ranks_get, sizes, _PRELOAD if session.worker == WORKER else ())


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


def _see_through(started: _Started, session: Session, vendors: Mapping[str, Vendor], tag: str) -> Run:
    """Until the ranks have ended; the stored run."""
    launcher, run, folder = started.launcher, started.run, started.folder
    try:
        try:
            with _passing_on(launcher, started.job_id) as signals:
                if tag:
                    session.store.tag(run.id, tag)
                _follow(started, session.progress, lambda: _say_messages(started.messages, signals, session.say))
        finally:
            launcher.cancel(started.job_id)  # nothing is left to end, unless we were interrupted
        kept = measured(run, folder, vendors)
        if launcher.status(started.job_id) != "ended":
            raise _ended_early(launcher.failure(started.job_id), kept, folder, session.store)
        return booked(kept, folder, session)
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


def _say_messages(messages: ProgressMessages, signals: list[int], say: Callable[[str], None]) -> None:
    if signals:
        signals.clear()
        say("asked to leave (SIGTERM): ranks that train end their step, save and leave")
    for line in messages.lines():
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


def _follow(started: _Started, progress: Callable[[Progress], None], each_turn: Callable[[], object]) -> None:
    """Until the launcher says that the job has ended or failed."""
    job = started.run.job
    appended = _appended(started.folder / "samples" / "rank0.jsonl", started.reported_bytes)
    running = True
    while running:
        running = started.launcher.status(started.job_id) == "running"
        for sample in next(appended):
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
    ranks = goodput.last_ranks(events, run.job)
    facts = [fact for fact in read_facts(folder) if not ranks or fact.rank < ranks]
    samples = tuple(read_samples(folder))
    traces = [f"traces/{path.name}" for path in rank_files(folder / "traces", ".json", ".json.gz", ranks=ranks)]
    about = provenance.with_facts(run.provenance, facts)
    known = replace(
        run,
        samples=samples,
        trace=tuple(traces),
        provenance=about,
        incidents=goodput.incidents(events, samples),
        goodput=goodput.goodput(events, samples),
    )
    return replace(known, claims=run_claims.of_run(known, facts, vendors))


def booked(run: Run, folder: Path, session: Session) -> Run:
    """Stores the run with its ledgers; as failed, and the error goes on, when its traces cannot be booked."""
    ledgers: Sequence[Ledger] = ()
    if run.trace:
        session.store.finish(run)  # incomplete, should booking be interrupted
        start = time.perf_counter_ns()
        try:
            ledgers = session.book([folder / name for name in run.trace])
        except Exception as error:  # even a fault of ours must not lose what was measured
            session.store.finish(failed(run, f"its traces could not be booked: {error}"))
            raise
        session.say(f"booked {len(run.trace)} traces in {show_time(time.perf_counter_ns() - start)}")
    return session.store.finish(replace(run, state="complete", ledgers=tuple(ledgers)))


def _last_step(run: Run, rank: int) -> str:
    own = [sample for sample in run.samples if sample.rank == rank]
    if not own:
        return ""
    loss = "" if own[-1].loss is None else f", at loss {own[-1].loss:.4f}"
    return f"Its last step was {own[-1].step + 1} of {run.job.measure.in_all}{loss}."


def failed(run: Run, why: str) -> Run:
    return replace(run, state="failed", failure=redact(why))
