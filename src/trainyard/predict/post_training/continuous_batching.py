"""Simulation of continuous batching on one replica of an inference engine (Yu et al. 2022, Orca, OSDI).

Requests wait in a queue. A request is admitted, in order, when the engine starts and whenever others end, if there is a
free slot and its KV cache fits until its end next to those of the running requests. Lengths are known to this rule, so
that no request is preempted; an engine that does not know them preempts some. All running requests advance by one token
per decode step, whose time grows linearly with the tokens in the cache, so that the time between two events has a
closed form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCost:
    """Seconds on one replica. `batch_s`: of a decode step by the number of running requests, without reading their
    cache, of shape [most requests + 1]; `cached_token_s`: in addition, per token in the cache; `prefill_s`: of the
    prompt of one request. `capacity`: tokens that the KV cache holds."""

    batch_s: Array
    cached_token_s: float
    prefill_s: float
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedGeneration:
    """`seconds` until the last request ends, of which `prefill_s` are prefill. Arrays have an item per interval between
    two events: its `durations` in seconds, the `running` requests, and the tokens in the cache at its end, `cached`.
    """

    seconds: float
    prefill_s: float
    durations: Array
    running: npt.NDArray[np.int64]
    cached: npt.NDArray[np.int64]

    @property
    def most_running(self) -> int:
        return int(self.running.max())

    @property
    def mean_running(self) -> float:
        """Running requests, mean over the time of decode steps."""
        return float(np.average(self.running, weights=self.durations))

    @property
    def tail_s(self) -> float:
        """Seconds at the end in which at most a quarter of the most concurrent requests run."""
        full = np.flatnonzero(self.running > self.most_running / 4)
        return float(self.durations[full[-1] + 1 :].sum())


def simulate(lengths: npt.NDArray[np.int64], prompt_tokens: int, cost: ReplicaCost) -> SimulatedGeneration:
    """Simulates requests with these response lengths, in the order of the queue. At most `len(cost.batch_s) - 1` run at
    a time. Raises `BadInput` if the cache cannot hold the longest request."""
    longest = prompt_tokens + int(lengths.max())
    if longest > cost.capacity:
        raise BadInput(
            f"a sequence of {longest:,} tokens does not fit in a KV cache of {cost.capacity:,} tokens.",
            "Pass a smaller --max-response-tokens or a larger --memory-share.",
        )
    ends, starts = np.zeros((2, 0), np.int64)  # decode steps at which running requests end, sorted, and began
    step, waiting, prefill_s = 0, 0, 0.0
    rows: list[tuple[float, int, int]] = []
    while waiting < len(lengths) or len(ends):
        while waiting < len(lengths) and len(ends) + 1 < len(cost.batch_s):
            end = step + int(lengths[waiting])
            position = int(np.searchsorted(ends, end))
            next_ends, next_starts = np.insert(ends, position, end), np.insert(starts, position, step)
            if _peak_tokens(next_ends, next_starts, prompt_tokens) > cost.capacity:
                break
            ends, starts, waiting = next_ends, next_starts, waiting + 1
            prefill_s += cost.prefill_s
        count, steps = len(ends), int(ends[0]) - step
        cached = count * (prompt_tokens + step) - int(starts.sum())
        reads = steps * cached + count * (steps * (steps - 1) // 2)
        rows.append(
            (steps * float(cost.batch_s[count]) + cost.cached_token_s * reads, count, cached + count * steps)
        )  # fmt: skip
        step += steps
        first = int(np.searchsorted(ends, step, side="right"))
        ends, starts = ends[first:], starts[first:]
    durations, running, after = zip(*rows, strict=True)
    seconds = float(np.sum(durations)) + prefill_s
    return SimulatedGeneration(
        seconds=seconds, prefill_s=prefill_s, durations=np.array(durations), running=np.array(running),
        cached=np.array(after),
    )  # fmt: skip


def _peak_tokens(ends: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], prompt_tokens: int) -> int:
    """Most tokens in the cache until the running requests end, if no more are admitted. The peak is at an end: there
    each request that still runs has its prompt and as many tokens as steps since its start."""
    left = np.arange(len(ends), 0, -1)
    fixed = np.cumsum((prompt_tokens - starts)[::-1])[::-1]
    return int((fixed + ends * left).max())
