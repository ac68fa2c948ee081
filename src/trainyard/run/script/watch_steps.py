"""Time and profile the steps of a script that `trainyard run -- COMMAND` started, without changes to the script.

A step ends when the first optimizer has stepped, or at the end of `with trainyard.step():` if the script uses it.
torch is not imported before the script imports it. `inject/site/sitecustomize.py` calls `watch` in every Python process
of the script.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter_ns
from types import ModuleType
from typing import IO, Any
from weakref import ref

import msgspec
from msgspec.structs import replace

from trainyard.inject.after_import import AfterImport
from trainyard.job import PROFILER_WARMUP, Measure
from trainyard.record import Sample
from trainyard.run.local.step_timer import Mark, PendingSteps, StepTime, StepTimer
from trainyard.run.parts import launcher_variables
from trainyard.run.parts.job_member import JobMember, join_job
from trainyard.run.script import step_mark

FOLDER, MEASURE, COLLECTOR = "TRAINYARD_SCRIPT_FOLDER", "TRAINYARD_SCRIPT_MEASURE", "TRAINYARD_SCRIPT_COLLECTOR"
"""Environment variables: the run's folder; `warmup,steps,profiled,stacks,shapes,memory`; the address at which parts of
other nodes are received at the end if rank 0 is on this node, as in `RankRecord.collector`."""
_STEPS_FROM = "torch.optim.optimizer"


def watch() -> None:
    """Watch this process from now on; it counts as a rank once it takes a step.

    Reads the environment variables `FOLDER` and `MEASURE`, and installs an import hook for torch's optimizers and an
    exit handler.
    """
    warmup, steps, profiled, stacks, shapes, memory = (int(part) for part in os.environ[MEASURE].split(","))
    measure = Measure(
        warmup=warmup,
        steps=steps,
        repeats=1,
        profiled=profiled,
        stacks=bool(stacks),
        shapes=bool(shapes),
        memory=bool(memory),
    )
    watcher = ScriptWatch(Path(os.environ[FOLDER]), launcher_variables.rank(os.environ), measure)
    step_mark.set_watcher(watcher)
    sys.meta_path.insert(0, AfterImport(_STEPS_FROM, watcher.follow))
    atexit.register(watcher.close)


def _device_module() -> Any:
    """`torch.cuda` if this process uses a device, else None. Neither imports torch nor initialises the device."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


