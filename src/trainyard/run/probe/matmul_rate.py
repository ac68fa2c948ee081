"""A short benchmark of this machine's matmul rate, the reference for a step's arithmetic."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import date

import torch

from trainyard.machine import Claim
from trainyard.run.local.step_clock import StepClock

_TRIES, _RUNS = 8, 4
"""Tries, and timed runs of several products in each."""
_PAUSE_S = 0.2
"""Pause between tries, so that other load on the machine does not affect all of them."""
_SMALLEST, _LARGEST = 256, 8192
"""Rows of the square matrices."""
_LONG_ENOUGH_NS = 4_000_000
"""Duration of a product from which launch overhead no longer matters."""
_RUN_NS, _MOST_CALLS = 10_000_000, 16
"""Approximate duration of a run, and the largest number of products in it."""
_SIZE_TRIES = 3
"""Products that are timed at each size until it is large enough."""


def matmul_rate(
    device: torch.device,
    dtype: torch.dtype,
    clock: StepClock,
    ranks: int = 1,
    together: Callable[[], None] = lambda: None,
    pause: Callable[[float], None] = time.sleep,
) -> Claim:
    """Measure the FLOP/s of a square matrix product in `dtype`, with the job's threads.

    The result is the best of `_TRIES` x `_RUNS` runs, spread over about two seconds; a product of size n has 2 n^3
    FLOPs, and the size is the smallest one that lasts long enough. `clock`: waits for the device and returns ns;
    `ranks`: how many ranks measure at once, for the text of the source; `together`: a barrier before each try, so that
    ranks on one host measure while all of them are busy; `pause`: sleeps for that many seconds between tries.
    """
    size, product_ns = _choose_size(device, dtype, clock)
    left, right, out = _square(size, dtype, device)
    calls = max(1, min(_MOST_CALLS, _RUN_NS // max(1, product_ns)))
    run_ns: list[int] = []
    for attempt in range(_TRIES):
        if attempt:
            pause(_PAUSE_S)
        together()
        for _ in range(_RUNS):
            began_ns = clock.now()
            for _ in range(calls):
                torch.mm(left, right, out=out)
            run_ns.append(max(1, clock.now() - began_ns))
    name = str(dtype).removeprefix("torch.")
    on_ranks = "on the only rank" if ranks == 1 else f"on each of {ranks} ranks at once"
    return Claim(
        value=calls * 2 * size**3 / (min(run_ns) / 1e9),
        unit="FLOP/s",
        source=f"probe: {name} product of {size} x {size} matrices, best of {_TRIES} x {_RUNS} runs of {calls}, "
        f"{on_ranks}",
        date=date.today().isoformat(),
        measured=True,
    )


def _choose_size(device: torch.device, dtype: torch.dtype, clock: StepClock) -> tuple[int, int]:
    """Double the size until one product takes `_LONG_ENOUGH_NS`; return (rows of the matrices, ns per product)."""
    size = _SMALLEST
    while True:
        left, right, out = _square(size, dtype, device)
        torch.mm(left, right, out=out)  # the first call chooses a kernel and warms the caches
        product_times_ns: list[int] = []
        for _ in range(_SIZE_TRIES):
            began_ns = clock.now()
            torch.mm(left, right, out=out)
            product_times_ns.append(clock.now() - began_ns)
        if min(product_times_ns) >= _LONG_ENOUGH_NS or size >= _LARGEST:
            return size, min(product_times_ns)
        size *= 2


def _square(size: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(left, right, out): two random square matrices of `size` rows (zeros draw less power and run faster) and an empty
    one for their product."""
    left, right = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    return left, right, torch.empty_like(left)
