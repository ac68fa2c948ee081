"""Execute a job: check that it fits, start and watch the ranks, book their traces, store the run.

No torch here: the ranks are separate processes (`worker.py`), which report through the run's folder. To book a trace is
to compute the ledgers of its steps. Vendors are plugins that report devices, by name.
"""

from __future__ import annotations

import fcntl
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from trainyard import job_file as jobs
from trainyard import plugins
from trainyard.errors import BadInput, MissingLibrary, Preempted, RankDied, RunInUse, TrainyardError, WrongRunState
from trainyard.job import SCRIPT, Job
from trainyard.launch.launch_spec import RUN_FOLDER
from trainyard.launch.supervisor import event_log
from trainyard.launch_request import HeadAddress, JobStatus, LaunchRequest, RankOptions, Variable
from trainyard.ledger import Ledger
from trainyard.machine_load import present_load_warning
from trainyard.plugins import Launcher, Vendor
from trainyard.record import DeviceSeen, Origin, Run, Sample
from trainyard.redact import redact
from trainyard.run.local.progress_events import ProgressMessages
from trainyard.run.local.rank_facts import read_facts
from trainyard.run.nodes.collect import Collected, collect
from trainyard.run.nodes.hosts import MARK, Hosts, mark_shared
from trainyard.run.nodes.network import interface_of, own_address
from trainyard.run.record import goodput, provenance, run_claims
from trainyard.run.record.load_meter import LoadMeter, present_load
from trainyard.run.resume import resume_hint, shrink_job
from trainyard.run.session import WORKER, Progress, Session
from trainyard.store.disk_space import write_whole
from trainyard.store.run_folder import decode_sample, rank_files, read_samples
from trainyard.store.store import Store, new_id, now
from trainyard.train.data import text
from trainyard.train.rules import device_rules, memory_rules
from trainyard.units import counted, show_size, show_time

_POLL_S = 0.1
"""Seconds between two looks at the ranks' samples."""
_LOOPBACK = "127.0.0.1"
PRELOAD = (
    "trainyard.run.local.checkpointing",
    "trainyard.run.local.capture",
    "trainyard.run.probe.matmul_rate",
    "trainyard.train.model.language_task",
)
"""Slow imports of the ranks' module, loaded once for all ranks."""


def execute(
    job: Job,
    job_text: str,
    session: Session,
    *,
    begun: Callable[[Path], object] = lambda _: None,
    origin: Origin | None = None,
) -> Run:
    """Run `job` on this machine and return the stored run.

    `job_text`: the job file of `job`, which is stored with the run; `session`: where runs are stored and reported.
    `begun`: called with the run's folder before anything is started in it. `origin`: the source of the checkpoint
    that `begun` puts into the folder.

    Raises `BadJob` if the job does not fit or cannot be trained, `UnknownName` for an unknown workload, `PortInUse` and
    `MissingLibrary`, all before anything starts, and `RankDied` after storing the measurements so far.
    Faults during the run are handled according to `job.recovery` and recorded in the run's `incidents`. A job that is
    asked to leave (SIGTERM) saves its state, leaves and raises `Preempted`. An interrupt ends every process and leaves
    the run marked incomplete.
    """
    vendors = plugins.load_all("vendors")
    devices = _devices(session, vendors)
    job_text = jobs.complete(job_text, job)
    jobs.check_secrets(job_text, "the job")
    _check(job, devices, session.hosts)
    for notice in device_rules.notices(job.recipe, devices[0].vendor):
        session.say(notice)
    rank_variables = _rank_environment(job, session.hosts, vendors)
    launcher: Launcher = plugins.load("launchers", "local")
    run_provenance = provenance.gather(devices, vendors, variable_values(rank_variables))
    run_id = session.hosts.run_id if session.hosts is not None else new_id()
    run = Run(id=run_id, job=job, started=now(), origin=origin, provenance=run_provenance)
    files = launcher.render(_request(job, session, session.store.runs / run.id, devices[0].vendor, rank_variables))
    folder = session.store.begin(run, job_text)
    load = present_load_warning(present_load())
    with lock_folder(folder):
        try:
            begun(folder)
            if session.hosts is not None:
                mark_shared(folder, session.hosts.shared)
            messages = ProgressMessages(folder, job)
            job_id = _start(launcher, folder, files)
        except TrainyardError:
            session.store.delete(run.id)  # its ranks never started
            raise
        session.say(f"run {run.id}: {job.layout.ranks} x {devices[0].name}, in {folder}")
        if load:
            session.say(load)
        return _run_to_end(
            _Started(launcher=launcher, job_id=job_id, run=run, folder=folder, messages=messages), session, vendors
        )


