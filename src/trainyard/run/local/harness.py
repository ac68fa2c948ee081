"""Execute a job: check that it fits, start and watch the ranks, book their traces, store the run.

No torch here: the ranks are separate processes (`worker.py`), which report through the run's folder. Vendors are
plugins that report devices, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from trainyard import job_file as jobs
from trainyard import plugins
from trainyard.errors import BadInput, Preempted, RankDied, TrainingStopped, TrainyardError, WrongRunState
from trainyard.job import SCRIPT, Job
from trainyard.launch.launch_spec import RUN_FOLDER
from trainyard.launch.supervisor import event_log
from trainyard.launch_request import HeadAddress, JobStatus, LaunchRequest, RankOptions, Variable
from trainyard.machine_load import present_load_warning
from trainyard.plugins import Launcher, Vendor
from trainyard.record import DeviceSeen, Origin, Run
from trainyard.run.folder_lock import lock_folder
from trainyard.run.local.follow_ranks import StartedRun, follow_ranks, forward_sigterm, say_messages
from trainyard.run.local.host_devices import capacity, driver_warnings, find_devices
from trainyard.run.local.predicted_memory import memory_warning
from trainyard.run.local.progress_events import ProgressMessages
from trainyard.run.local.rank_environment import PRELOAD, job_environment, variable_values
from trainyard.run.local.usable_devices import check_usable
from trainyard.run.nodes.collect import Collected, collect
from trainyard.run.nodes.hosts import MARK, Hosts, mark_shared
from trainyard.run.nodes.missing_samples import describe_missing_samples
from trainyard.run.nodes.reduce_rank_traces import reduce_rank_traces
from trainyard.run.record import goodput, provenance
from trainyard.run.record.finish_run import add_load, book_traces, mark_failed, read_measurements
from trainyard.run.record.load_meter import LoadMeter, present_load
from trainyard.run.record.supervisor_death import record_supervisor_death
from trainyard.run.resume import resume_hint, shrink_job
from trainyard.run.session import WORKER, Session
from trainyard.store.disk_space import write_whole
from trainyard.store.run_folder import rank_files
from trainyard.store.store import new_id, now
from trainyard.train.data import text
from trainyard.train.rules import device_rules, memory_rules
from trainyard.units import counted, show_size


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

    Raises `BadJob` if the job does not fit or cannot be trained, `UnknownName` for an unknown workload, `PortInUse`,
    `DeviceUnusable` and `MissingLibrary`, all before anything starts, and `RankDied` after storing the measurements so
    far.
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
    for warning in filter(None, (*driver_warnings(devices, vendors), memory_warning(job, devices[0]))):
        session.say(warning)
    rank_variables = job_environment(job, session.hosts, vendors, devices[0].vendor)
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
            StartedRun(launcher=launcher, job_id=job_id, run=run, folder=folder, messages=messages), session, vendors
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
    rank_variables = job_environment(run.job, session.hosts, vendors, devices[0].vendor)
    launcher: Launcher = plugins.load("launchers", "local")
    with lock_folder(folder):
        record_supervisor_death(folder)  # of an attempt that was killed with its command
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
            StartedRun(
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


def _devices(session: Session, vendors: Mapping[str, Vendor]) -> tuple[DeviceSeen, ...]:
    return tuple(session.devices) if session.devices is not None else find_devices(vendors)


def _check(job: Job, devices: Sequence[DeviceSeen], hosts: Hosts | None) -> None:
    """Raise `BadJob` if the job does not fit these devices, or its workload, data, memory or device rules refuse it;
    `DeviceUnusable` if torch or the ranks of this machine cannot use the devices.

    `devices`: those of this machine, at least one, all of one vendor. `hosts`: of the job, which are assumed to be like
    this machine unless they run different numbers of ranks; None for a job on this machine.
    """
    machines = hosts.nodes if hosts is not None else 1
    ranks_here = job.node_ranks(0) if hosts is not None else job.layout.ranks
    check_usable(devices, ranks_here, job.recipe.dtype, "$.recipe")
    several = f" on each of {machines} nodes" if machines > 1 else ""
    if hosts is not None and job.recovery.ranks_per_node:
        job.check_node_fits(0, capacity(devices), f"this machine ({devices[0].name})")
    else:
        job.check_fits(capacity(devices) * machines, f"this machine ({devices[0].name}){several}")
    workload = plugins.load("workloads", job.workload)
    workload.expect(job)  # raises if it cannot train the job
    if job.model is not None:  # other workloads bring their own data
        text.check(job.recipe)
    device_rules.check(job.recipe, devices[0].vendor)
    is_host_memory = devices[0].vendor == "cpu"
    memory_bytes = devices[0].memory_bytes * (machines if is_host_memory else 1)
    limit = " (memory limited by a cgroup)" if "memory_limit" in devices[0].facts else ""
    memory_rules.check(
        job, workload.weights(job), memory_bytes, devices[0].name + limit + several, shared=is_host_memory
    )


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


def _start(launcher: Launcher, folder: Path, files: Mapping[str, str]) -> str:
    """Write the launcher's files (name -> contents) into the run's folder and start the job; return the job's id."""
    for name, contents in files.items():
        write_whole(folder / name, contents.encode())
    return launcher.submit(folder)


