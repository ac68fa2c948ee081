"""A small calibration: planted causes are named, unknown ones are not, and the stated confidences hold."""

from types import SimpleNamespace

import numpy as np
import pytest

from trainyard.finding import Finding
from trainyard.ledger import Account
from validation.calibration import Stated, judge, reliability, run
from validation.synthetic.known_causes import KNOWN
from validation.synthetic.timeline import COMM, COMPUTE, Rank, Transfer, simulate
from validation.synthetic.unknown_causes import HELD_OUT, TUNED

DRAWS = 2
SMALL = ("DataWait", "ValueReads", "SlowDispatch", "ComputeStraggler", "ContextCreation", "LayoutCopies")
UNKNOWN = ("Nothing", "LockContention", "BufferFlush", "SharedDevice")


@pytest.fixture(scope="module")
def results():
    return run({name: KNOWN[name] for name in SMALL}, DRAWS), run({name: TUNED[name] for name in UNKNOWN}, DRAWS)


def test_most_planted_causes_are_named(results):
    known, _ = results
    outcomes = [outcome for draws in known.values() for outcome, _ in draws]
    assert outcomes.count("right") >= 0.8 * len(outcomes)


def test_causes_that_no_rule_knows_are_not_named_confidently(results):
    _, unknown = results
    wrong = [item for draws in unknown.values() for _, stated in draws for item in stated if not item.right]
    assert [item for item in wrong if item.confidence >= 0.9] == []


def test_nine_in_ten_confident_findings_are_right(results):
    confident = [item for group in results for draws in group.values() for _, stated in draws for item in stated]
    confident = [item for item in confident if item.confidence >= 0.9]
    assert len(confident) >= 10
    assert sum(item.right for item in confident) >= 0.9 * len(confident)


def test_there_are_enough_kinds_of_causes():
    assert len(KNOWN) >= 15
    assert len(TUNED) + len(HELD_OUT) >= 5
    assert not set(TUNED) & set(HELD_OUT)


def test_reliability_counts_by_stated_confidence():
    rows = reliability([Stated("a", 0.95, True), Stated("b", 0.91, False), Stated("c", 0.1, False)])
    assert [(row[2], row[4]) for row in rows] == [(1, 0.0), (2, 0.5)]


def test_a_collective_ends_for_all_after_the_last_rank():
    ranks = [Rank(number, 2, np.random.default_rng(number), 0.0) for number in range(2)]

    def program(rank):
        rank.launch("gemm", 1_000.0 * (1 + rank.number), COMPUTE)
        transfer = rank.issue("nccl", Transfer("t", (0, 1), 500.0), COMM)
        yield transfer
        rank.clock = transfer.end

    simulate(ranks, [program(rank) for rank in ranks])
    begins = [rank.events[-1]["ts"] * 1_000 for rank in ranks]
    ends = [rank.clock for rank in ranks]
    assert ends[0] == ends[1] == pytest.approx(max(begins) + 500, abs=1)


def test_findings_without_a_cause_are_not_judged():
    job = SimpleNamespace(plant=TUNED["Nothing"](np.random.default_rng(0), 2), reads_loss=False, reading_costs_ns=0.0)
    coverage, sync = (
        Finding(rule=rule, severity="low", account=Account("compute", "other"), cost_ns=1, summary="")
        for rule in ("coverage", "sync_in_step")
    )
    assert judge(job, [coverage]) == []
    assert [item.right for item in judge(job, [sync])] == [False]
