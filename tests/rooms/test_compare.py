"""Comparing two sides: the sum law, verdicts only where every step agrees, and saying what cannot be compared."""

from hypothesis import given
from hypothesis import strategies as st

from tests.trace_maker import trace, write
from trainyard.compare.changes import changes
from trainyard.compare.comparable import comparable
from trainyard.compare.side import Side, likeness, operations
from trainyard.ledger import Account, Entry, Ledger, Scope, mean
from trainyard.trace.measure import measure, read


def side(name, *steps):
    made = tuple(
        Ledger(
            wall_ns=matmul + gap,
            entries=(
                Entry(account=Account("compute", "matmul"), ns=matmul),
                Entry(account=Account("launch_gap", "python"), ns=gap),
            ),
            scope=Scope(steps=(str(number),), ranks=(0,)),
        )
        for number, (matmul, gap) in enumerate(steps)
    )
    return Side(name, mean(made), made)


steps = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=5)


@given(steps, steps)
def test_changes_sum_to_the_change_in_wall_time(before, after):
    a, b = side("a", *before), side("b", *after)
    found = changes(a, b)
    assert sum(change.ns for change in found) == b.mean.wall_ns - a.mean.wall_ns
    for change in found:
        if change.low_ns is not None:
            assert change.low_ns <= change.ns + 1  # the mean floors
            assert change.ns - 1 <= change.high_ns


def test_a_verdict_needs_every_pair_of_steps_to_agree():
    was = side("a", (100, 10), (110, 10))
    clear = {str(c.account): c.verdict for c in changes(was, side("b", (120, 10), (130, 10)))}
    assert clear == {"compute/matmul": "worse", "launch_gap/python": "same"}
    overlapping = {str(c.account): c.verdict for c in changes(was, side("b", (105, 5), (130, 6)))}
    assert overlapping == {"compute/matmul": "unknown", "launch_gap/python": "better"}


def test_one_step_has_no_spread_to_judge_by():
    found = changes(side("a", (100, 10)), side("b", (200, 10)))
    assert {c.verdict for c in found} == {"unknown", "same"}
    assert all(c.low_ns is None for c in found)


def _traced(tmp_path, name, ops, **kept):
    host = [(op, 100, 10 * i, 10 * i + 5, "cpu_op") for i, op in enumerate(ops)]
    device = [("gemm", 7, 0, 10 * len(ops), 0)]
    measured = measure(read([write(tmp_path, trace(device=device, host=host, **kept), f"{name}.json")]))
    return Side(name, measured.mean, measured.ledgers, tuple(rank.events for rank in measured.ranks))


def test_unlike_work_and_unlike_worlds_are_reasons_and_devices_are_not(tmp_path):
    one = _traced(tmp_path, "one", ["aten::mm"] * 9 + ["aten::add"], rank=0, world=2)
    twin = _traced(tmp_path, "twin", ["aten::mm"] * 9 + ["aten::mul"], rank=0, world=2)
    other = _traced(tmp_path, "other", ["aten::conv2d"] * 10, rank=0, world=4)
    assert comparable(one, twin).reasons == ()
    reasons = comparable(one, other).reasons
    assert any("2 ranks" in reason and "4" in reason for reason in reasons)
    assert any("0 % of their framework ops agree" in reason for reason in reasons)


def test_likeness_is_one_for_itself_and_symmetric(tmp_path):
    one = operations(_traced(tmp_path, "one", ["aten::mm", "aten::add", "aten::mm"]).events)
    other = operations(_traced(tmp_path, "other", ["aten::mm", "aten::mul"]).events)
    assert likeness(one, one) == 1.0
    assert likeness(one, other) == likeness(other, one) == 1 / 4