def _run_to_end(started: StartedRun, session: Session, vendors: Mapping[str, Vendor]) -> Run:
    """Follow the ranks to their end, book their traces and store the run; return it.

    Raises `RankDied` or `Preempted`, after storing the measurements so far, if the job ended early. An interrupt
    cancels the job and is raised again with a note on how to resume. `vendors`: by name.
    """
    launcher, run, folder = started.launcher, started.run, started.folder
    load_meter = LoadMeter()
    try:
        try:
            with forward_sigterm(launcher, started.job_id) as signals:
                if session.tag:
                    session.store.tag(run.id, session.tag)
                follow_ranks(started, session.progress, lambda: say_messages(started.messages, signals, session.say))
        finally:
            launcher.cancel(started.job_id)  # has an effect only after an interrupt
        if session.hosts is not None:
            ranks = goodput.last_ranks(event_log.read(folder), run.job) or run.job.layout.ranks
            collected = collect(folder, session.hosts, ranks)
            _say_collected(collected, session.say)
            if rank_files(folder / "profiles", ".profile"):  # of other nodes: all ranks are booked from profiles
                reduce_rank_traces(folder, session.hosts.job_id, ranks, session.reduce, session.say)
            run = replace(run, job_id=session.hosts.job_id, nodes=collected.shares)
        status = launcher.status(started.job_id)
        if status.state == "failed":
            record_supervisor_death(folder)
        measured_run = add_load(read_measurements(run, folder, vendors), load_meter)
        if session.hosts is not None:
            missing = describe_missing_samples(measured_run, event_log.read(folder))
            measured_run = replace(measured_run, part_notes=missing)
        if status.state != "ended":
            raise _ended_early(status, measured_run, folder, session)
        return book_traces(measured_run, folder, session)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(f"run {run.id}: {resume_hint.resume_sentence(folder, run.job, _host_job_id(session))}")
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


def _host_job_id(session: Session) -> str:
    """The id of a job on several hosts; empty for a job on this host."""
    return session.hosts.job_id if session.hosts is not None else ""


def _ended_early(status: JobStatus, run: Run, folder: Path, session: Session) -> TrainyardError:
    """Store `run`, the measurements so far, as failed; return the error to raise for the job's last `status`.

    Its advice explains how to resume the run.
    """
    session.store.finish(mark_failed(run, status.reason))
    resume_sentence, stored_sentence = (
        resume_hint.resume_sentence(folder, run.job, _host_job_id(session)),
        f"The measurements so far are stored as run {run.id}.",
    )
    if status.state == "preempted":
        return Preempted(status.reason, f"{resume_sentence} {stored_sentence}")
    if run.incidents and run.incidents[-1].action == "stop":
        return TrainingStopped(status.reason, f"{status.next_step} {resume_sentence} {stored_sentence}")
    if not run.job.recovery.max_restarts:
        resume_sentence += " With [recovery] max_restarts = N in the job it restarts automatically."
    hints = (status.next_step, _last_step(run, status.rank), resume_sentence, stored_sentence)
    return RankDied(status.reason, " ".join(filter(None, hints)))


def _last_step(run: Run, rank: int) -> str:
    """A sentence on the last step of a rank and its loss; empty if it ended none."""
    rank_samples = [sample for sample in run.samples if sample.rank == rank]
    if not rank_samples:
        return ""
    loss = "" if rank_samples[-1].loss is None else f", at loss {rank_samples[-1].loss:.4f}"
    return f"Its last step was {rank_samples[-1].step + 1} of {run.job.measure.in_all}{loss}."
