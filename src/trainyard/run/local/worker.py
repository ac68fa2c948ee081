"""`python -m trainyard.run.local.worker FOLDER [VENDOR]`: one rank of a run, started by torch's elastic launcher.

VENDOR is the vendor of the machine's devices; it is an error if torch cannot use them. Reads FOLDER/job.toml and writes
`samples/rank<N>.jsonl`, one line at the end of each step, `traces/rank<N>.json.gz` and, at the end,
`facts/rank<N>.json`. If FOLDER has a good checkpoint, it resumes from there and appends to the samples.
Rank 0 prints each step's loss on stdout. Errors end in a traceback and exit code 1. Asked to leave, a rank saves its
state and exits with `launch_spec.LEFT`.

An attempt is the work of the ranks from one launch to their end; after a fault they are launched again. A run consists
of warm-up steps, repeats of timed steps without the profiler, and a window of profiled steps.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import IO, Literal, NamedTuple

import msgspec
import torch
import torch.cuda.nccl

from trainyard import job_file as jobs
from trainyard import plugins
from trainyard.errors import EnvironmentFailed
from trainyard.fault_points import fault_point
from trainyard.job import PROFILER_WARMUP, Job
from trainyard.launch import epoch
from trainyard.launch.agents import rank_progress
from trainyard.launch.launch_spec import LEFT
from trainyard.launch.supervisor.event_log import EventLogWriter
from trainyard.record import Sample
from trainyard.run.chaos import inject_faults
from trainyard.run.local.capture import capture
from trainyard.run.local.checkpointing import RunCheckpoints, attempt, drop_partial_line
from trainyard.run.local.end_times import EndTimes
from trainyard.run.local.expert_samples import ExpertSamples
from trainyard.run.local.own_clock import own_clock
from trainyard.run.local.peak_memory import forget_peak, peak_memory
from trainyard.run.local.planned_steps import PlannedStep, leave_out, plan_steps, remaining_steps
from trainyard.run.local.rank_facts import RankFacts, write_facts
from trainyard.run.local.step_clock import StepClock
from trainyard.run.local.step_faults import StepFaults, earlier_rollbacks
from trainyard.run.local.step_timer import PendingSteps, StepTime, StepTimer
from trainyard.run.probe.kept_rate import matmul_rate_of_run
from trainyard.run.resume.shrink_job import shrink
from trainyard.train.checkpoint.checkpoint_store import CheckpointStore
from trainyard.train.model import initial_weights
from trainyard.train.process_group import (
    TIMEOUT,
    Ranks,
    barrier,
    detect_vendor,
    find_ranks,
    on_any,
    patient_barrier,
    process_group_context,
    synchronize,
)
from trainyard.train.step.outcome import ExpertCounts, Guarded, StepResult, Training
from trainyard.train.step.precision import compute_dtype

_STEPS_IN_FLIGHT = 1
"""Steps that the device may still execute when the host begins to launch the next one. The supervisor detects a hang by
the host's steps, so that the host must not run far ahead."""


class TakenStep(NamedTuple):
    """A step whose work is launched, and its result. `is_skipped`: its update was not applied; `experts`: its tokens
    per expert, None if the step does not record them."""

    planned: PlannedStep
    result: StepResult
    is_skipped: bool
    experts: ExpertCounts | None = None


