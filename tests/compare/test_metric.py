"""The metrics of a run: equal to its summary, absent if not measured."""

import pytest

from tests.refused import refused
from trainyard import words
from trainyard.compare.metric import compute_metrics
from trainyard.errors import UnknownName
from trainyard.job import Job
from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.record import Run, Sample


def a_run(walls, compiled=False, **fields):
    """Rank 0 takes `walls`, the first of them a warm-up; rank 1 is a nanosecond faster."""
    model = Model(layers=2, hidden_size=32, ffn_hidden_size=64, heads=4, kv_heads=2, head_dim=8)
    job = Job(model=model, recipe=Recipe(seq_len=16, tokens_per_step=64, compile=compiled))
    samples = tuple(
        Sample(step=n, rank=rank, repeat=0, wall_ns=wall - rank, tokens=32, memory_bytes=10 * n, warmup=n == 0)
        for rank in (0, 1)
        for n, wall in enumerate(walls)
    )
    return Run(id="0" * 8, job=job, started="", samples=samples, **fields)


def test_step_time_is_the_median_of_the_slowest_ranks():
    metrics = compute_metrics(a_run([9000, 100, 300, 200]))
    assert metrics == {"step_time": 200.0, "tokens_per_s": 64e9 / 200, "memory": 30.0}


def test_compile_time_is_the_excess_of_the_first_step():
    assert compute_metrics(a_run([9000, 100, 300, 200], compiled=True))["compile_time"] == 8800.0
    assert "compile_time" not in compute_metrics(a_run([9000, 100, 300, 200]))


def test_accounts_and_goodput_are_metrics():
    entry = Entry(account=Account.parse("comm/all_reduce@dp_replicate"), ns=70)
    ledger = Ledger(wall_ns=70, entries=(entry,), scope=Scope(reduce="mean"))
    metrics = compute_metrics(a_run([1, 1], ledgers=(ledger,), goodput={"init": 2.0, "save": 0.5}))
    assert metrics["comm/all_reduce@dp_replicate"] == 70.0
    assert (metrics["startup"], metrics["checkpoint_stall"]) == (2e9, 5e8)
    partial = Ledger(wall_ns=70, entries=(entry,), scope=Scope(partial=True))
    assert "comm/all_reduce@dp_replicate" not in compute_metrics(a_run([1, 1], ledgers=(partial,)))


def test_every_value_has_a_known_metric():
    for name in compute_metrics(a_run([9000, 100], compiled=True, goodput={"init": 2.0, "save": 0.5})):
        assert words.metric(name) is words.METRICS[name]
    for name in ("comm/all_reduce@dp_replicate", "unexplained", "compute/matmul"):
        assert words.metric(name).better == "lower"


@pytest.mark.parametrize("name", ["step_tme", "comm/nothing", "comm", "unexplained/what", "", "@dp"])
def test_unknown_metric_is_rejected(name):
    with refused(UnknownName, repr(name), "step_time"):
        words.metric(name)