class ScriptWatch:
    """Records the samples of one rank, and a profiled window after `measure.warmup` and `measure.steps` steps.

    An error in here is printed and ends the watching; the script continues. A process forked from a rank is not a rank,
    and writes nothing. Steps are timed by the device's events if the script uses one; a sample is written once the
    device has ended its step, so that the last ones are written some steps later.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        measure: Measure,
        read_ns: Callable[[], int] = perf_counter_ns,
        device_module: Callable[[], Any] = _device_module,
    ) -> None:
        """`folder`: the run's folder. `rank`: that of the environment; the script's process group may have another.
        `read_ns`, `device_module`: as in `StepTimer`."""
        self.folder, self.rank, self.measure = folder, rank, measure
        self.timer = StepTimer(device_module, read_ns)
        self.pending = PendingSteps[Sample](self._write_sample)
        self.recorded_steps = 0
        """Number of steps with a sample so far, written or pending."""
        self.log: IO[bytes] | None = None
        """The file of samples, once a step has ended."""
        self.began: Mark | None = None
        """When the current step began; None if unknown."""
        self.process_id: int | None = None
        """Id of the process that opened `log`."""
        self.optimizer: ref[object] | None = None
        """The optimizer whose steps end training steps."""
        self.is_marked = False
        """Whether the script marks its steps."""
        self.has_ended = False
        """Whether the watching is over."""
        self.is_disturbed = False
        """Whether writing the trace has affected the current step, which then counts as warm-up."""
        self.member: JobMember | None = None
        """This rank in its job; None before the first recorded step, and if it is the only rank."""
        self.open_files, self.window = ExitStack(), ExitStack()
        self.profiler: Any = None
        """The profiler within the profiled window, else None."""

    def follow(self, module: ModuleType) -> None:
        """End a training step at every step of the first optimizer that steps, or of its successor if the script has
        replaced it."""
        module.register_optimizer_step_post_hook(self._optimizer_stepped)

    def _optimizer_stepped(self, optimizer: object, *_: object) -> None:
        if self.optimizer is None or self.optimizer() is None:
            self.optimizer = ref(optimizer)
        if not self.is_marked and self.optimizer() is optimizer:
            self._call_safely(lambda: self._end_step(0, None))

    @contextmanager
    def step(self, tokens: int, loss: float | None) -> Iterator[None]:
        """A step marked by the script. `tokens`: of this rank; `loss`: of the step if it is known."""
        self.is_marked = True
        if self.began is None:
            self._call_safely(self._begin_step)
        yield
        self._call_safely(lambda: self._end_step(tokens, loss))

    def _begin_step(self) -> None:
        if not self.timer.is_capturing():
            self.began = self.timer.mark()

    def close(self) -> None:
        """End the watching at the script's end; an unfinished profiled window is kept up to here."""
        self._call_safely(self._close)

    def _close(self) -> None:
        """Write the trace and the pending samples, and close the files."""
        self.has_ended = True
        self.window.close()
        if dropped := self.pending.finish():
            print(f"trainyard: rank {self.rank}: the device did not end the last {dropped} steps", file=sys.stderr)  # noqa: T201
        self.open_files.close()

    def _call_safely(self, work: Callable[[], None]) -> None:
        """Call `work`, unless the watching has ended or this is a fork of a rank; an error ends the watching."""
        if self.has_ended or self.process_id not in (None, os.getpid()):
            return
        try:
            work()
        except Exception as error:
            self.has_ended = True
            print(f"trainyard: rank {self.rank} is no longer watched: {error}", file=sys.stderr)  # noqa: T201

    def _end_step(self, tokens: int, loss: float | None) -> None:
        """End a step: write its sample, and start or end the profiled window if it is time for that.

        `tokens`: of this rank, 0 if unknown; `loss`: None if unknown. The first step without a mark is not recorded, as
        its beginning is unknown; nor is one that is captured into a graph, which is not executed yet.
        """
        if self.timer.is_capturing():
            return
        now = self.timer.mark()
        if self.began is not None:
            self.pending.add(self.began, now, self._describe_step(tokens, loss))
            self.recorded_steps += 1
            self.is_disturbed = False
            if self.recorded_steps in (1, 2):
                self._meet(self._join_job if self.recorded_steps == 1 else self._look)
            if self.profiler is not None:
                self._end_profiled_step()
            if self.measure.profiled and self.recorded_steps == self.measure.warmup + self.measure.steps:
                self._start_profiling()
        if self.profiler is None or now.event is None:  # a query in the profiled window would be in the trace
            self.pending.drain()
        self.began = self.timer.mark()

    def _write_sample(self, sample: Sample, time: StepTime) -> None:
        """Write the sample of a step that took `time`."""
        if self.log is not None:
            self.log.write(msgspec.json.encode(replace(sample, wall_ns=time.wall_ns, clock=time.clock)) + b"\n")
            self.log.flush()

    def _describe_step(self, tokens: int, loss: float | None) -> Sample:
        """The sample of the step that just ended, without its time; the first one opens the rank's file.

        `tokens`: of this rank; `loss`: None if unknown. Warm-up steps, whose times are discarded, are the first ones,
        the first ones under the profiler, and the one that writing the trace disturbed.
        """
        if self.log is None:
            self.rank = _rank(self.rank)
            path = self.folder / "samples" / f"rank{self.rank}.jsonl"
            # A second process of the same rank must not overwrite the first: opening fails, and is reported.
            self.log = self.open_files.enter_context(path.open("xb"))
            self.process_id = os.getpid()
        in_window = self.profiler is not None
        first_profiled = self.measure.warmup + self.measure.steps
        return Sample(
            step=self.recorded_steps,
            rank=self.rank,
            repeat=int(self.recorded_steps >= first_profiled),
            wall_ns=0,
            tokens=tokens,
            loss=loss,
            memory_bytes=_memory(),
            profiled=in_window,
            warmup=self.recorded_steps < self.measure.warmup
            or self.is_disturbed
            or (in_window and self.recorded_steps < first_profiled + PROFILER_WARMUP),
        )

    def _meet(self, work: Callable[[], None]) -> None:
        """Call `work`, which communicates with other ranks; an error is printed and ends the membership only."""
        try:
            work()
        except Exception as error:
            self.member = None
            print(f"trainyard: rank {self.rank} cannot communicate with the others: {error}", file=sys.stderr)  # noqa: T201

    def _join_job(self) -> None:
        self.member = join_job(self.folder, self.rank)
        if self.member is not None:
            self.member.publish_collector(os.environ.get(COLLECTOR, ""))

    def _look(self) -> None:
        """Read what other ranks published: every one that ended a second step has waited for all first steps."""
        if self.member is not None:
            self.member.look()

    def _compare_clocks(self) -> None:
        if self.member is not None:
            self.member.look()
            self.member.compare_clocks()

    def _start_profiling(self) -> None:
        """Start the profiled window: enter a torch.profiler that writes the rank's trace when the window is closed."""
        import torch

        from trainyard.run.local.capture import capture

        self._meet(self._compare_clocks)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        window = capture(
            self.folder,
            self.rank,
            self.measure.profiled,
            device,
            barrier=lambda: None,
            stacks=self.measure.stacks,
            shapes=self.measure.shapes,
            memory=self.measure.memory,
        )
        self.profiler = self.window.enter_context(window)

    def _end_profiled_step(self) -> None:
        """Tell the profiler that a step of the window has ended; close the window after the last one."""
        self.profiler.step()
        if self.recorded_steps == self.measure.warmup + self.measure.steps + self.measure.in_window:
            self.profiler = None
            self.window.close()
            self.is_disturbed = True  # writing the trace takes time, and peers may have waited for it


def _rank(default: int) -> int:
    """The rank in the script's process group, if it has one: a script that spawns its ranks itself may not set RANK."""
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else default


def _memory() -> int:
    """Peak bytes so far, as in `Sample`."""
    import torch

    from trainyard.run.local.peak_memory import peak_memory

    return peak_memory(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