class Rank:
    """Takes the steps of one rank and writes a sample to `log` at the end of each.

    `clock`: waits for the device, and returns monotonic time in ns. `timer`: of a device, by whose events the steps are
    timed without waiting for it, except those in the profiled window; None to time all steps by `clock`.
    `checkpoints`: saves the state after a step. `attempt`: number of earlier attempts. `heartbeat`: reports the rank's
    progress to the supervisor.
    """

    def __init__(
        self,
        job: Job,
        ranks: Ranks,
        training: Training,
        clock: StepClock,
        log: IO[bytes],
        say: Callable[[str], object],
        checkpoints: RunCheckpoints | None = None,
        attempt: int = 0,
        fault_injector: Callable[[int], object] | None = None,
        step_faults: StepFaults | None = None,
        timer: StepTimer | None = None,
    ):
        """`training`: takes a step, given its number; `log`: file of the samples, one JSON line each; `say`: prints a
        line on rank 0; `checkpoints`: None to save none; `fault_injector`: called with the number of the step that is
        about to begin, None for none; `step_faults`: handles faulty steps, None for a training without a guard."""
        self.job = job
        self.unit = plugins.load("workloads", job.workload).unit  # of `tokens_per_step`
        self.ranks = ranks
        self.training = training
        self.clock = clock
        self.timer = timer
        self.pending: PendingSteps[TakenStep] = PendingSteps(self._end_pending_step)
        self.end_times: EndTimes | None = None
        """The times at which steps end, from the first step on; None without `timer`."""
        self.log = log
        self.say = say
        self.checkpoints = checkpoints
        self.attempt = attempt
        self.fault_injector = fault_injector
        self.step_faults = step_faults
        self.expert_samples = ExpertSamples(training, job.measure.in_all)
        self.heartbeat = rank_progress.own_heartbeat()
        self.heartbeat.clock = own_clock(ranks)
        self.telemetry: dict[str, str] = {}
        """`<device>.<fact>` -> value with its unit, such as `0.clocks.sm` -> `1980 MHz`: what rank 0's vendor reports
        right after the warm-up steps, before the barrier in front of the measured ones, or at the end if the process
        takes warm-up steps only. Empty on other ranks."""

    def run(self, folder: Path, begin: int = 0) -> None:
        """Take all steps of the run from number `begin` on, the profiled ones under the profiler. `folder`: the run's
        folder, for the trace."""
        measure = self.job.measure
        left_out = self.step_faults.earlier.left_out if self.step_faults is not None else ()
        if self.timer is not None:
            self.end_times = EndTimes(self.timer.mark(), self.timer.read_ns)
        window: list[PlannedStep] = []
        has_telemetry = False
        for planned in remaining_steps(leave_out(plan_steps(measure, begin), left_out), measure.warmup):
            if not has_telemetry and not planned.warmup:
                self.telemetry, has_telemetry = self._read_telemetry(), True
            if planned.profiled:
                window.append(planned)
            else:
                self._take_step(planned)
        if not has_telemetry:  # all steps of this process are warm-up
            self.telemetry = self._read_telemetry()
        self.pending.limit(0)
        if not window:
            return
        ranks, steps = self.ranks, len(window) - PROFILER_WARMUP
        with capture(
            folder,
            ranks.rank,
            steps,
            ranks.device,
            barrier=lambda: barrier(ranks),
            stacks=self.job.measure.stacks,
            shapes=self.job.measure.shapes,
            memory=self.job.measure.memory,
        ) as profiler:
            for planned in window:
                self._take_step(planned)
                profiler.step()
            self.heartbeat.phase("finishing")
        patient_barrier(self.ranks)  # compressing a trace may take one rank minutes longer than another

    def _read_telemetry(self) -> dict[str, str]:
        """The current telemetry of rank 0's vendor, `<device>.<fact>` -> value with its unit; empty on other ranks, and
        in a job without warm-up."""
        if self.ranks.rank or not self.job.measure.warmup:
            return {}
        return dict(plugins.load("vendors", self.ranks.vendor).telemetry())

    def _leave(self, step: int) -> None:
        """Save the state and end the process before `step`, as all ranks do: raises SystemExit with the code LEFT."""
        self.pending.limit(0)
        self.heartbeat.phase("saving")
        if self.checkpoints is not None:
            self.checkpoints.leave(step - 1)
        barrier(self.ranks)  # no rank closes its sockets while a peer still reads from them
        raise SystemExit(LEFT)

    def _take_step(self, planned: PlannedStep) -> None:
        """Take one step, and save a checkpoint if one is due. Its sample is written once its time is known, before the
        checkpoint.

        If the supervisor asks the ranks to leave, saves the state and ends the process instead.
        """
        if self.heartbeat.must_leave_before(planned.step):
            self._leave(planned.step)
        if self.fault_injector is not None:
            self.fault_injector(planned.step)
        if planned.starts_repeat:
            barrier(self.ranks)
        self.heartbeat.begin(planned.step, fresh=planned.starts_repeat)
        if self.timer is None or planned.profiled:
            began_ns = self.clock.now()
            result = self.training(planned.step)
            wall_ns = self.clock.now() - began_ns
            self.heartbeat.end()
            clock = "synchronized" if self.ranks.device.type == "cuda" else "host"
            self._end_step(self._taken(planned, result), wall_ns, clock, epoch.now_ns())
        else:
            begin = self.timer.mark()
            result = self.training(planned.step)
            self.pending.add(begin, self.timer.mark(), self._taken(planned, result))
            # Inside the step for the heartbeat: between steps, this wait would count as the rank's own time.
            self.pending.limit(_STEPS_IN_FLIGHT)
            self.heartbeat.end()
        if self.step_faults is not None:
            if self._has_fault:
                self.pending.limit(0)  # the process may end, and the step is to be in its record
            self.step_faults.handle(planned.step)
        if self.checkpoints is not None:
            is_due = self.checkpoints.due(planned.step)
            if is_due:
                self.pending.limit(0)  # a resumed run has the samples of all steps before its checkpoint
                self.heartbeat.phase("saving")
            self.checkpoints.after(planned.step)
            if is_due:
                self.heartbeat.phase("stepping")

    def _taken(self, planned: PlannedStep, result: StepResult) -> TakenStep:
        """The step that was just launched. The copy of its tokens per expert is launched here, after its timed work."""
        has_fault = self._has_fault
        experts = None if has_fault or planned.profiled else self.expert_samples.copy(planned.step)
        return TakenStep(planned, result, has_fault, experts)

    @property
    def _has_fault(self) -> bool:
        """Whether the update of the last step was not applied because of a fault."""
        return self.step_faults is not None and self.step_faults.training.fault is not None

    def _end_pending_step(self, taken: TakenStep, time: StepTime) -> None:
        """Write and print the sample of a step that the device has ended some time ago."""
        assert self.end_times is not None  # noqa: S101 - steps are pending only with a timer
        age_ns = self.end_times.age_ns(time.end, time.has_just_ended)
        self._end_step(taken, time.wall_ns, time.clock, epoch.now_ns() - age_ns)

    def _end_step(
        self, taken: TakenStep, wall_ns: int, clock: Literal["host", "synchronized", "events"], ended_ns: int
    ) -> None:
        """Write and print the sample of a step, whose time is `wall_ns` by `clock`. `ended_ns`: since the epoch."""
        planned, loss, is_skipped = taken.planned, taken.result.loss, taken.is_skipped
        sample = Sample(
            step=planned.step,
            rank=self.ranks.rank,
            repeat=planned.repeat,
            wall_ns=wall_ns,
            tokens=self.job.rank_tokens(self.ranks.rank),
            loss=loss,
            memory_bytes=peak_memory(self.ranks.device),
            profiled=planned.profiled,
            warmup=planned.warmup,
            skipped=is_skipped,
            attempt=self.attempt,
            ended_ns=ended_ns,
            clock=clock,
            experts=dict(taken.experts()) if taken.experts is not None else {},
        )
        self.log.write(msgspec.json.encode(sample) + b"\n")
        self.log.flush()
        fault_point("run.sample")
        note = " (profiled)" * planned.profiled + " (warm-up)" * planned.warmup + " (not applied)" * is_skipped
        self.say(
            f"step {planned.step + 1} loss {loss:.4f} grad norm {taken.result.grad_norm:.3f} "
            f"{wall_ns / 1e6:.1f} ms {self.job.recipe.tokens_per_step * 1e9 / wall_ns:,.0f} {self.unit}/s{note}\n"
        )


