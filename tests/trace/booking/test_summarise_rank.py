"""The summary of a rank: stretches that tile its window, each with the account that owns most of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace_maker import trace, write
from trainyard.ledger import Account
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.booking.summarise_rank import RESOLUTION, Stretches, owned_stretches, summarise_rank
from trainyard.trace.measure import measure, read

ACCOUNTS = tuple(Account("compute", name) for name in ("matmul", "attention", "elementwise"))
PIPELINE = {
    "Collective name": "recv",
    "Process Group Name": "3",
    "Process Group Description": "mesh_pp",
    "Process Group Ranks": "[1, 5, 9]",
    "Group size": 3,
    "dtype": "Float",
    "In msg nelems": 4,
    "Out msg nelems": 4,
}


@pytest.fixture
def booked(tmp_path: Path) -> RankTrace:
    """A rank with 400 short kernels and idle time, and a transfer in a pipeline of three ranks."""
    names = ["gemm", "elementwise_kernel", "reduce_kernel"]
    device: list[tuple[object, ...]] = [(names[i % 3], i % 2, 10 * i, 10 * i + 4 + i % 5, None) for i in range(400)]
    device.append(("ncclDevKernel_SendRecv", 3, 4_000, 4_400, None, PIPELINE))
    return measure(read([write(tmp_path, trace(device=device, rank=5, world=12, host_name="node-7"))]), "all").ranks[0]


def test_stretches_hold_the_time_of_the_ledger(booked: RankTrace) -> None:
    stretches = owned_stretches(booked)
    ns: dict[Account, int] = {}
    for (begin, end), account in zip(pairwise(stretches.bounds.tolist()), stretches.account.tolist()):
        ns[stretches.accounts[account]] = ns.get(stretches.accounts[account], 0) + end - begin
    (ledger,) = booked.ledgers
    assert ns == {account: own for account, own in ledger.by_account().items() if own}


def test_summary_names_host_stage_and_window(booked: RankTrace) -> None:
    summary = summarise_rank(booked)
    assert (summary.rank, summary.host, summary.stage, summary.intervals) == (5, "node-7", 1, 401)
    assert summary.stretches.bounds[[0, -1]].tolist() == [booked.parts[0].start, booked.parts[-1].stop]
    assert len(summary.stretches.account) <= 2 * RESOLUTION


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 2)), min_size=1, max_size=60),
    st.integers(0, 3000),
    st.integers(-5000, 5000),
)
def test_merged_stretches_tile_the_window(parts: list[tuple[int, int]], shortest_ns: int, start: int) -> None:
    bounds = start + np.cumsum([0, *(length for length, _ in parts)])
    merged = Stretches(bounds, np.array([account for _, account in parts], np.int32), ACCOUNTS).merge_short(shortest_ns)
    assert merged.bounds[[0, -1]].tolist() == bounds[[0, -1]].tolist()
    assert set(merged.bounds.tolist()) <= set(bounds.tolist())
    assert (np.diff(merged.bounds) > 0).all()
    assert (np.diff(merged.account) != 0).all()
    window_ns = int(bounds[-1] - bounds[0])
    if shortest_ns:
        assert len(merged.account) <= 2 * (window_ns // shortest_ns + 1)


def test_account_with_most_time_owns_a_merged_stretch() -> None:
    stretches = Stretches(np.array([0, 4, 7, 10, 40]), np.array([0, 1, 1, 2], np.int32), ACCOUNTS)
    merged = stretches.merge_short(20)
    assert merged.bounds.tolist() == [0, 10, 40]
    assert merged.account.tolist() == [1, 2]
    assert stretches.merge_short(0).account.tolist() == [0, 1, 2]
