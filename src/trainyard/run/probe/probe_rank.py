"""Benchmark the devices of a machine while all of them are busy: matmuls, attention, memory, launches, collectives.

Runs on every rank at once (`launch/fork_ranks.py`). Each number is the median of several tries, which is robust against
occasional other load.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from trainyard.predict.calibrate.probed_machine import COLLECTIVES, ProbedTime
from trainyard.train.parallel.differentiable_collectives import all_gather, reduce_scatter
from trainyard.train.process_group import Ranks, find_ranks, process_group_context, synchronize

_TRIES = 7
_MOST_CALLS = 1000
"""Largest number of calls in a try."""
_LEAST_S = 1e-9
"""Lower limit of a measured time, to avoid a division by 0."""
_FIRST_FLOPS_PER_S = 1e9
"""Rate that is assumed before the first product is timed."""
_LONG_ENOUGH_S = 2e-3
"""Minimum duration of a try; calls are repeated to reach it."""
_SIZES = (32, 128, 512, 2048)
_ATTENTION = ((256, 64), (1024, 64), (1024, 128), (4096, 128))
"""(tokens, channels per head)."""
_BYTES = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
_MOST_FLOPS_S = 0.25
"""A product that would take longer than this, at the best rate so far, is skipped."""


def measure(vendor: str, dtype_name: str, threads: int, meet: str) -> list[ProbedTime]:
    """Run all benchmarks on one rank; collectives only with several ranks. All ranks call it at the same time.

    `vendor`: name of the devices' vendor plugin; `dtype_name`: number format of products and attention, such as
    `bfloat16`; `threads`: threads of a CPU rank; `meet`: address of the ranks' rendezvous.
    """
    torch.set_num_threads(threads)
    ranks, dtype = find_ranks(vendor), getattr(torch, dtype_name)
    with process_group_context(ranks, meet):
        if ranks.world > 1:
            dist.barrier()
        times = [_launch(ranks), *_copies(ranks), *_products(ranks, dtype), *_attention(ranks, dtype)]
        return times if ranks.world == 1 else [*times, *_collectives(ranks)]


def _timed(
    name: str, size: Sequence[int], call: Callable[[], object], ranks: Ranks, same_calls: bool = False
) -> ProbedTime:
    """Time `call`: the median and the quartiles of seconds per call over `_TRIES` tries.

    The first call warms up; a second one determines how many calls a try needs to last `_LONG_ENOUGH_S`. `name`,
    `size`: as in `ProbedTime`; `same_calls`: all ranks make the same number of calls, as collectives require.
    """
    call()
    synchronize(ranks)
    began_s = time.perf_counter()
    call()
    synchronize(ranks)
    call_s = torch.tensor(time.perf_counter() - began_s)
    if same_calls:
        call_s = call_s.to(ranks.device)
        dist.all_reduce(call_s, op=dist.ReduceOp.MAX)
    calls = max(1, min(_MOST_CALLS, round(_LONG_ENOUGH_S / max(float(call_s), _LEAST_S))))
    seconds_per_call: list[float] = []
    for _ in range(_TRIES):
        if same_calls:
            dist.barrier()
        synchronize(ranks)
        began_s = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize(ranks)
        seconds_per_call.append((time.perf_counter() - began_s) / calls)
    low, _, high = quantiles(seconds_per_call, n=4)
    return ProbedTime(what=name, size=tuple(size), seconds=median(seconds_per_call), low=low, high=high)


def _launch(ranks: Ranks) -> ProbedTime:
    """Time an operation on a single number: the launch overhead."""
    scalar = torch.ones((), device=ranks.device)
    return _timed("launch", (4,), lambda: scalar.add_(0.0), ranks)


def _copies(ranks: Ranks) -> list[ProbedTime]:
    """Time copies on the device. The size is the sum of the bytes read and written: of n bytes, half are the source,
    with n / 8 float32 elements."""
    times: list[ProbedTime] = []
    for size in _BYTES[2:]:
        source = torch.randn(size // 8, device=ranks.device)
        target = torch.empty_like(source)
        times.append(_timed("copy", (size,), lambda a=target, b=source: a.copy_(b), ranks))
    return times


def _products(ranks: Ranks, dtype: torch.dtype) -> list[ProbedTime]:
    """Time matrix products [m, k] x [k, n] for all combinations of `_SIZES`, the smallest first; those that would take
    longer than `_MOST_FLOPS_S` at the best rate so far are left out. Their size is (m, n, k)."""
    times: list[ProbedTime] = []
    best_flops_per_s = _FIRST_FLOPS_PER_S
    sizes = sorted(((m, n, k) for m in _SIZES for n in _SIZES for k in _SIZES), key=lambda s: s[0] * s[1] * s[2])
    for m, n, k in sizes:
        flops = 2.0 * m * n * k
        if flops / best_flops_per_s > _MOST_FLOPS_S:
            continue
        left = torch.randn(m, k, device=ranks.device, dtype=dtype)
        right = torch.randn(n, k, device=ranks.device, dtype=dtype)  # the layout of a linear layer's weight
        times.append(_timed("matmul", (m, n, k), lambda a=left, b=right: F.linear(a, b), ranks))
        best_flops_per_s = max(best_flops_per_s, flops / times[-1].seconds)
    return times


def _attention(ranks: Ranks, dtype: torch.dtype) -> list[ProbedTime]:
    """Time causal attention with batch 1 and four heads: the forward pass, and the backward pass as the difference.

    The size is (tokens, channels per head, 0 for the forward and 1 for the backward pass).
    """
    times: list[ProbedTime] = []
    for tokens, channels in _ATTENTION:
        shape = (1, 4, tokens, channels)
        q, k, v = (torch.randn(shape, device=ranks.device, dtype=dtype, requires_grad=True) for _ in range(3))
        upstream = torch.randn(shape, device=ranks.device, dtype=dtype)

        def forward(q: Tensor = q, k: Tensor = k, v: Tensor = v) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        def forward_and_backward(q: Tensor = q, k: Tensor = k, v: Tensor = v, upstream: Tensor = upstream) -> object:
            return torch.autograd.grad(forward(q, k, v), (q, k, v), upstream)

        with torch.no_grad():
            forward_time = _timed("attention", (tokens, channels, 0), forward, ranks)
        times.append(forward_time)
        total = _timed("attention", (tokens, channels, 1), forward_and_backward, ranks)
        seconds, low, high = (
            max(value - forward_time.seconds, _LEAST_S) for value in (total.seconds, total.low, total.high)
        )
        times.append(ProbedTime(what="attention", size=total.size, seconds=seconds, low=low, high=high))
    return times


def _collectives(ranks: Ranks) -> list[ProbedTime]:
    """Time collectives over all ranks. The size is that of the whole gathered, scattered, reduced, exchanged or sent
    tensor in bytes."""
    times: list[ProbedTime] = []
    for size in _BYTES:
        # float32 elements, a multiple of the number of ranks
        whole = torch.ones(max(size // 4 // ranks.world, 1) * ranks.world, device=ranks.device)
        part = whole[: len(whole) // ranks.world].clone()
        received = torch.empty_like(whole)
        calls: dict[str, Callable[[], object]] = {
            "all_gather": lambda whole=whole, part=part: all_gather(whole, part),
            "reduce_scatter": lambda whole=whole, part=part: reduce_scatter(part, whole),
            "all_reduce": lambda whole=whole: dist.all_reduce(whole),
            "all_to_all": lambda whole=whole, received=received: dist.all_to_all_single(received, whole),
            "send": lambda whole=whole, received=received: _pass_on(whole, received, ranks),
        }
        times += [_timed(name, (len(whole) * 4,), calls[name], ranks, same_calls=True) for name in COLLECTIVES]
    return times


def _pass_on(whole: Tensor, received: Tensor, ranks: Ranks) -> None:
    """Send `whole` to the next rank, and receive the previous rank's into `received`."""
    next_rank, previous_rank = (ranks.rank + 1) % ranks.world, (ranks.rank - 1) % ranks.world
    for request in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, whole, next_rank), dist.P2POp(dist.irecv, received, previous_rank)]
    ):
        request.wait()
