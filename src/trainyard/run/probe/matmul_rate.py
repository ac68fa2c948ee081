"""A short look at how fast this machine multiplies matrices: what a step's arithmetic is measured against."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import date

import torch

from trainyard.machine import Claim
from trainyard.run.local.step_clock import StepClock

_TRIES, _RUNS = 8, 4
_PAUSE_S = 0.2
"""Between tries: what else the machine does comes and goes, and a rate is what it reaches when nothing does."""
_SMALLEST, _LARGEST = 256, 8192
_LONG_ENOUGH_NS = 4_000_000
"""A product this long is no longer about its launch; a run of several lasts some ten milliseconds."""
_MOST_CALLS = 16
_LOOKS = 3


def matmul_rate(
    device: torch.device,
    dtype: torch.dtype,
    clock: StepClock,
    ranks: int = 1,
    together: Callable[[], None] = lambda: None,
    pause: Callable[[float], None] = time.sleep,
) -> Claim:
    """FLOP/s of a square product in `dtype`, of the size that first lasts long enough, with the threads that the job
    computes with: the best of several tries, spread over about two seconds.

    `together` is passed before each try, so that ranks on one host measure what is left to each when all work.
    """
    size, once_ns = _size(device, dtype, clock)
    left, right, out = _square(size, dtype, device)
    calls = max(1, min(_MOST_CALLS, 10_000_000 // max(1, once_ns)))
    walls: list[int] = []
    for attempt in range(_TRIES):
        if attempt:
            pause(_PAUSE_S)
        together()
        for _ in range(_RUNS):
            began = clock.now()
            for _ in range(calls):
                torch.mm(left, right, out=out)
            walls.append(max(1, clock.now() - began))
    name = str(dtype).removeprefix("torch.")
    each = "on the only rank" if ranks == 1 else f"on each of {ranks} ranks at once"
    return Claim(
        value=calls * 2 * size**3 / (min(walls) / 1e9),
        unit="FLOP/s",
        source=f"probe: {name} product of {size} x {size} matrices, best of {_TRIES} x {_RUNS} runs of {calls}, {each}",
        date=date.today().isoformat(),
        measured=True,
    )


def _size(device: torch.device, dtype: torch.dtype, clock: StepClock) -> tuple[int, int]:
    """(size, ns a product): doubled until one product lasts long enough."""
    size = _SMALLEST
    while True:
        left, right, out = _square(size, dtype, device)
        torch.mm(left, right, out=out)  # the first call chooses a kernel and warms the caches
        looks: list[int] = []
        for _ in range(_LOOKS):
            began = clock.now()
            torch.mm(left, right, out=out)
            looks.append(clock.now() - began)
        if min(looks) >= _LONG_ENOUGH_NS or size >= _LARGEST:
            return size, min(looks)
        size *= 2


def _square(size: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two random matrices (zeros draw less power, and run faster), and room for their product."""
    left, right = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    return left, right, torch.empty_like(left)
