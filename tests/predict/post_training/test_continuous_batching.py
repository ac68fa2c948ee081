"""Continuous batching against a simulation token by token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.predict.post_training.continuous_batching import ReplicaCost, simulate

PROMPT = 3


class Queue(NamedTuple):
    lengths: list[int]
    slots: int
    capacity: int


@st.composite
def queues(draw: st.DrawFn) -> Queue:
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=10))
    return Queue(lengths, draw(st.integers(1, 5)), draw(st.integers(PROMPT + max(lengths), 60)))


def cost_of(queue: Queue, cached_token_s: float = 0.25) -> ReplicaCost:
    batch_s = np.array([0.0, *(1.0 + 0.5 * count for count in range(1, queue.slots + 1))])
    return ReplicaCost(batch_s=batch_s, cached_token_s=cached_token_s, prefill_s=2.0, capacity=queue.capacity)


def decode_steps(queue: Queue) -> Iterator[list[int]]:
    """The tokens in the cache of each running request before each decode step, simulated token by token: a request is
    admitted if, with it, no later step until all have ended would exceed the capacity."""
    waiting = list(queue.lengths)
    running: list[tuple[int, int]] = []  # (cached tokens, steps left)
    ended = True
    while waiting or running:
        while ended and waiting and len(running) < queue.slots:
            candidate = [*running, (PROMPT, waiting[0])]
            if any(_usage(candidate, later) > queue.capacity for later in range(1, 20)):
                break
            running, waiting = candidate, waiting[1:]
        yield [cached for cached, _ in running]
        stepped = [(cached + 1, left - 1) for cached, left in running]
        running = [(cached, left) for cached, left in stepped if left]
        ended = len(running) < len(stepped)


def _usage(running: list[tuple[int, int]], later: int) -> int:
    """Tokens in the cache after `later` more steps."""
    return sum(cached + later for cached, left in running if left >= later)


@settings(max_examples=300)
@given(queues())
def test_simulation_equals_one_token_by_token(queue: Queue) -> None:
    cost = cost_of(queue)
    simulated = simulate(np.array(queue.lengths), PROMPT, cost)
    steps = list(decode_steps(queue))
    decode_s = sum(cost.batch_s[len(step)] + cost.cached_token_s * sum(step) for step in steps)
    assert simulated.seconds == pytest.approx(decode_s + cost.prefill_s * len(queue.lengths))
    assert simulated.prefill_s == pytest.approx(cost.prefill_s * len(queue.lengths))
    assert simulated.most_running == max(len(step) for step in steps)
    assert max(simulated.cached) == max(sum(step) + len(step) for step in steps)


@given(queues())
def test_cache_and_slots_hold_at_each_moment(queue: Queue) -> None:
    simulated = simulate(np.array(queue.lengths), PROMPT, cost_of(queue))
    assert (simulated.cached <= queue.capacity).all()
    assert (simulated.running <= queue.slots).all()
    assert (simulated.running >= 1).all()


@given(queues())
def test_all_tokens_are_generated(queue: Queue) -> None:
    """With 1 s per step and running request, and nothing else, the time is the tokens."""
    batch_s = np.arange(queue.slots + 1, dtype=np.float64)
    cost = ReplicaCost(batch_s=batch_s, cached_token_s=0.0, prefill_s=0.0, capacity=queue.capacity)
    assert simulate(np.array(queue.lengths), PROMPT, cost).seconds == pytest.approx(sum(queue.lengths))


def test_tail_is_the_time_with_few_requests() -> None:
    queue = Queue([2, 2, 2, 2, 10], 5, 60)
    simulated = simulate(np.array(queue.lengths), PROMPT, cost_of(queue, cached_token_s=0.0))
    assert simulated.tail_s == pytest.approx(8 * 1.5)  # one of five requests runs alone


def test_a_request_larger_than_the_cache_is_refused() -> None:
    with pytest.raises(BadInput, match="does not fit in a KV cache of 10 tokens"):
        simulate(np.array([8]), PROMPT, cost_of(Queue([8], 1, 10)))
