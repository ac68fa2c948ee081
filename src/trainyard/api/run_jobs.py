"""`run`, `run_script`, `join`, `resume` and `chaos`: run something on this machine, record it, and analyse its step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from trainyard import job_file
from trainyard.error_report import report_of
from trainyard.errors import TrainyardError
from trainyard.events import ClockOffset
from trainyard.job import Job, Measure
from trainyard.ledger import Ledger
from trainyard.record import Run
from trainyard.report.view.run_result import RunResult, result_of_run
from trainyard.run.chaos import experiment, fault_plan, node_faults
from trainyard.run.chaos.fault_plan import FaultPlan
from trainyard.run.local import harness
from trainyard.run.nodes import head
from trainyard.run.parts.join import join as join_parts
from trainyard.run.parts.rank_record import RankRecord
from trainyard.run.resume import fork_run
from trainyard.run.script import run_command
from trainyard.run.session import Session
from trainyard.trace.measure import measure_files
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.reduce import reduce_trace

JobSource = str | os.PathLike[str] | Job
"""A job file, or a job."""


def run(
    job: JobSource,
    *,
    stacks: bool = False,
    shapes: bool = False,
    memory: bool = False,
    session: Session | None = None,
) -> RunResult:
    """Trains a job on this machine: times its steps, profiles a few more, and stores and analyses the run.

    `job`: a job file or a `trainyard.Job`. `stacks`, `shapes`, `memory`: as those keys of the job's `[measure]`.
    `session`: store of the run and receiver of its progress; with `hosts`, this machine is the head of a job on several
    hosts.

        result = api.run("job.toml", session=api.Session(tag="baseline", say=print))
        print(result.id, result.summary.step_ns, result.headline)

    Raises `BadJob` for a job that does not fit or cannot be trained, before anything starts; `RankDied` and `Preempted`
    after storing the measurements so far.
    """
    read, text = read_job(job)
    measure = read.measure
    recorded = msgspec.structs.replace(
        measure,
        stacks=stacks or measure.stacks,
        shapes=shapes or measure.shapes,
        memory=memory or measure.memory,
    )
    if recorded != measure:
        read = msgspec.structs.replace(read, measure=recorded)
        text = job_file.write(read)
    booking, booked = _with_booking(session, read.trace_axis)
    execute = harness.execute if booked.hosts is None else head.execute
    return booking.result(execute(read, text, booked), booked)


def run_script(
    command: Sequence[str],
    *,
    profile: int = 3,
    stacks: bool = False,
    shapes: bool = False,
    memory: bool = False,
    session: Session | None = None,
) -> RunResult:
    """Runs a training script of your own, unchanged, and records its steps like those of a job.

    `command`: the words of the command line. `profile`: number of steps to profile. `stacks`: sample the Python stacks
    in these steps, so that findings name files and lines; `shapes`: record the shapes of ops on a CPU too;
    `memory`: record allocations. The command's output goes to stderr.

    For a job on several nodes, call it on each node: the result on the node of rank 0 is the joined run of all nodes,
    and that on another node its part. `Session(collect=...)` is a folder or URL that all nodes can reach; without it,
    parts are sent to rank 0's node.

        result = api.run_script(["torchrun", "--nproc-per-node", "2", "train.py"])

    Raises `BadInput` if there is no such command or no step was seen, `CommandFailed` if it fails.
    """
    booking, booked = _with_booking(session, "")
    measure = Measure(warmup=3, steps=10, repeats=1, profiled=profile, stacks=stacks, shapes=shapes, memory=memory)
    return booking.result(run_command.execute(command, measure, booked), booked)


def join(parts: Sequence[str | os.PathLike[str]], *, session: Session | None = None) -> RunResult:
    """Joins the parts that the nodes of one job recorded into one run, and analyses it.

    `parts`: run folders, archives of them, or stored runs by id prefix or tag. A run that was joined before counts as a
    part, so that parts which arrive later can be added.

        result = api.join(["/mnt/node-a/runs/1f2e3d4c", "node-b.part"])
        print(result.missing_ranks, result.headline)

    Raises `BadInput` for parts of different jobs or with a rank in common, `BadFile` for a damaged part.
    """
    booking, booked = _with_booking(session, "")
    return booking.result(join_parts([_find_part(part, booked) for part in parts], booked), booked)


def _find_part(part: str | os.PathLike[str], session: Session) -> Path:
    """The path of a part: an existing path, else the folder of the stored run of that name."""
    path = Path(part)
    return path if os.path.lexists(path) else session.store.find(os.fspath(part))


def resume(name: str, job: JobSource | None = None, *, session: Session | None = None) -> RunResult:
    """Resumes an unfinished run from its last good checkpoint; with `job`, starts a new run of it from there.

    `name`: a run by id prefix, tag or folder. Without a checkpoint an unfinished run starts from its beginning. The new
    `job` may differ in layout, precision and other settings that do not change the training.

        api.resume("3f9c", session=api.Session(say=print))
        api.resume("3f9c", "job-with-tp2.toml")

    Raises `WrongRunState` for a run that is complete or damaged, `RunInUse`, and the errors of `run`.
    """
    session = session or Session()
    if job is None:
        booking, booked = _with_booking(session, session.store.load(name).job.trace_axis)
        return booking.result(harness.resume(name, booked), booked)
    read, text = read_job(job)
    booking, booked = _with_booking(session, read.trace_axis)
    return booking.result(fork_run.execute(name, read, text, booked), booked)


def chaos(
    plan: str | os.PathLike[str] | FaultPlan,
    job: JobSource,
    *,
    against: str | None = None,
    session: Session | None = None,
) -> RunResult:
    """Runs a job twice, the second time with the injected faults of `plan`, and scores its recovery as `result.chaos`.

    `plan`: a fault plan or its TOML file. `against`: a stored run without faults to compare losses with, in place of
    the first run. The result is that of the run with faults; `result.error` is the reason if the job did not recover.

        result = api.chaos("plan.toml", "job.toml")
        for fault in result.chaos.faults:
            print(fault.kind, fault.detect_s, fault.outcome, fault.losses)

    Raises `BadInput` for a plan that does not fit the job, and the errors of `run` if nothing could be started.
    """
    faults = plan if isinstance(plan, FaultPlan) else fault_plan.load(os.fspath(plan))
    read, text = read_job(job)
    booking, booked = _with_booking(session, read.trace_axis)
    ended = experiment.execute(read, text, faults, booked, against=against)
    return booking.result(ended.run, booked, ended.failure)


def chaos_nodes(
    job: JobSource, *, nodes: int = 2, kills: int = 10, seed: int = 0, session: Session | None = None
) -> RunResult:
    """Runs a job on `nodes` nodes of this machine, kills ranks, agents, the supervisor and nodes at random, and scores
    its recovery as `result.chaos`.

    `kills`, `seed`: number of kills, and the seed from which their kinds, targets and steps are drawn. The losses are
    compared with a run of the job without faults.

    Raises `BadInput` for a job with too few steps or restarts, `CommandFailed` if the job does not end.
    """
    read, text = read_job(job)
    booking, booked = _with_booking(session, read.trace_axis)
    plan = node_faults.random_plan(read, nodes, kills, seed)
    ended = node_faults.execute(read, text, nodes, plan, booked)
    return booking.result(ended.run, booked, ended.failure)


class _Booking:
    """Books a run's profiler files (assigns every interval to an account of the ledger), and keeps the measured trace
    for the analysis of the run."""

    def __init__(self, axis: str) -> None:
        """`axis`: the only mesh axis of the layout, empty if there are several or if it is unknown. `measured`: None
        before the call."""
        self.axis = axis
        self.measured: MeasuredTrace | None = None

    def __call__(self, paths: list[Path]) -> Sequence[Ledger]:
        """Books the files and returns the ledgers of each part of each rank, then their mean. A session calls it after
        the profiled steps."""
        self.measured = measure_files(paths, axis=self.axis)
        return self.measured.ledgers

    def result(self, run: Run, session: Session, failure: TrainyardError | None = None) -> RunResult:
        """The result of `run`, whose traces were the last that were booked. `failure`: the reason if a chaos experiment
        did not recover."""
        error = report_of(failure) if failure else None
        return result_of_run(run, session.store.runs / run.id, self.measured if run.ledgers else None, error=error)


def _with_booking(session: Session | None, axis: str) -> tuple[_Booking, Session]:
    """(booking, session that books with it): the booking keeps the measured trace. `axis`: the only mesh axis of the
    layout, if there is one."""
    booking = _Booking(axis)
    return booking, replace(session or Session(), book=booking, reduce=reduce_rank_trace)


def reduce_rank_trace(trace: Path, profile: Path, record: RankRecord) -> None:
    """Reduces a profiler file with what is known of its rank, as `Session.reduce`."""
    bound = record.bound
    reduce_trace(
        trace,
        profile,
        host_name=record.node,
        rank=record.rank,
        world_size=record.world_size,
        clock_offset=bound
        and ClockOffset(reference=bound.reference, low_ns=bound.low_ns, high_ns=bound.high_ns, at_ns=bound.at_ns),
    )


def read_job(job: JobSource) -> tuple[Job, str]:
    """(job, text of its file); the text is written for a job that is passed as an object."""
    if isinstance(job, Job):
        return job, job_file.write(job)
    name = os.fspath(job)
    text = job_file.read(name)
    return job_file.parse(text, name, Path(name).parent), text
