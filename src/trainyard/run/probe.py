"""A short look at how fast this machine multiplies matrices: what a step's arithmetic is measured against."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from statistics import median

import torch

from trainyard.machine import Claim
from trainyard.run.clock import Clock

_RUNS = 7
_SMALLEST, _LARGEST = 256, 8192
_LONG_ENOUGH_NS = 4_000_000
"""A product this long is no longer about its launch; a run of several lasts some ten milliseconds."""
_MOST_CALLS = 16


def matmul_rate(
    device: torch.device, dtype: torch.dtype, clock: Clock, ranks: int = 1, together: Callable[[], None] = lambda: None
) -> Claim:
    """FLOP/s of a square product in `dtype`: the median of seven runs, of the size that first lasts long enough.

    `together` is passed before the runs, so that ranks on one host measure what is left to each when all work.
    """
    size, once_ns = _size(device, dtype, clock)
    left, right, out = _square(size, dtype, device)
    calls = max(1, min(_MOST_CALLS, 10_000_000 // max(1, once_ns)))
    together()
    walls: list[int] = []
    for _ in range(_RUNS):
        began = clock.now()
        for _ in range(calls):
            torch.mm(left, right, out=out)
        walls.append(max(1, clock.now() - began))
    name = str(dtype).removeprefix("torch.")
    each = "on the only rank" if ranks == 1 else f"on each of {ranks} ranks at once"
    return Claim(
        value=calls * 2 * size**3 / (median(walls) / 1e9),
        unit="FLOP/s",
        source=f"probe: {name} product of {size} x {size} matrices, median of {_RUNS} runs of {calls}, {each}",
        date=date.today().isoformat(),
        measured=True,
    )


def _size(device: torch.device, dtype: torch.dtype, clock: Clock) -> tuple[int, int]:
    """(size, ns a product): doubled until one product lasts long enough."""
    size = _SMALLEST
    while True:
        left, right, out = _square(size, dtype, device)
        torch.mm(left, right, out=out)  # the first call chooses a kernel and warms the caches
        began = clock.now()
        torch.mm(left, right, out=out)
        once_ns = clock.now() - began
        if once_ns >= _LONG_ENOUGH_NS or size >= _LARGEST:
            return size, once_ns
        size *= 2


def _square(size: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two random matrices (zeros draw less power, and run faster), and room for their product."""
    left, right = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    return left, right, torch.empty_like(left)
