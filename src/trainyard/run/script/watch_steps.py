"""Inside a script that `trainyard run -- COMMAND` started: times its steps and profiles some, without a change to it.

A step ends where the first optimizer has stepped, or where `with trainyard.step():` ends, if the script says that.
No torch is loaded before the script does it.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter_ns
from types import ModuleType
from typing import IO, Any
from weakref import ref

import msgspec

from trainyard.job import PROFILER_WARMUP, Measure
from trainyard.record import Sample
from trainyard.run.script import step_mark

FOLDER, MEASURE = "TRAINYARD_SCRIPT_FOLDER", "TRAINYARD_SCRIPT_MEASURE"
"""Environment variables: the run's folder; `warmup,steps,profiled`."""
_STEPS_FROM = "torch.optim.optimizer"


def watch() -> None:
    """Watches this process from now on: it is a rank as soon as it takes a step."""
    warmup, steps, profiled = (int(part) for part in os.environ[MEASURE].split(","))
    measure = Measure(warmup=warmup, steps=steps, repeats=1, profiled=profiled)
    watcher = ScriptWatch(Path(os.environ[FOLDER]), int(os.environ.get("RANK", "0")), measure)
    step_mark.watched_by(watcher)
    sys.meta_path.insert(0, _After(_STEPS_FROM, watcher.follow))
    atexit.register(watcher.close)


class ScriptWatch:
    """One rank: its samples, and the profiled window after `measure.warmup` and `measure.steps` steps.

    A fault of ours ends the watching and is said; the script goes on. A process that is forked from one that has taken
    steps is another: nothing is written in it. `look`: nanoseconds since some fixed moment.
    """

    def __init__(self, folder: Path, rank: int, measure: Measure, look: Callable[[], int] = perf_counter_ns) -> None:
        self.folder, self.rank, self.measure, self.look = folder, rank, measure, look
        self.took = 0
        self.log: IO[bytes] | None = None
        self.began: int | None = None
        self.process: int | None = None
        self.optimizer: ref[object] | None = None
        self.marked = False
        self.ended = False
        self.disturbed = False
        self.open, self.window = ExitStack(), ExitStack()
        self.profiler: Any = None

    def follow(self, module: ModuleType) -> None:
        """Takes every step of the first optimizer that steps as the end of a training step; of the next one where the
        script has made another in its place."""
        module.register_optimizer_step_post_hook(self._optimizer_stepped)

    def _optimizer_stepped(self, optimizer: object, *_: object) -> None:
        if self.optimizer is None or self.optimizer() is None:
            self.optimizer = ref(optimizer)
        if not self.marked and self.optimizer() is optimizer:
            self._safely(lambda: self._end(0, None))

    @contextmanager
    def step(self, tokens: int, loss: float | None) -> Iterator[None]:
        """A step as the script marks it."""
        self.marked = True
        if self.began is None:
            self.began = self.look()
        yield
        self._safely(lambda: self._end(tokens, loss))

    def close(self) -> None:
        """At the script's end: a window that it cut short is kept as far as it came."""
        self._safely(self._close)

    def _close(self) -> None:
        self.ended = True
        self.window.close()
        self.open.close()

    def _safely(self, work: Callable[[], None]) -> None:
        if self.ended or self.process not in (None, os.getpid()):
            return
        try:
            work()
        except Exception as error:
            self.ended = True
            print(f"trainyard: rank {self.rank} is watched no longer: {error}", file=sys.stderr)  # noqa: T201

    def _end(self, tokens: int, loss: float | None) -> None:
        """A step has ended; the first without a mark has no beginning that anybody saw."""
        now, began = self.look(), self.began
        if began is not None:
            self._write(now - began, tokens, loss)
            self.took += 1
            self.disturbed = False
            if self.profiler is not None:
                self._profiled()
            if self.measure.profiled and self.took == self.measure.warmup + self.measure.steps:
                self._profile()
        self.began = self.look()

    def _write(self, wall_ns: int, tokens: int, loss: float | None) -> None:
        if self.log is None:
            self.rank = _rank(self.rank)
            path = self.folder / "samples" / f"rank{self.rank}.jsonl"
            # A second process of the same rank must not write over the first: it is refused, and says so.
            self.log = self.open.enter_context(path.open("xb"))
            self.process = os.getpid()
        in_window = self.profiler is not None
        first = self.measure.warmup + self.measure.steps
        sample = Sample(
            step=self.took,
            rank=self.rank,
            repeat=int(self.took >= first),
            wall_ns=wall_ns,
            tokens=tokens,
            loss=loss,
            memory_bytes=_memory(),
            profiled=in_window,
            warmup=self.took < self.measure.warmup
            or self.disturbed
            or (in_window and self.took < first + PROFILER_WARMUP),
        )
        self.log.write(msgspec.json.encode(sample) + b"\n")
        self.log.flush()

    def _profile(self) -> None:
        import torch

        from trainyard.run.local.capture import capture

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        window = capture(self.folder, self.rank, self.measure.profiled, device, together=lambda: None)
        self.profiler = self.window.enter_context(window)

    def _profiled(self) -> None:
        self.profiler.step()
        if self.took == self.measure.warmup + self.measure.steps + self.measure.in_window:
            self.profiler = None
            self.window.close()
            self.disturbed = True  # the file was written just now, and peers may have waited for it


def _rank(told: int) -> int:
    """As the script's process group says where it has one: the environment is silent where it spawns ranks itself."""
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else told


def _memory() -> int:
    """Bytes at most so far, as in `Sample`."""
    import torch

    from trainyard.run.local.peak_memory import peak_memory

    return peak_memory(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


class _After(MetaPathFinder):
    """Calls `then` with a module right after it was loaded."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self.then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, self.then)
        return spec


class _Then(Loader):
    def __init__(self, loader: Loader, then: Callable[[ModuleType], None]) -> None:
        self.loader, self.then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        self.then(module)