def resume(name: str, session: Session) -> Run:
    """Resume an unfinished run in its own folder, with its own id and job, from its last good checkpoint or, if it has
    none, from the beginning. The session's tag is an additional name for it.

    Raises `WrongRunState` if the run is complete or damaged, `BadInput` for a run of a script, `RunInUse` if another
    process is running it, and the errors of `execute`.
    """
    store = session.store
    run, folder = store.load(name), store.find(name)
    if run.state == "complete":
        raise WrongRunState(f"run {run.id} is complete: no steps are left.")
    if run.state == "damaged":
        raise WrongRunState(
            f"run {run.id} is damaged: {run.failure}.",
            f"`trainyard run resume {run.id} JOB.toml` starts a new run from its last good checkpoint.",
        )
    if run.job.workload == SCRIPT:
        raise BadInput(f"run {run.id} ran a command of your own.", "Only runs of a job file can be resumed.")
    if folder.parent.resolve() != store.runs.resolve():
        raise BadInput(f"{folder} is not in the store {store.root}.", "Only stored runs can be resumed.")
    vendors = plugins.load_all("vendors")
    devices = _devices(session, vendors)
    _check(run.job, devices, session.hosts)
    rank_variables = _rank_environment(run.job, session.hosts, vendors)
    launcher: Launcher = plugins.load("launchers", "local")
    with lock_folder(folder):
        # Differences from the provenance of the run's first start are printed; its record keeps that of the start.
        current = provenance.gather(devices, vendors, variable_values(rank_variables))
        changed = [
            part for part in ("code", "packages", "devices") if getattr(current, part) != getattr(run.provenance, part)
        ]
        if changed:
            parts = ", ".join(changed)
            session.say(f"run {run.id} resumes with different {parts}; its record keeps the original ones.")
        files = launcher.render(_request(run.job, session, folder, devices[0].vendor, rank_variables))
        # Store the run as unfinished; its samples are read from the folder again at the end.
        run = replace(store.finish(replace(run, state="incomplete", failure="")), samples=(), digest="")
        if session.hosts is not None:
            mark_shared(folder, session.hosts.shared)
        log = folder / "samples" / "rank0.jsonl"
        reported_bytes = log.stat().st_size if log.exists() else 0
        messages = ProgressMessages(folder, run.job)
        job_id = _start(launcher, folder, files)
        ranks = f"{run.job.layout.ranks} x {devices[0].name}"
        point = resume_hint.describe_resume_point(resume_hint.saved_steps(folder), run.job)
        session.say(f"run {run.id}, {point}: {ranks}, in {folder}")
        return _run_to_end(
            _Started(
                launcher=launcher,
                job_id=job_id,
                run=run,
                folder=folder,
                messages=messages,
                reported_bytes=reported_bytes,
            ),
            session,
            vendors,
        )


class _Started(NamedTuple):
    """A run whose ranks have been started. `job_id`: its id at the launcher. `reported_bytes`: size of the part of rank
    0's samples that was reported in an earlier attempt."""

    launcher: Launcher
    job_id: str
    run: Run
    folder: Path
    messages: ProgressMessages
    reported_bytes: int = 0


def _devices(session: Session, vendors: Mapping[str, Vendor]) -> tuple[DeviceSeen, ...]:
    return tuple(session.devices) if session.devices is not None else find_devices(vendors)


