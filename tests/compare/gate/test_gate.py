"""The gate: sequential test, verdicts, changed accounts, interleaved runs, bisection, noise, output formats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from math import exp, log, log1p
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.booked_maker import STEP, US, Did, Span, a_rank
from tests.refused import refused
from trainyard.booked import Booked
from trainyard.compare.gate import moderated_variance, sequential_test
from trainyard.compare.gate.bisect_commits import bisect
from trainyard.compare.gate.changed_accounts import adjust_by_holm, find_changed_accounts
from trainyard.compare.gate.changed_operations import sum_operations
from trainyard.compare.gate.gate_result import GateRequest, GateResult, MetricPairs, gate
from trainyard.compare.gate.interleave import interleave_runs
from trainyard.compare.gate.machine_noise import _find_modes, measure_noise
from trainyard.compare.gate.machine_readings import find_changed_readings
from trainyard.compare.gate.pairs import Pair, PairedRuns, pair_runs
from trainyard.compare.gate.verdict import Rule, Verdict, find_lower_bound, judge
from trainyard.compare.history.sources.benchmark_files import load
from trainyard.errors import BadInput, NotEnoughEvidence, UnknownName, WrongRunState
from trainyard.events import CALL, OperandShape
from trainyard.job import Job, Measure
from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.record import Provenance, Run, Sample
from trainyard.report.gate import ci_formats, sentences
from trainyard.report.gate.gate_report import report_gate

SIZES = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=9)
MATMUL, REDUCE, GAP = (
    Account.parse(text) for text in ("compute/matmul", "comm/all_reduce@dp_replicate", "launch_gap/python")
)
RECIPE = Recipe(seq_len=8, tokens_per_step=8)


# The sequential test


@settings(max_examples=40)
@given(SIZES, st.sampled_from([0.01, 0.05, 0.1, 0.2]), st.booleans())
def test_error_rate_over_all_sign_patterns_is_at_most_alpha(sizes: list[float], alpha: float, rounded: bool) -> None:
    """The exact error rate is at most alpha for any sizes, including ties and zeros."""
    some = [round(size, 1) for size in sizes] if rounded else sizes
    cap = max(len(some), sequential_test.find_first_look(alpha))
    stopped = sum(
        bool(sequential_test.find_stop([size * sign for size, sign in zip(some, pattern, strict=True)], alpha, cap))
        for pattern in product((-1, 1), repeat=len(some))
    )
    assert stopped <= alpha * 2 ** len(some)
    *_, last = sequential_test.look_after_each(np.array(some), alpha, cap)
    assert last.alarms == stopped / 2 ** len(some)


@given(SIZES.filter(lambda sizes: len(set(sizes)) == len(sizes)))
def test_doubled_ranks_follow_the_sort_order(sizes: list[float]) -> None:
    expected = [2 * (sorted(sizes).index(size) + 1) for size in sizes]
    assert sequential_test.double_ranks(np.array(sizes)).tolist() == expected


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.floats(0.1, 10))
def test_scaling_does_not_change_the_test(differences: list[float], times: float) -> None:
    exact = [round(value, 3) for value in differences]
    scaled = [value * 2.0 ** round(times) for value in exact]
    assert sequential_test.find_stop(exact, 0.05, 12) == sequential_test.find_stop(scaled, 0.05, 12)


def test_first_look_needs_one_pattern_below_alpha() -> None:
    assert sequential_test.find_first_look(0.01) == 7
    assert sequential_test.find_first_look(0.05) == 5
    assert sequential_test.find_stop([0.1 * n for n in range(1, 8)], 0.01, 20) == 7
    assert not sequential_test.find_stop([0.1 * n for n in range(1, 7)], 0.01, 20)
    assert not sequential_test.find_stop([-0.1] * 20, 0.01, 20)
    assert not sequential_test.find_stop([0.0] * 20, 0.01, 20)
    with refused(BadInput, "6 pairs", "1 %", 7, 24, "--alpha 1.6%"):
        sequential_test.spend_alpha(0.01, 6)
    sequential_test.spend_alpha(0.016, 6)


@pytest.mark.parametrize(
    ("base", "head", "explained"),
    [
        ([100.0] * 8, [110.0] * 8, False),
        ([100.0, 200.0] * 4, [110.0, 220.0] * 4, False),
        ([100.0, 101.0, 102.0, 250.0, 260.0, 270.0, 280.0], [90.0, 91.0, 92.0, 60.0, 140.0, 100.0, 250.0], True),
    ],
)
@pytest.mark.parametrize("metric", ["step_time", "tokens_per_s"])
def test_change_that_is_not_that_of_the_medians_is_explained(
    base: list[float], head: list[float], explained: bool, metric: str
) -> None:
    sign = -1 if metric == "tokens_per_s" else 1
    log_ratios = [sign * float(np.log(after / before)) for before, after in zip(base, head)]
    verdict = judge(metric, log_ratios, Rule())
    values = MetricPairs(base=tuple(base), head=tuple(head))
    gate = SimpleNamespace(verdicts=(verdict,), values={metric: values})
    low, high = sorted((np.median(base), np.median(head)))
    of_medians = (high / low if (np.median(head) > np.median(base)) == (sign == 1) else low / high) - 1
    assert bool(sentences.explain_estimate(gate)) == explained == (abs(of_medians - verdict.change) >= 0.0005)
    assert not explained or sentences.percent(of_medians) in sentences.explain_estimate(gate)


@pytest.mark.parametrize("noise_of", ["normal", "heavy", "modes", "drift", "carried"])
def test_false_alarm_rate_is_at_most_alpha(noise_of: str) -> None:
    rng = np.random.default_rng(7)
    alarms = sum(bool(sequential_test.find_stop(_null(noise_of, rng, 12), 0.05, 12)) for _ in range(1500))
    assert alarms / 1500 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 1500)


def _null(kind: str, rng: np.random.Generator, count: int) -> np.ndarray:
    """Differences of pairs in random order under the null hypothesis."""
    series = rng.normal(0, 0.02, 2 * count)
    if kind == "heavy":
        series = 0.02 * rng.standard_t(1.5, 2 * count)
    if kind == "modes":
        series = series + 0.1 * rng.integers(0, 2, 2 * count)
    if kind == "drift":
        series = series * np.linspace(1, 5, 2 * count) + np.linspace(0, 0.3, 2 * count)
    if kind == "carried":
        series = np.cumsum(series)
    return (series[1::2] - series[::2]) * rng.choice((-1, 1), count)


# The verdict


@given(st.lists(st.floats(-0.2, 0.2), min_size=1, max_size=11), st.sampled_from([0.01, 0.05]))
@example([0.0, 0.0, 0.0, 0.0, 0.125, -0.125, -0.125, -0.125], 0.05)
def test_verdict_agrees_with_its_bounds(differences: list[float], alpha: float) -> None:
    rule = Rule(alpha=alpha, max_pairs=12)
    result = judge("step_time", differences, rule)
    assert result.pairs <= len(differences)
    if result.outcome == "worse":
        assert result.low is not None
        assert result.low >= rule.negligible - 1e-12
    if result.outcome == "not worse":
        assert result.high is not None
        assert result.high <= rule.margin + 1e-9
    assert (result.more_pairs is None) == (result.outcome != "unclear")


@given(st.lists(st.floats(-0.2, 0.2), min_size=1, max_size=11), st.sampled_from([0.01, 0.05]))
@example([0.0, 0.0, 0.0, 0.0, 0.125, -0.125, -0.125, -0.125], 0.05)
@example([0.04, 0.04, 0.04, 0.04, -0.04, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 0.05)
def test_bounds_never_loosen_and_new_ones_contain_the_change(differences: list[float], alpha: float) -> None:
    """A bound holds at any look, and `change` is of all pairs: only the look that shows a bound has the change within
    it."""
    rule, values = Rule(alpha=alpha, max_pairs=12), np.array(differences)
    change = float(np.median([(value + other) / 2 for at, value in enumerate(values) for other in values[at:]]))
    for sign in (1, -1):
        before, now = find_lower_bound(sign * values[:-1], rule), find_lower_bound(sign * values, rule)
        if before is not None:
            assert now is not None
            assert now >= before - 1e-12
        if now is not None and now != before:
            assert now <= sign * change + 1e-12


def test_equal_is_not_worse_and_nan_is_rejected() -> None:
    assert judge("step_time", [0.0] * 7, Rule()).outcome == "not worse"
    assert judge("step_time", [0.05] * 7, Rule()).outcome == "worse"
    assert judge("step_time", [0.05] * 6, Rule()).outcome == "unclear"
    assert judge("memory", [1e-6] * 20, Rule()).outcome == "not worse", "significant but negligible"
    with refused(BadInput, "step_time", "nan"):
        judge("step_time", [0.0, float("nan")], Rule())
    for bad in ({"margin": 0.0}, {"margin": 3.0}, {"alpha": 0.0}, {"alpha": 0.5}, {"max_pairs": 99}):
        with refused(BadInput, *(f"{value:g}" for value in bad.values())):
            Rule(**bad)


def test_more_pairs_settle_an_unclear_verdict() -> None:
    rng = np.random.default_rng(1)
    some = rng.normal(log1p(0.05), 0.02, 20)
    first = judge("step_time", some[:5].tolist(), Rule())
    assert first.outcome == "unclear"
    assert first.more_pairs
    assert judge("step_time", some[: 5 + first.more_pairs + 3].tolist(), Rule()).outcome == "worse"


# Why


@given(st.floats(0.05, 60))
def test_digamma_and_trigamma_match_scipy(x: float) -> None:
    special = pytest.importorskip("scipy.special")
    assert moderated_variance.digamma(x) == pytest.approx(special.digamma(x), rel=1e-9, abs=1e-10)
    assert moderated_variance.trigamma(x) == pytest.approx(special.polygamma(1, x), rel=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_holm_matches_its_definition(chances: list[float]) -> None:
    """Against the definition: in increasing order, each p-value is multiplied by the number of remaining ones."""
    adjusted = adjust_by_holm(np.array(chances))
    alpha = 0.05
    left, rejected = sorted(range(len(chances)), key=lambda at: chances[at]), set()
    while left and chances[left[0]] * len(left) <= alpha:
        rejected.add(left.pop(0))
    assert {at for at, p in enumerate(adjusted) if p <= alpha} == rejected


def _ledgers(seed: int, pairs: int, planted: dict[str, float], clocks: float = 1.0) -> list[tuple[dict, dict]]:
    rng = np.random.default_rng(seed)
    shares = {f"a{n}": share for n, share in enumerate([30, 20, 12, 10, 8, 6, 4, 3, 2, 2, 2, 1])}

    def side(times: dict[str, float], clock: float) -> dict[str, float]:
        common = exp(rng.normal(0, 0.015)) * clock
        return {
            account: 1e6 * share * common * times.get(account, 1) * exp(rng.normal(0, 0.006))
            for account, share in shares.items()
        }

    return [(side({}, 1.0), side(planted, clocks)) for _ in range(pairs)]


def test_finds_small_account_that_grows_by_ten_percent() -> None:
    result = [find_changed_accounts(_ledgers(seed, 5, {"a9": 1.1}), 0.01) for seed in range(40)]
    assert sum([row.account for row in each.culprits] == ["a9"] for each in result) >= 38


def test_slower_clocks_blame_no_account() -> None:
    result = find_changed_accounts(_ledgers(3, 8, {}, clocks=1.1), 0.01)
    assert not result.culprits
    assert result.common.slower
    assert result.common.low > 0.03
    few = [({"a": 1.0, "b": 1.0}, {"a": 1.1 + at / 1e3, "b": 1.1}) for at in range(5)]
    assert not find_changed_accounts(few, 0.01).common.slower, "two accounts are too few for a common change"


def test_time_moved_between_accounts_is_not_a_regression() -> None:
    result = find_changed_accounts(_ledgers(4, 6, {"a1": 0.5, "a3": 2.0}), 0.01)
    assert {row.account for row in result.accounts if row.shifted} == {"a1", "a3"}
    assert not result.culprits
    gone = [({**base, "b": 0.0}, {**head, "a2": 0.0, "b": head["a2"]}) for base, head in _ledgers(5, 6, {})]
    assert {row.account for row in find_changed_accounts(gone, 0.01).accounts if row.shifted} == {"a2", "b"}


def test_names_the_likeliest_account_if_none_is_significant() -> None:
    result = find_changed_accounts(_ledgers(3, 5, {}), 0.01)
    first, *others = (msgspec.structs.replace(row, account="compute/matmul", p_value=1.0) for row in result.accounts)
    likely = msgspec.structs.replace(first, account="compute/elementwise", ns=8.8e6, change=0.122, p_value=0.025)
    text = sentences.culprit(msgspec.structs.replace(result, accounts=(*others, likely)))
    assert text.startswith("No account changed significantly; the likeliest is Elementwise, +8.8")
    assert "p = 0.025" in text
    faster = msgspec.structs.replace(likely, ns=-8.8e6)
    for accounts in ((*others, faster), tuple(others)):
        assert sentences.culprit(msgspec.structs.replace(result, accounts=accounts)) == "No single account stands out."


def test_two_pairs_are_not_enough_evidence() -> None:
    with refused(NotEnoughEvidence, 2, 3):
        find_changed_accounts(_ledgers(1, 2, {}), 0.01)


# Runs


def _run(number: int, step_ns: float = 1e8, accounts: dict[Account, int] | None = None, **changed: Any) -> Run:
    model = Model(layers=2, hidden_size=64, ffn_hidden_size=192, heads=4, kv_heads=4, head_dim=16, vocab=256)
    samples = tuple(
        Sample(step=at, rank=0, repeat=0, wall_ns=round(step_ns) + at, tokens=8, memory_bytes=1 << 20)
        for at in range(5)
    )
    entries = tuple(
        Entry(account=account, phase="forward", ns=ns, how="seen") for account, ns in (accounts or {}).items()
    )
    scope = Scope(steps=("1",), ranks=(0,), reduce="mean", aligned="no")
    ledgers = (
        (Ledger(wall_ns=sum(accounts.values()), entries=entries, basis="measured", scope=scope, source="t"),)
        if accounts
        else ()
    )
    given_ = {
        "id": f"{number:08x}", "job": Job(name="j", model=model, recipe=RECIPE),
        "started": f"2026-01-01T00:{number // 60:02d}:{number % 60:02d}",
        "state": "complete", "samples": samples, "ledgers": ledgers,
    }  # fmt: skip
    return Run(**(given_ | changed))


def _sides(times: float, pairs: int = 8, seed: int = 0) -> PairedRuns:
    rng = np.random.default_rng(seed)
    accounts = {MATMUL: 60_000_000, REDUCE: 25_000_000, GAP: 15_000_000}

    def run(number: int, slow: float) -> Run:
        own = {
            each: round(ns * exp(rng.normal(0, 0.004)) * (slow if each == MATMUL else 1))
            for each, ns in accounts.items()
        }
        return _run(number, float(sum(own.values())), own)

    base, head = [], []
    for at in range(pairs):
        base.append(run(2 * at, 1.0))
        head.append(run(2 * at + 1, times))
    return pair_runs(base, head)


def untraced(_: Run) -> list[Booked]:
    return []


def _gate(times: float, **more: Any) -> GateResult:
    return gate("main", "topic", _sides(times, **more), GateRequest(("step_time",), Rule()), untraced)


def test_names_the_account_that_caused_the_slowdown() -> None:
    worse = _gate(1.1)
    assert worse.outcome == "worse"
    assert worse.exit_code == 1
    assert "Matmul" in sentences.headline(worse)
    same = _gate(1.0)
    assert same.outcome == "not worse"
    assert same.exit_code == 0
    few = _gate(1.1, pairs=3)
    assert few.exit_code == 3
    assert "more would settle it" in sentences.headline(few)


def _traced(slower: float) -> Booked:
    """Two products of the same operation with different shapes, each launched by a nested call; one of them is slower
    and its kernel has another name."""
    wide, tall = OperandShape(dims=((8, 64), (64, 32))), OperandShape(dims=((64, 8), (8, 8), ()))
    host = [
        Span("aten::mm", 0, 50 * US, shape=0), Span("cudaLaunchKernel", 10 * US, 20 * US, CALL, parent=0),
        Span("aten::mm", 60 * US, 99 * US, shape=1), Span("aten::add", 100 * US, 120 * US),
    ]  # fmt: skip
    end = round(400 * US * slower)
    works = [
        Did("old" if slower == 1 else "new", 0, end, "compute/matmul", by=1),
        Did("gemm", end, end + 100 * US, "compute/matmul", by=2),
        Did("add", end + 100 * US, end + 150 * US, "compute/elementwise", by=3),
    ]
    return a_rank(works, host=host, shapes=(wide, tall), steps=1)


def test_slow_operation_is_located_by_shape() -> None:
    base = sum_operations(_traced(1.0), "compute/matmul")
    assert base == {"aten::mm [8, 64] x [64, 32]": 400 * US, "aten::mm [64, 8] x [8, 8]": 100 * US}
    assert sum(base.values()) < STEP
    rng = np.random.default_rng(0)

    def profile(run: Run) -> list[Booked]:
        return [_traced((1.3 if int(run.id, 16) % 2 else 1.0) * exp(rng.normal(0, 0.002)))]

    result = gate("a", "b", _sides(1.1), GateRequest(("step_time",), Rule()), profile)
    (inside,) = result.changed_operations.values()
    assert [row.account for row in inside.culprits] == ["aten::mm [8, 64] x [64, 32]"]
    assert "aten::mm [8, 64] x [64, 32] +1" in sentences.name_operations("compute/matmul", inside)
    assert "aten::mm" in ci_formats.write(result, "markdown")
    assert not gate("a", "b", _sides(1.0), GateRequest(("step_time",), Rule()), profile).changed_operations


def test_runs_that_cannot_be_compared_are_rejected() -> None:
    about = Provenance(driver={"nvidia.0": "550"}, code={"sha": "a" * 40})
    base = [_run(0, provenance=about)]
    other = _run(1, provenance=Provenance(driver={"nvidia.0": "560"}, code={"sha": "b" * 40}))
    with refused(BadInput, "driver nvidia.0", 550, 560, "--across driver"):
        pair_runs(base, [other])
    assert pair_runs(base, [other], ["driver"]).pairs
    with refused(UnknownName, "--across drivers", "'driver'"):
        pair_runs(base, [other], ["drivers"])
    failed = _run(2, state="failed", failure="rank 1 died")
    with refused(WrongRunState, failed.id, "failed", "rank 1 died"):
        pair_runs(base, [failed])
    with refused(BadInput, base[0].id, "base", "head"):
        pair_runs(base, base)
    with refused(BadInput, _run(0).id, _run(1).id, "measure profiled", 0):
        pair_runs([_run(0)], [_run(1, job=msgspec.structs.replace(_run(1).job, measure=Measure(profiled=0)))])
    with refused(BadInput, _run(0).id, _run(1).id, "vision"):
        pair_runs([_run(0)], [_run(1, job=Job(name="j", workload="vision", recipe=RECIPE))])
    with refused(BadInput, 0, 1):
        gate("a", "b", pair_runs([], [_run(1)]), GateRequest(("step_time",), Rule()), untraced)
    with refused(BadInput, "mfu", "step_time"):
        gate("a", "b", _sides(1.0), GateRequest(("mfu",), Rule()), untraced)


def test_runs_that_were_not_interleaved_have_a_caveat() -> None:
    result = pair_runs([_run(0), _run(1)], [_run(2), _run(3), _run(4)])
    assert any("not interleaved" in caveat for caveat in result.caveats)
    assert any("head has 1 run more" in caveat for caveat in result.caveats)
    assert not pair_runs([_run(0), _run(3)], [_run(1), _run(2)]).caveats


def test_metrics_share_one_error_rate() -> None:
    result = gate(
        "a", "b", _sides(1.0, pairs=12), GateRequest(("step_time", "memory", "tokens_per_s"), Rule()), untraced
    )
    assert {verdict.rule.alpha for verdict in result.verdicts} == {0.01 / 3}
    assert result.outcome == "not worse"


@pytest.mark.parametrize(("slower", "expected"), [(1.1, "worse"), (1.0, "not worse")])
def test_pairs_stop_once_the_verdict_is_clear(slower: float, expected: str) -> None:
    rng, count = np.random.default_rng(2), iter(range(100))
    order: list[str] = []

    def measure(sides: Sequence[str]) -> list[Run]:
        order.extend(sides)
        times = [1e8 * (slower if side == "head" else 1.0) for side in sides]
        return [_run(next(count), time * exp(rng.normal(0, 0.005))) for time in times]

    reported: list[int] = []
    request = GateRequest(("step_time",), Rule())
    pairs = interleave_runs(measure, request, Random(3), lambda many, _: reported.append(many))  # noqa: S311
    assert reported == list(range(1, len(pairs) + 1))
    assert 7 <= len(pairs) < 12
    assert gate("a", "b", PairedRuns(tuple(pairs), ()), request, untraced).outcome == expected
    firsts = order[::2]
    assert set(firsts) == {"base", "head"}, "the order is random"
    assert all({first, other} == {"base", "head"} for first, other in zip(order[::2], order[1::2], strict=True))


# What the machine read


def _reading(number: int, **clocks: str) -> Run:
    return _run(number, provenance=Provenance(clocks=clocks))


def test_changed_readings_are_reported_most_significant_first() -> None:
    rng = np.random.default_rng(7)

    def side(number: int, sm: float, watts: float) -> Run:
        clocks = {"sm": f"{sm + rng.normal(0, 5):.0f} MHz", "power": f"{watts + rng.normal(0, 10):.1f} W",
                "load": f"{rng.uniform(0, 3):.2f}", "pstate": "P0", "max": "1980 MHz"}  # fmt: skip
        return _reading(number, **clocks)

    pairs = [Pair(side(2 * at, 1980, 600), side(2 * at + 1, 1740, 500)) for at in range(6)]
    result = find_changed_readings(pairs, 0.01)
    assert [reading.name for reading in result] == ["sm", "power"]
    assert (result[0].unit, round(result[0].before, -1), round(result[0].after, -1)) == ("MHz", 1980, 1740)
    assert "sm of the machine changed from 1,980 MHz to " in sentences.reading(
        msgspec.structs.replace(result[0], before=1980.0)
    )
    assert find_changed_readings(pairs[:2], 0.01) == ()
    always = [Pair(_reading(0, sm="2 MHz"), _reading(1, sm="1 MHz"))] * 3
    assert find_changed_readings(always, 0.01)[0].p_value == 0
    assert find_changed_readings([Pair(_reading(0, sm="2 MHz"), _reading(1, sm="1 GHz"))] * 3, 0.01) == ()


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_p_values_of_readings_match_a_paired_t_test(seed: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(seed)
    was, now = rng.normal(10, 1, (2, 7)).round(3)
    pairs = [Pair(_reading(0, a=f"{w}"), _reading(1, a=f"{n}")) for w, n in zip(was, now, strict=True)]
    (result,) = find_changed_readings(pairs, 1.01)
    assert result.p_value == pytest.approx(stats.ttest_rel(now, was).pvalue, abs=1e-9)


# Bisection


@given(st.integers(1, 12), st.data())
def test_bisect_finds_or_suspects_the_culprit(count: int, data: st.DataObject) -> None:
    commits = [f"{n:040x}" for n in range(count)]
    culprit = data.draw(st.integers(0, count))
    untold = data.draw(st.sets(st.integers(0, max(0, count - 2)), max_size=3)) - {count - 1}

    def judged(commit: str, rule: Rule) -> Verdict:
        at = commits.index(commit)
        result = "unclear" if at in untold else "worse" if at >= culprit else "not worse"
        return Verdict(metric="step_time", outcome=result, pairs=7, change=0.0, low=None, high=None, rule=rule)

    result = bisect("good", commits, judged, Rule(), lambda _: None)
    if culprit == count:
        assert not result.suspects
        assert result.exit_code == 0
        return
    assert commits[culprit] in result.suspects
    assert len(result.suspects) <= 1 + len(untold)
    assert (result.exit_code == 0) == (len(result.suspects) == 1)
    if not untold:
        assert len(result.steps) <= 2 + np.ceil(np.log2(count)) if count > 1 else len(result.steps) == 1


@given(st.integers(1, 60), st.data())
def test_error_rates_of_a_bisection_add_up_to_alpha(count: int, data: st.DataObject) -> None:
    commits = [f"{n:040x}" for n in range(count)]
    outcomes = data.draw(st.lists(st.sampled_from(["unclear", "worse", "not worse"]), min_size=count, max_size=count))
    outcomes[-1] = "worse"
    alphas: list[float] = []

    def judged(commit: str, rule: Rule) -> Verdict:
        alphas.append(rule.alpha)
        result: Any = outcomes[commits.index(commit)]
        return Verdict(metric="step_time", outcome=result, pairs=7, change=0.0, low=None, high=None, rule=rule)

    result = bisect("good", commits, judged, Rule(alpha=0.05), lambda _: None)
    assert result.suspects
    assert sum(alphas) <= 0.05 * (1 + 1e-9)


def test_a_bisection_of_unclear_commits_ends() -> None:
    commits = [f"{n:040x}" for n in range(60)]
    judged_commits: list[str] = []

    def judged(commit: str, rule: Rule) -> Verdict:
        judged_commits.append(commit)
        outcome = "worse" if commit == commits[-1] else "unclear"
        return Verdict(metric="step_time", outcome=outcome, pairs=7, change=0.0, low=None, high=None, rule=rule)

    result = bisect("good", commits, judged, Rule(), lambda _: None)
    assert len(judged_commits) == 14
    assert list(result.suspects) == commits


# The machine's noise


def test_noise_recovers_the_injected_parameters() -> None:
    rng = np.random.default_rng(5)
    runs = [_run(at, 1e8 * exp(rng.normal(0, 0.02))) for at in range(40)]
    result = measure_noise([Pair(*both) for both in zip(runs[::2], runs[1::2], strict=True)], "step_time", Rule())
    assert result.between_runs == pytest.approx(0.02, rel=0.4)
    assert 0.005 <= result.false_alarms <= 0.01
    assert result.modes is None
    assert result.smallest_detected in (0.02, 0.03, 0.05)
    drifting = [_run(at, 1e8 * exp(0.005 * at)) for at in range(20)]
    assert (
        measure_noise(
            [Pair(*both) for both in zip(drifting[::2], drifting[1::2], strict=True)], "step_time", Rule()
        ).drift_p_value
        < 1e-4
    )
    two = [_run(at, 1e8 * (1.2 if at % 3 else 1.0) * exp(rng.normal(0, 0.003))) for at in range(20)]
    modes = measure_noise([Pair(*both) for both in zip(two[::2], two[1::2], strict=True)], "step_time", Rule()).modes
    assert modes is not None
    assert log(modes[1] / modes[0]) == pytest.approx(log(1.2), abs=0.01)
    with refused(BadInput, 1, "--pairs"):
        measure_noise([Pair(runs[0], runs[1])], "step_time", Rule())


@pytest.mark.parametrize(("distance", "are_modes"), [(0.0, False), (4.0, False), (5.9, False), (6.1, True)])
def test_two_modes_are_six_widths_apart(distance: float, are_modes: bool) -> None:
    # The root mean square of the deviations of both groups is 1 % each, so that `distance` is Ashman's D.
    group = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    group *= 0.01 / np.std(group, ddof=1)
    logs = [*group, *(group + 0.01 * distance)]
    runs = [_run(number, 1e8 * exp(value)) for number, value in enumerate(logs)]
    pairs = [Pair(*both) for both in zip(runs[::2], runs[1::2], strict=True)]
    assert (measure_noise(pairs, "step_time", Rule()).modes is not None) == are_modes


def test_runs_of_one_mode_seldom_look_like_two() -> None:
    rng = np.random.default_rng(7)
    bimodal = [_find_modes(rng.normal(0, 0.02, 20)) is not None for _ in range(200)]
    assert sum(bimodal) <= 4  # of 200; a threshold of 3 would report about 150


# Formats


@pytest.mark.parametrize(
    ("share", "expected"),
    [(None, "?"), (-0.5, "-50.0 %"), (-0.0004, "<0.1 %"), (9.994, "+999.4 %"), (1871, "1,872 times")],
)
def test_percent_formatting(share: float | None, expected: str) -> None:
    assert sentences.percent(share) == expected


@pytest.mark.parametrize("name", ["a\u202eb", "a\u200bb\u00adc", "tab\tand\x85"])
def test_formats_for_programs_keep_names_and_text_for_people_shows_them(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainyard.cli.gate.render_gate import render_gate
    from trainyard.cli.support.output import guarded

    hostile = report_gate(msgspec.structs.replace(_gate(1.1), job=name))

    def printed(form: str) -> str:
        with guarded():
            render_gate(hostile, form, False, False)
        text = capsys.readouterr().out
        assert "".join(char for char in text if not char.isprintable() and char != "\n") == ""
        return text

    assert json.loads(printed("github-action-benchmark"))[0]["name"] == f"{name}/step_time"
    assert list(json.loads(printed("bencher"))) == [name]
    assert list(json.loads(printed("asv"))["results"]) == [f"{name}.time_step_time"]
    suite = ElementTree.fromstring(printed("junit"))  # noqa: S314 (our own)
    assert suite[0].attrib["classname"] == f"trainyard.{name}"
    assert name not in printed("markdown")


def test_junit_escapes_characters_that_xml_cannot_hold() -> None:
    hostile = msgspec.structs.replace(_gate(1.1), job="a\x07\ufffe\ud800")
    suite = ElementTree.fromstring(ci_formats.write(hostile, "junit"))  # noqa: S314 (our own)
    assert suite[0].attrib["classname"] == "trainyard.a⟨U+0007⟩⟨U+FFFE⟩⟨U+D800⟩"


def test_every_format_contains_the_verdict(tmp_path: Path) -> None:
    result = _gate(1.1)
    hostile = msgspec.structs.replace(result, job="<b>|x|@all", base="`a`", head="b\x07")
    text = ci_formats.write(hostile, "github")
    assert text.startswith("## 🔴 worse: step time")
    assert "<b>" not in text
    suite = ElementTree.fromstring(ci_formats.write(hostile, "junit"))  # noqa: S314 (our own)
    assert suite.attrib["failures"] == "1"
    assert suite.find("testcase/failure") is not None
    (entry,) = json.loads(ci_formats.write(result, "github-action-benchmark"))
    assert (entry["name"], entry["unit"]) == ("j/step_time", "ns")
    assert json.loads(ci_formats.write(result, "bencher"))["j"]["step_time"]["value"] > 1e8
    asv = json.loads(ci_formats.write(result, "asv"))
    assert asv["version"] == 2
    assert asv["results"]["j.time_step_time"][0][0] == pytest.approx(0.106, rel=0.02)
    theirs = json.loads((Path(__file__).parents[2] / "golden" / "histories" / "asv.json").read_text())
    assert asv["result_columns"] == theirs["result_columns"]
    assert asv.keys() == theirs.keys()
    (tmp_path / "asv.json").write_text(json.dumps(asv))
    assert load(tmp_path / "asv.json", None).values == [asv["results"]["j.time_step_time"][0][0]]
    with refused(UnknownName, "--format junix", "'junit'"):
        ci_formats.write(result, "junix")
    both = gate("a", "b", _sides(1.0), GateRequest(("step_time", "tokens_per_s"), Rule()), untraced)
    with refused(BadInput, "--format github-action-benchmark", "step_time", "tokens_per_s"):
        ci_formats.write(both, "github-action-benchmark")