def torch_build() -> dict[str, str]:
    """Version and build configuration of torch, by field; those that this build does not have are left out."""
    fields = {
        "version": torch.__version__,
        "git": torch.version.git_version,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "config": torch.__config__.show().strip(),
        "parallel": torch.__config__.parallel_info().strip(),
    }
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        fields["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {name: str(value) for name, value in fields.items() if value}


def device_name(ranks: Ranks) -> str:
    """The device's name in torch, or the host's processor."""
    if ranks.device.type == "cuda":
        return torch.cuda.get_device_name(ranks.device)
    return plugins.load("vendors", "cpu").devices()[0].name


def main(folder: Path, vendor: str = "cpu") -> None:
    """Run this process's rank of the job in `folder`. `vendor`: that of the machine's devices. Raises
    `EnvironmentFailed` if the launcher started another number of ranks than the layout has."""
    job = jobs.load(folder / "job.toml")
    job = shrink(job, int(os.environ.get("GROUP_WORLD_SIZE", job.recovery.nodes)))
    rank_progress.own_heartbeat().phase("starting")
    ranks = find_ranks(detect_vendor(vendor))
    if ranks.world != job.layout.ranks:
        raise EnvironmentFailed(
            f"{ranks.world} ranks were started, but the layout ({job.layout}) has {job.layout.ranks}.",
            f"Start {job.layout.ranks} processes.",
        )
    # The supervisor should detect a hung rank before its peers time out.
    timeout = max(TIMEOUT, timedelta(seconds=2 * job.recovery.hang_timeout_s))
    samples = folder / "samples" / f"rank{ranks.rank}.jsonl"
    samples.parent.mkdir(parents=True, exist_ok=True)
    attempt_number = attempt(folder)
    drop_partial_line(samples)
    with process_group_context(ranks, timeout=timeout), samples.open("ab") as log:
        write_facts(folder, train(job, ranks, folder, log, attempt_number))


def train(job: Job, ranks: Ranks, folder: Path, log: IO[bytes], attempt: int = 0) -> RankFacts:
    """Do all the work of a rank, from building the model to the last checkpoint; return its facts.

    `folder`: the run's folder; `log`: the open file of the rank's samples; `attempt`: number of earlier attempts. No
    object that holds a process group outlives this call.
    """
    clock = StepClock(synchronize=lambda: synchronize(ranks))
    with _skip_weights_for_checkpoint(folder, ranks):
        training: Training = plugins.load("workloads", job.workload).build(job, ranks.vendor)
    dtype = compute_dtype(job.recipe)
    measured_rate = matmul_rate_of_run(folder, ranks, device_name(ranks), dtype, clock)
    forget_peak(ranks.device)
    say = _print_line if ranks.rank == 0 else lambda _: None
    events = EventLogWriter(folder, f"rank{ranks.rank}", attempt)
    checkpoints = RunCheckpoints(folder, job, ranks, training, events, say)
    step_faults = None
    if isinstance(training, Guarded):
        earlier = earlier_rollbacks(folder, job, ranks)
        step_faults = StepFaults(job, ranks, training, earlier, events, say, before_end=checkpoints.finish_writing)
    injector = inject_faults.fault_injector(folder, job, ranks, attempt)
    rank = Rank(
        job=job,
        ranks=ranks,
        training=training,
        clock=clock,
        log=log,
        say=say,
        checkpoints=checkpoints,
        attempt=attempt,
        fault_injector=injector,
        step_faults=step_faults,
        timer=StepTimer(lambda: torch.cuda) if ranks.device.type == "cuda" else None,
    )
    rank.run(folder, checkpoints.resume())
    rank_progress.own_heartbeat().phase("finishing")
    checkpoints.close(job.measure.in_all - 1)
    facts = training.about()
    return RankFacts(
        rank=ranks.rank,
        local_rank=ranks.local_rank,
        world=ranks.world,
        vendor=ranks.vendor,
        device=device_name(ranks),
        backend=ranks.backend,
        threads=torch.get_num_threads(),
        text=facts.text,
        digests=dict(facts.digests),
        seeds=dict(facts.seeds),
        parameters=facts.parameters,
        model_flops=facts.model_flops,
        matmul_rate=measured_rate,
        torch_build=torch_build(),
        experts={layer: list(tokens) for layer, tokens in facts.experts.items()},
        clocks=rank.telemetry,
    )


def _skip_weights_for_checkpoint(folder: Path, ranks: Ranks) -> AbstractContextManager[None]:
    """The context in which to build the training: initial weights are skipped on all ranks if any of them sees a
    checkpoint in the run's `folder`. If that turns out to be damaged, they are drawn when loading it fails. Collective.
    """
    has_checkpoint = on_any(ranks, bool(CheckpointStore(folder).steps()))
    return initial_weights.skipped() if has_checkpoint else nullcontext()


def _print_line(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