def _check(job: Job, devices: Sequence[DeviceSeen], hosts: Hosts | None) -> None:
    """Raise `BadJob` if the job does not fit these devices, or its workload, data, memory or device rules refuse it.

    `devices`: those of this machine, at least one, all of one vendor. `hosts`: of the job, which are assumed to be like
    this machine; None for a job on this machine.
    """
    machines = hosts.nodes if hosts is not None else 1
    several = f" on each of {machines} nodes" if machines > 1 else ""
    job.check_fits(capacity(devices) * machines, f"this machine ({devices[0].name}){several}")
    workload = plugins.load("workloads", job.workload)
    workload.expect(job)  # raises if it cannot train the job
    if job.model is not None:  # other workloads bring their own data
        text.check(job.recipe)
    device_rules.check(job.recipe, devices[0].vendor)
    is_host_memory = devices[0].vendor == "cpu"
    memory_bytes = devices[0].memory_bytes * (machines if is_host_memory else 1)
    memory_rules.check(job, workload.weights(job), memory_bytes, devices[0].name + several, shared=is_host_memory)


def _request(
    job: Job, session: Session, folder: Path, vendor: str, rank_variables: Mapping[str, Variable]
) -> LaunchRequest:
    """The request to start the ranks of `job` on this host. `folder`: the run's; `vendor`: of the devices. Raises
    `BadJob` if the job cannot continue on its `min_nodes`."""
    sizes = shrink_job.node_counts(job, plugins.load("workloads", job.workload).expect)
    hosts = session.hosts
    head = hosts and HeadAddress(host=hosts.host, port=hosts.port, job_id=hosts.job_id, gather_s=hosts.gather_s)
    preload = PRELOAD if session.worker == WORKER else ()
    return LaunchRequest(
        job=job,
        command=(session.worker, RUN_FOLDER, vendor),
        folder=str(folder),
        port=None if hosts else session.port,
        environment=rank_variables,
        ranks=RankOptions(sizes=tuple(sizes), preload=preload, head=head, files=("job.toml", MARK) if head else ()),
    )


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes that would start ranks in it. Raises `RunInUse` if one has."""
    with (folder / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunInUse(f"run {folder.name} is still running.", "Wait for it to end, or end it first.") from error
        yield


def _start(launcher: Launcher, folder: Path, files: Mapping[str, str]) -> str:
    """Write the launcher's files (name -> contents) into the run's folder and start the job; return the job's id."""
    for name, contents in files.items():
        write_whole(folder / name, contents.encode())
    return launcher.submit(folder)


def _run_to_end(started: _Started, session: Session, vendors: Mapping[str, Vendor]) -> Run:
    """Follow the ranks to their end, book their traces and store the run; return it.

    Raises `RankDied` or `Preempted`, after storing the measurements so far, if the job ended early. An interrupt
    cancels the job and is raised again with a note on how to resume. `vendors`: by name.
    """
    launcher, run, folder = started.launcher, started.run, started.folder
    load_meter = LoadMeter()
    try:
        try:
            with _forward_sigterm(launcher, started.job_id) as signals:
                if session.tag:
                    session.store.tag(run.id, session.tag)
                _follow(started, session.progress, lambda: _say_messages(started.messages, signals, session.say))
        finally:
            launcher.cancel(started.job_id)  # has an effect only after an interrupt
        if session.hosts is not None:
            ranks = goodput.last_ranks(event_log.read(folder), run.job) or run.job.layout.ranks
            collected = collect(folder, session.hosts, ranks)
            _say_collected(collected, session.say)
            run = replace(run, job_id=session.hosts.job_id, nodes=collected.shares)
        measured_run = add_load(read_measurements(run, folder, vendors), load_meter)
        status = launcher.status(started.job_id)
        if status.state != "ended":
            raise _ended_early(status, measured_run, folder, session.store)
        return book_traces(measured_run, folder, session)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(f"run {run.id}: {resume_hint.resume_sentence(folder, run.job)}")
        raise


def _say_collected(collected: Collected, say: Callable[[str], None]) -> None:
    """Print how many parts of other nodes were merged into the run, and which are missing."""
    if collected.nodes:
        say(
            f"collected {counted(collected.nodes, 'part')} of {show_size(collected.bytes)} from other nodes in "
            f"{collected.seconds:.2f} s"
        )
    for sentence in collected.missing:
        say(sentence)


