"""`python -m benchmarks.stacks`: the cost of recording Python stacks in the profiled window, by two methods.

One process, one thread, a small model with some Python of its own in each step. Rounds run the same steps under the
profiler alone, with sampled stacks and annotated modules (`trainyard run --stacks`), with sampled stacks alone, and
with `with_stack=True`, in random order. A figure is the median over rounds of the ratio to the profiler alone, in CPU
time of the process, which other work on the machine lengthens least.
"""

from __future__ import annotations

import platform
import random
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import process_time_ns

import torch
from torch.profiler import ProfilerActivity, profile

from trainyard.run.local.capture import fast_annotation
from trainyard.run.stacks.module_marks import ModuleMarks
from trainyard.run.stacks.sampler import StackSampler

ROUNDS, STEPS, WARMUP = 15, 40, 5
METHODS = ("profiler alone", "sampled stacks", "sampled stacks, modules", "with_stack=True")


class Block(torch.nn.Module):
    """A residual block of two products."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.relu(self.inner(x)))


MODEL = torch.nn.Sequential(*(Block() for _ in range(8)))
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), 0.01)


def measure_words() -> int:
    """Python of the step's own: calls of small functions, as in a tokenizer or a metric."""
    return sum(len(str(number)) for number in range(2_000))


def take_step() -> float:
    """One training step with some Python and a read of the loss."""
    measure_words()
    loss = MODEL(torch.randn(64, 64)).square().mean()
    loss.backward()
    OPTIMIZER.step()
    OPTIMIZER.zero_grad()
    return loss.item()


@contextmanager
def recording(method: str) -> Iterator[StackSampler | None]:
    """Record stacks by one of `METHODS`; yields the sampler, if there is one."""
    sampler = StackSampler(threading.get_ident()) if method.startswith("sampled") else None
    marks = ModuleMarks(fast_annotation()) if method.endswith("modules") else None
    if marks:
        marks.start()
    if sampler:
        sampler.start()
    try:
        yield sampler
    finally:
        if sampler:
            sampler.stop()
        if marks:
            marks.stop()


def run_window(method: str, folder: Path) -> tuple[int, int, StackSampler | None]:
    """(CPU ns of a step, bytes of the trace, the sampler) of a window of `STEPS` steps."""
    with_stack = method == "with_stack=True"
    with (
        profile(activities=[ProfilerActivity.CPU], with_stack=with_stack) as profiler,
        recording(method) as sampler,
    ):
        for _ in range(WARMUP):
            take_step()
        began = process_time_ns()
        for _ in range(STEPS):
            take_step()
        cpu_ns = (process_time_ns() - began) // STEPS
    trace = folder / "trace.json"
    profiler.export_chrome_trace(str(trace))
    return cpu_ns, trace.stat().st_size, sampler


def main() -> None:
    """Print the cost of each method."""
    torch.set_num_threads(1)
    print(f"{datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}, Python {platform.python_version()}, one thread")
    cpu_ns: dict[str, list[int]] = {method: [] for method in METHODS}
    sizes: dict[str, int] = {}
    samples, sampler_ns = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for method in random.sample(METHODS, len(METHODS)):
                step_ns, sizes[method], sampler = run_window(method, Path(folder))
                cpu_ns[method].append(step_ns)
                if sampler:
                    samples, sampler_ns = samples + len(sampler.samples), sampler_ns + sampler.cpu_ns
    for method in METHODS:
        ratio = median(own / alone for own, alone in zip(cpu_ns[method], cpu_ns[METHODS[0]]))
        print(
            f"{method:<24} {median(cpu_ns[method]) / 1e6:6.2f} ms a step {100 * (ratio - 1):+6.1f} %   "
            f"trace of {sizes[method] / 1e6:6.1f} MB"
        )
    print(f"{samples:,} samples, {sampler_ns / max(1, samples) / 1e3:.0f} us of CPU time each")


if __name__ == "__main__":
    main()
