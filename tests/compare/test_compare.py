"""Comparison of two sides: changes sum to the wall time, verdicts need every step to agree, comparability."""

from io import StringIO

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.trace_maker import trace, write
from trainyard.compare.account_changes import compare_accounts
from trainyard.compare.comparable import check_comparability
from trainyard.compare.same_work import sum_forward_flops
from trainyard.compare.side import Side, count_operations, measure_similarity
from trainyard.job import SCRIPT, Job
from trainyard.ledger import Account, Entry, Ledger, Scope, mean
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.record import Run, Sample
from trainyard.report.render.diff_terminal import print_comparison
from trainyard.report.view.comparison import compare
from trainyard.trace.measure import measure, read


def side(name, *steps):
    ledgers = tuple(
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
    return Side(name, mean(ledgers), ledgers)


steps = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=5)


@given(steps, steps)
def test_changes_sum_to_the_change_in_wall_time(before, after):
    a, b = side("a", *before), side("b", *after)
    account_changes = compare_accounts(a, b)
    assert sum(change.ns for change in account_changes) == b.mean.wall_ns - a.mean.wall_ns
    for change in account_changes:
        if change.low_ns is not None:
            assert change.low_ns <= change.ns + 1  # the mean floors
            assert change.ns - 1 <= change.high_ns


def test_a_verdict_needs_every_pair_of_steps_to_agree():
    was = side("a", (100, 10), (110, 10))
    clear = {str(c.account): c.verdict for c in compare_accounts(was, side("b", (120, 10), (130, 10)))}
    assert clear == {"compute/matmul": "worse", "launch_gap/python": "same"}
    overlapping = {str(c.account): c.verdict for c in compare_accounts(was, side("b", (105, 5), (130, 6)))}
    assert overlapping == {"compute/matmul": "unknown", "launch_gap/python": "better"}


def test_one_step_has_no_spread_to_judge_by():
    account_changes = compare_accounts(side("a", (100, 10)), side("b", (200, 10)))
    assert {c.verdict for c in account_changes} == {"unknown", "same"}
    assert all(c.low_ns is None for c in account_changes)


def _traced(tmp_path, name, ops, **metadata):
    host = [(op, 100, 10 * i, 10 * i + 5, "cpu_op") for i, op in enumerate(ops)]
    device = [("gemm", 7, 0, 10 * len(ops), 0)]
    measured = measure(read([write(tmp_path, trace(device=device, host=host, **metadata), f"{name}.json")]))
    return Side(name, measured.mean, measured.ledgers, tuple(rank.events for rank in measured.ranks))


def test_different_work_or_world_size_is_not_comparable(tmp_path):
    base = _traced(tmp_path, "one", ["aten::mm"] * 9 + ["aten::add"], rank=0, world=2)
    twin = _traced(tmp_path, "twin", ["aten::mm"] * 9 + ["aten::mul"], rank=0, world=2)
    other = _traced(tmp_path, "other", ["aten::conv2d"] * 10, rank=0, world=4)
    assert check_comparability(base, twin).reasons == ()
    reasons = check_comparability(base, other).reasons
    assert any("2 ranks" in reason and "4" in reason for reason in reasons)
    assert any("0 % of their framework ops agree" in reason for reason in reasons)


def test_likeness_is_symmetric_and_one_for_equal_ops(tmp_path):
    first = count_operations(_traced(tmp_path, "one", ["aten::mm", "aten::add", "aten::mm"]).events)
    other = count_operations(_traced(tmp_path, "other", ["aten::mm", "aten::mul"]).events)
    assert measure_similarity(first, first) == 1.0
    assert measure_similarity(first, other) == measure_similarity(other, first) == 1 / 4


# Whether two runs did the same work


def run_side(name, job, wall_ns=1000, timed_ns=0, flops=None):
    """The side of a run with two profiled steps of matrix products of `flops`, and one timed step if `timed_ns`."""
    entry = Entry(account=Account("compute", "matmul"), phase="forward", ns=wall_ns, flops=flops)
    ledgers = tuple(
        Ledger(wall_ns=wall_ns, entries=(entry,), scope=Scope(steps=(label,), ranks=(0,))) for label in ("1", "2")
    )
    timed = (Sample(step=0, rank=0, repeat=0, wall_ns=timed_ns, tokens=0, memory_bytes=0),) if timed_ns else ()
    return Side(name, mean(ledgers), ledgers, (), Run(id=name, job=job, started="", samples=timed))


def script(command, tokens=0):
    return Job(name="x", workload=SCRIPT, sizes={"command": command}, recipe=Recipe(tokens_per_step=tokens))