def _ended_early(status: JobStatus, run: Run, folder: Path, store: Store) -> TrainyardError:
    """Store `run`, the measurements so far, as failed; return the error to raise for the job's last `status`.

    Its advice contains the command that resumes the run.
    """
    store.finish(mark_failed(run, status.reason))
    resume_sentence, stored_sentence = (
        resume_hint.resume_sentence(folder, run.job),
        f"The measurements so far are stored as run {run.id}.",
    )
    if status.state == "preempted":
        return Preempted(status.reason, f"{resume_sentence} {stored_sentence}")
    if not run.job.recovery.max_restarts:
        resume_sentence += " With [recovery] max_restarts = N in the job it restarts automatically."
    hints = (status.next_step, _last_step(run, status.rank), resume_sentence, stored_sentence)
    return RankDied(status.reason, " ".join(filter(None, hints)))


@contextmanager
def _forward_sigterm(launcher: Launcher, job_id: str) -> Iterator[list[int]]:
    """Turn a SIGTERM into a request to the job to save and leave, while the context lasts.

    Each signal number is appended to the yielded list. Without effect outside the main thread, which alone receives
    signals. At the end the previous handler is restored.
    """
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    def forward(signal_number: int, _: object) -> None:
        signals.append(signal_number)
        launcher.cancel(job_id, save=True)

    previous_handler = signal.signal(signal.SIGTERM, forward)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def _say_messages(messages: ProgressMessages, signals: list[int], say: Callable[[str], None]) -> None:
    """Print that a SIGTERM was received, if `signals` has any, which is then emptied, and messages on new events."""
    if signals:
        signals.clear()
        say("SIGTERM received: each rank finishes its step, saves and leaves")
    for line in messages.lines():
        say(line)


def find_devices(vendors: Mapping[str, Vendor]) -> tuple[DeviceSeen, ...]:
    """Return the accelerators of the first vendor that has any, else the host's processor.

    `vendors`: by name; the plugin `pretend`, which simulates devices for tests, comes first.
    """
    for name in sorted(vendors.keys() - {"cpu"}, key=lambda name: (name != "pretend", name)):
        if devices := tuple(vendors[name].devices()):
            return devices
    return tuple(vendors["cpu"].devices())


def capacity(devices: Sequence[DeviceSeen]) -> int:
    """The number of ranks that these devices can run: one per accelerator, or one per CPU core."""
    if devices[0].vendor == "cpu":
        return int(devices[0].facts.get("cores", "1"))
    return len(devices)