def decoder(**changes):
    model = {"layers": 2, "hidden_size": 32, "ffn_hidden_size": 64, "heads": 4, "kv_heads": 2, "head_dim": 8, **changes}
    return Job(model=Model(**model), recipe=Recipe(seq_len=16, tokens_per_step=64))


def test_same_command_is_the_same_work():
    judged = check_comparability(run_side("a", script("python t.py 64")), run_side("b", script("python t.py 64")))
    assert judged.same_work
    assert not judged.caveats


@pytest.mark.parametrize(
    ("clocks", "caveats"),
    [
        (("events", "events"), ()),
        (("", "events"), ()),
        (("synchronized", "events"), ("Clock of the steps: host clock, synchronized against device events.",)),
    ],
)
def test_runs_timed_by_different_clocks_have_a_caveat(clocks, caveats):
    sides = []
    for name, clock in zip("ab", clocks):
        side = run_side(name, decoder(), timed_ns=1000)
        samples = tuple(msgspec.structs.replace(sample, clock=clock) for sample in side.run.samples)
        sides.append(side._replace(run=msgspec.structs.replace(side.run, samples=samples)))
    assert check_comparability(*sides).caveats == caveats


def test_other_arguments_are_doubted_without_flops_or_tokens():
    short, other = script("python t.py 64"), script("python t.py 128")
    judged = check_comparability(run_side("a", short), run_side("b", other))
    assert not judged.same_work
    assert not judged.reasons
    [doubt] = judged.doubts
    assert "'python t.py 64' against 'python t.py 128'" in doubt
    assert "tokens per step are unknown against unknown" in doubt
    for settled in (
        (run_side("a", short, flops=1000), run_side("b", other, flops=1000)),
        (run_side("a", script("python t.py 64", 32)), run_side("b", script("python t.py 128", 32))),
    ):
        judged = check_comparability(*settled)
        assert judged.same_work
        assert judged.caveats == ("Command: python t.py 64 against python t.py 128.",)


def test_missing_tokens_are_unknown_not_zero():
    judged = check_comparability(run_side("a", script("python t.py")), run_side("b", script("python u.py", 128)))
    assert not judged.reasons
    assert "unknown against 128" in judged.doubts[0]
    judged = check_comparability(run_side("a", script("python t.py", 64)), run_side("b", script("python t.py", 128)))
    assert judged.reasons == ("Different tokens per step: 64 against 128.",)


@given(st.integers(1, 10**15), st.integers(1, 10**15))
def test_forward_flops_decide_whether_work_is_the_same(before, after):
    same = script("python t.py")
    reasons = check_comparability(run_side("a", same, flops=before), run_side("b", same, flops=after)).reasons
    assert bool(reasons) == (abs(before - after) > 0.05 * max(before, after))


def test_forward_flops_are_zero_if_one_product_is_unknown():
    known = run_side("a", script("python t.py"), flops=7)
    assert sum_forward_flops(known) == 7
    half = Ledger(
        wall_ns=1010,
        entries=(*known.mean.entries, Entry(account=Account("compute", "conv"), phase="forward", ns=10)),
        scope=known.mean.scope,
    )
    assert sum_forward_flops(known._replace(mean=half)) == 0


def test_different_jobs_name_the_differing_keys():
    judged = check_comparability(run_side("a", decoder()), run_side("b", decoder(layers=4, vocab=512)))
    assert judged.reasons == ("Different models: layers 2 against 4, vocab 256 against 512.",)
    vision = [Job(workload="vision", sizes={"width": width}, recipe=Recipe(tokens_per_step=4)) for width in (8, 16)]
    assert check_comparability(*(run_side("a", job) for job in vision)).reasons == (
        "Different sizes: width 8 against 16.",
    )


@given(*[st.integers(1, 10**6)] * 4)
def test_timed_and_profiled_steps_that_disagree_are_unsure(timed, timed_later, wall, wall_later):
    job = script("python t.py")
    judged = check_comparability(run_side("a", job, wall, timed), run_side("b", job, wall_later, timed_later))
    assert bool(judged.unsure) == ((timed_later - timed) * (wall_later - wall) < 0)
    assert judged.same_work


def test_doubts_are_printed_before_the_table(tmp_path):
    sides = run_side("a", script("python t.py 64"), 1000, 4000), run_side("b", script("python t.py 128"), 2000, 3000)
    comparison = compare(*sides)
    out = StringIO()
    print_comparison(comparison, Console(file=out, width=500))
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("a → b: cannot tell: timed step")
    assert [line[:8] for line in lines[1:3]] == ["because:"] * 2
    assert "-25.0 %, the profiled step +100.0 %" in lines[2]
    assert {change.verdict for change in comparison.changes} == {"unknown"}
    assert comparison.comparable
    assert len(comparison.doubts) == 2