def _rank_environment(job: Job, hosts: Hosts | None, vendors: Mapping[str, Vendor]) -> dict[str, Variable]:
    """Default environment variables of the ranks on this machine, by name. `hosts`: of the job, None for a job on this
    machine; `vendors`: by name."""
    if hosts is None:
        return environment(job.layout.ranks, vendors)
    address = own_address(hosts.host, hosts.port)
    return environment(max(1, job.layout.ranks // hosts.nodes), vendors, address)


def environment(ranks: int, vendors: Mapping[str, Vendor], address: str = _LOOPBACK) -> dict[str, Variable]:
    """Default environment variables of `ranks` ranks on one host, by name, which the user's environment overrides.
    `vendors`: by name. `address`: that of this host at which ranks of other hosts reach it.

    Each rank gets its share of the cores; ranks use the interface of `address`, whatever the host name resolves to.
    """
    threads = max(1, capacity(vendors["cpu"].devices()) // ranks)
    variables = {"OMP_NUM_THREADS": Variable(value=str(threads), reason="Each rank gets its share of the cores.")}
    if sys.platform.startswith("linux") and (interface := interface_of(address)):
        reason = f"The ranks reach each other through the interface of {address}."
        variables["GLOO_SOCKET_IFNAME"] = Variable(value=interface, reason=reason)
    return variables


def variable_values(variables: Mapping[str, Variable]) -> dict[str, str]:
    """Name -> value of each variable, without the reasons."""
    return {name: variable.value for name, variable in variables.items()}


def check_torch() -> None:
    """Raise `MissingLibrary` if torch is not installed."""
    if find_spec("torch") is None:
        raise MissingLibrary("torch is not installed.", "pip install 'trainyard[train]'")


def _follow(started: _Started, progress: Callable[[Progress], None], after_poll: Callable[[], object]) -> None:
    """Report progress after each step of rank 0 until the job has ended or failed.

    `progress`: called for each new sample of rank 0; `after_poll`: called after each look at the samples, every
    `_POLL_S` seconds. The status is read before the samples, so that the last ones are not missed.
    """
    job = started.run.job
    unit = plugins.load("workloads", job.workload).unit
    appended = _read_appended(started.folder / "samples" / "rank0.jsonl", started.reported_bytes)
    running = True
    while running:
        running = not started.launcher.status(started.job_id).is_over
        for sample in next(appended):
            tokens_per_s = job.recipe.tokens_per_step * 1e9 / max(1, sample.wall_ns)
            step, steps = sample.step + 1, job.measure.in_all
            progress(Progress(step=step, steps=steps, loss=sample.loss, tokens_per_s=tokens_per_s, unit=unit))
        after_poll()
        if running:
            time.sleep(_POLL_S)


def _read_appended(path: Path, offset: int = 0) -> Iterator[list[Sample]]:
    """Yield, at each `next`, the samples that were appended to the file since the previous `next`; it never ends.

    The first time, those from byte `offset` on. A last line that is still incomplete is left for the next time; a file
    that does not exist yet is empty.
    """
    while True:
        data = b""
        if path.exists():
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
        whole_lines = data[: data.rfind(b"\n") + 1]
        offset += len(whole_lines)
        yield [decode_sample(line) for line in whole_lines.splitlines()]


def read_measurements(run: Run, folder: Path, vendors: Mapping[str, Vendor]) -> Run:
    """Return `run` with the data that the ranks left in its folder: samples, facts and the claims derived from them,
    names of traces, incidents and goodput.

    `vendors`: by name. Facts and traces of ranks that the last attempt did not have are ignored; samples are kept.
    """
    events = event_log.read(folder)
    ranks = goodput.last_ranks(events, run.job)
    facts = [fact for fact in read_facts(folder) if not ranks or fact.rank < ranks]
    samples = tuple(read_samples(folder))
    traces = [f"profiles/{path.name}" for path in rank_files(folder / "profiles", ".profile", ranks=ranks)] or [
        f"traces/{path.name}" for path in rank_files(folder / "traces", ".json", ".json.gz", ranks=ranks)
    ]
    extended_provenance = provenance.with_facts(run.provenance, facts)
    measured_run = replace(
        run,
        samples=samples,
        trace=tuple(traces),
        provenance=extended_provenance,
        incidents=goodput.incidents(events, samples),
        goodput=goodput.goodput(events, samples),
    )
    return replace(measured_run, claims=run_claims.derive_claims(measured_run, facts, vendors))


def add_load(run: Run, load_meter: LoadMeter) -> Run:
    """Return `run` with the load of the machine since the meter was started."""
    return replace(run, provenance=replace(run.provenance, load=load_meter.finish()))


def book_traces(run: Run, folder: Path, session: Session) -> Run:
    """Book the run's traces and store it as complete with its ledgers; return the stored run.

    `session.book` computes the ledgers. If it fails, the run is stored as failed, and the error raised again.
    """
    ledgers: Sequence[Ledger] = ()
    if run.trace:
        session.store.finish(run)  # incomplete, in case booking is interrupted
        start = time.perf_counter_ns()
        try:
            ledgers = session.book([folder / name for name in run.trace])
        except Exception as error:  # not even a bug of ours may lose the measurements
            session.store.finish(mark_failed(run, f"its traces could not be booked: {error}"))
            raise
        session.say(f"booked {counted(len(run.trace), 'trace')} in {show_time(time.perf_counter_ns() - start)}")
    return session.store.finish(replace(run, state="complete", ledgers=tuple(ledgers)))


def _last_step(run: Run, rank: int) -> str:
    """A sentence on the last step of a rank and its loss; empty if it ended none."""
    rank_samples = [sample for sample in run.samples if sample.rank == rank]
    if not rank_samples:
        return ""
    loss = "" if rank_samples[-1].loss is None else f", at loss {rank_samples[-1].loss:.4f}"
    return f"Its last step was {rank_samples[-1].step + 1} of {run.job.measure.in_all}{loss}."


def mark_failed(run: Run, reason: str) -> Run:
    """Return `run` in the state `failed`, with the reason without secrets."""
    return replace(run, state="failed", failure=redact(reason))
