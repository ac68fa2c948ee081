"""The gate: a sequential test of pairs, what it says, which account did it, and who takes turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from math import exp, log, log1p
from pathlib import Path
from random import Random
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
from trainyard.compare.gate.changed_accounts import find_changed_accounts, holm
from trainyard.compare.gate.changed_operations import rank_operations
from trainyard.compare.gate.gate_result import GateRequest, GateResult, gate
from trainyard.compare.gate.interleave import take_turns
from trainyard.compare.gate.machine_noise import noise
from trainyard.compare.gate.machine_readings import moved
from trainyard.compare.gate.pairs import Pair, PairedRuns, paired
from trainyard.compare.gate.verdict import Rule, Verdict, judge, least
from trainyard.compare.history.sources.imported import load
from trainyard.errors import BadInput, NotEnoughEvidence, UnknownName, WrongRunState
from trainyard.events import CALL, OperandShape
from trainyard.job import Job, Measure, Model, Recipe
from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.record import Provenance, Run, Sample
from trainyard.report.gate import ci_formats, sentences

SIZES = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=9)
MATMUL, REDUCE, GAP = (
    Account.parse(one) for one in ("compute/matmul", "comm/all_reduce@dp_replicate", "launch_gap/python")
)
RECIPE = Recipe(seq_len=8, tokens_per_step=8)


# The sequential test


@settings(max_examples=40)
@given(SIZES, st.sampled_from([0.01, 0.05, 0.1, 0.2]), st.booleans())
def test_of_all_patterns_of_signs_no_more_stop_than_may(sizes: list[float], alpha: float, rounded: bool) -> None:
    """The error rate, counted: whatever the sizes, ties and zeros among them."""
    some = [round(one, 1) for one in sizes] if rounded else sizes
    cap = max(len(some), sequential_test.first_look(alpha))
    stopped = sum(
        bool(sequential_test.stops([size * sign for size, sign in zip(some, pattern, strict=True)], alpha, cap))
        for pattern in product((-1, 1), repeat=len(some))
    )
    assert stopped <= alpha * 2 ** len(some)
    *_, last = sequential_test.looks(np.array(some), alpha, cap)
    assert last.alarms == stopped / 2 ** len(some)


@given(SIZES.filter(lambda sizes: len(set(sizes)) == len(sizes)))
def test_ranks_are_those_of_sorting(sizes: list[float]) -> None:
    expected = [2 * (sorted(sizes).index(size) + 1) for size in sizes]
    assert sequential_test.doubled_ranks(np.array(sizes)).tolist() == expected


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.floats(0.1, 10))
def test_a_unit_does_not_matter(differences: list[float], times: float) -> None:
    exact = [round(one, 3) for one in differences]
    scaled = [one * 2.0 ** round(times) for one in exact]
    assert sequential_test.stops(exact, 0.05, 12) == sequential_test.stops(scaled, 0.05, 12)


def test_the_first_look_is_where_one_pattern_is_rare_enough() -> None:
    assert sequential_test.first_look(0.01) == 7
    assert sequential_test.first_look(0.05) == 5
    assert sequential_test.stops([0.1 * n for n in range(1, 8)], 0.01, 20) == 7
    assert not sequential_test.stops([0.1 * n for n in range(1, 7)], 0.01, 20)
    assert not sequential_test.stops([-0.1] * 20, 0.01, 20)
    assert not sequential_test.stops([0.0] * 20, 0.01, 20)
    with refused(BadInput, 6, 0.01, 7, 24):
        sequential_test.spent(0.01, 6)


@pytest.mark.parametrize("noise_of", ["normal", "heavy", "modes", "drift", "carried"])
def test_false_alarms_are_as_rare_as_said(noise_of: str) -> None:
    rng = np.random.default_rng(7)
    alarms = sum(bool(sequential_test.stops(_null(noise_of, rng, 12), 0.05, 12)) for _ in range(1500))
    assert alarms / 1500 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 1500)


def _null(kind: str, rng: np.random.Generator, count: int) -> np.ndarray:
    """Differences of pairs whose order was drawn by lot."""
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
def test_a_verdict_is_what_its_bounds_say(differences: list[float], alpha: float) -> None:
    rule = Rule(alpha=alpha, cap=12)
    found = judge("step_time", differences, rule)
    assert found.pairs <= len(differences)
    if found.says == "worse":
        assert found.low is not None
        assert found.low >= rule.negligible - 1e-12
    if found.says == "not worse":
        assert found.high is not None
        assert found.high <= rule.margin + 1e-9
    assert (found.more is None) == (found.says != "unclear")


@given(st.lists(st.floats(-0.2, 0.2), min_size=1, max_size=11), st.sampled_from([0.01, 0.05]))
@example([0.0, 0.0, 0.0, 0.0, 0.125, -0.125, -0.125, -0.125], 0.05)
@example([0.04, 0.04, 0.04, 0.04, -0.04, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 0.05)
def test_bounds_stay_shown_and_a_new_one_is_on_its_side_of_the_change(differences: list[float], alpha: float) -> None:
    """A bound holds at any look, and `change` is of all pairs: only the look that shows a bound has the change within
    it."""
    rule, values = Rule(alpha=alpha, cap=12), np.array(differences)
    change = float(np.median([(one + other) / 2 for at, one in enumerate(values) for other in values[at:]]))
    for sign in (1, -1):
        before, now = least(sign * values[:-1], rule), least(sign * values, rule)
        if before is not None:
            assert now is not None
            assert now >= before - 1e-12
        if now is not None and now != before:
            assert now <= sign * change + 1e-12


def test_alike_is_not_worse_and_what_is_not_a_number_is_refused() -> None:
    assert judge("step_time", [0.0] * 7, Rule()).says == "not worse"
    assert judge("step_time", [0.05] * 7, Rule()).says == "worse"
    assert judge("step_time", [0.05] * 6, Rule()).says == "unclear"
    assert judge("memory", [1e-6] * 20, Rule()).says == "not worse", "sure, and nobody's concern"
    with refused(BadInput, "step_time", "nan"):
        judge("step_time", [0.0, float("nan")], Rule())
    for bad in ({"margin": 0.0}, {"margin": 3.0}, {"alpha": 0.0}, {"alpha": 0.5}, {"cap": 99}):
        with refused(BadInput, *(f"{value:g}" for value in bad.values())):
            Rule(**bad)


def test_what_would_settle_it_does() -> None:
    rng = np.random.default_rng(1)
    some = rng.normal(log1p(0.05), 0.02, 20)
    first = judge("step_time", some[:5].tolist(), Rule())
    assert first.says == "unclear"
    assert first.more
    assert judge("step_time", some[: 5 + first.more + 3].tolist(), Rule()).says == "worse"


# Why


@given(st.floats(0.05, 60))
def test_digamma_and_trigamma_are_scipys(x: float) -> None:
    special = pytest.importorskip("scipy.special")
    assert moderated_variance.digamma(x) == pytest.approx(special.digamma(x), rel=1e-9, abs=1e-10)
    assert moderated_variance.trigamma(x) == pytest.approx(special.polygamma(1, x), rel=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_holm_is_holm(chances: list[float]) -> None:
    """By its definition: the smallest first, each held against what is left."""
    adjusted = holm(np.array(chances))
    alpha = 0.05
    left, rejected = sorted(range(len(chances)), key=lambda at: chances[at]), set()
    while left and chances[left[0]] * len(left) <= alpha:
        rejected.add(left.pop(0))
    assert {at for at, one in enumerate(adjusted) if one <= alpha} == rejected


def _ledgers(seed: int, pairs: int, planted: dict[str, float], clocks: float = 1.0) -> list[tuple[dict, dict]]:
    rng = np.random.default_rng(seed)
    shares = {f"a{n}": share for n, share in enumerate([30, 20, 12, 10, 8, 6, 4, 3, 2, 2, 2, 1])}

    def side(times: dict[str, float], clock: float) -> dict[str, float]:
        alike = exp(rng.normal(0, 0.015)) * clock
        return {
            one: 1e6 * share * alike * times.get(one, 1) * exp(rng.normal(0, 0.006)) for one, share in shares.items()
        }

    return [(side({}, 1.0), side(planted, clocks)) for _ in range(pairs)]


def test_a_tenth_more_of_a_fiftieth_of_the_step_is_named() -> None:
    found = [find_changed_accounts(_ledgers(seed, 5, {"a9": 1.1}), 0.01) for seed in range(40)]
    assert sum([one.account for one in each.named] == ["a9"] for each in found) >= 38


def test_slower_clocks_are_nobodys_fault() -> None:
    found = find_changed_accounts(_ledgers(3, 8, {}, clocks=1.1), 0.01)
    assert not found.named
    assert found.common.slower
    assert found.common.low > 0.03
    few = [({"a": 1.0, "b": 1.0}, {"a": 1.1 + at / 1e3, "b": 1.1}) for at in range(5)]
    assert not find_changed_accounts(few, 0.01).common.slower, "two accounts have nothing in common that could be told"


def test_what_only_moved_is_no_regression() -> None:
    found = find_changed_accounts(_ledgers(4, 6, {"a1": 0.5, "a3": 2.0}), 0.01)
    assert {one.account for one in found.accounts if one.shifted} == {"a1", "a3"}
    assert not found.named
    gone = [({**base, "b": 0.0}, {**head, "a2": 0.0, "b": head["a2"]}) for base, head in _ledgers(5, 6, {})]
    assert {one.account for one in find_changed_accounts(gone, 0.01).accounts if one.shifted} == {"a2", "b"}


def test_the_likeliest_account_is_told_where_none_is_sure() -> None:
    found = find_changed_accounts(_ledgers(3, 5, {}), 0.01)
    first, *others = (msgspec.structs.replace(one, account="compute/matmul", chance=1.0) for one in found.accounts)
    likely = msgspec.structs.replace(first, account="compute/elementwise", ns=8.8e6, change=0.122, chance=0.025)
    told = sentences.culprit(msgspec.structs.replace(found, accounts=(*others, likely)))
    assert told.startswith("No account is surely the one; likeliest Elementwise, +8.8")
    assert "by chance in 2.5 %" in told
    faster = msgspec.structs.replace(likely, ns=-8.8e6)
    for accounts in ((*others, faster), tuple(others)):
        assert sentences.culprit(msgspec.structs.replace(found, accounts=accounts)) == "No single account stands out."


def test_two_pairs_have_no_spread() -> None:
    with refused(NotEnoughEvidence, 2, 3):
        find_changed_accounts(_ledgers(1, 2, {}), 0.01)


# Runs


def _run(number: int, step_ns: float = 1e8, accounts: dict[Account, int] | None = None, **changed: Any) -> Run:
    model = Model(layers=2, width=64, ffn=192, heads=4, kv_heads=4, head_dim=16, vocab=256)
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

    def one(number: int, slow: float) -> Run:
        own = {
            each: round(ns * exp(rng.normal(0, 0.004)) * (slow if each == MATMUL else 1))
            for each, ns in accounts.items()
        }
        return _run(number, float(sum(own.values())), own)

    base, head = [], []
    for at in range(pairs):
        base.append(one(2 * at, 1.0))
        head.append(one(2 * at + 1, times))
    return paired(base, head)


def untraced(_: Run) -> list[Booked]:
    return []


def _gate(times: float, **more: Any) -> GateResult:
    return gate("main", "topic", _sides(times, **more), GateRequest(("step_time",), Rule()), untraced)


def test_the_account_that_did_it_is_named() -> None:
    worse = _gate(1.1)
    assert worse.says == "worse"
    assert worse.exit_code == 1
    assert "Matmul" in sentences.headline(worse)
    alike = _gate(1.0)
    assert alike.says == "not worse"
    assert alike.exit_code == 0
    few = _gate(1.1, pairs=3)
    assert few.exit_code == 3
    assert "more would settle it" in sentences.headline(few)


def _traced(slower: float) -> Booked:
    """Two products of one operation, of unlike shapes, of which one is slower under a kernel of another name; launched
    by a call under it."""
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


def test_a_change_has_an_address() -> None:
    base = rank_operations(_traced(1.0), "compute/matmul")
    assert base == {"aten::mm [8, 64] x [64, 32]": 400 * US, "aten::mm [64, 8] x [8, 8]": 100 * US}
    assert sum(base.values()) < STEP
    rng = np.random.default_rng(0)

    def profile(run: Run) -> list[Booked]:
        return [_traced((1.3 if int(run.id, 16) % 2 else 1.0) * exp(rng.normal(0, 0.002)))]

    found = gate("a", "b", _sides(1.1), GateRequest(("step_time",), Rule()), profile)
    (inside,) = found.addresses.values()
    assert [one.account for one in inside.named] == ["aten::mm [8, 64] x [64, 32]"]
    assert "aten::mm [8, 64] x [64, 32] +1" in sentences.address("compute/matmul", inside)
    assert "aten::mm" in ci_formats.write(found, "markdown")
    assert not gate("a", "b", _sides(1.0), GateRequest(("step_time",), Rule()), profile).addresses


def test_runs_that_are_not_alike_are_refused() -> None:
    about = Provenance(driver={"nvidia.0": "550"}, code={"sha": "a" * 40})
    base = [_run(0, provenance=about)]
    other = _run(1, provenance=Provenance(driver={"nvidia.0": "560"}, code={"sha": "b" * 40}))
    with refused(BadInput, "driver nvidia.0", 550, 560, "--across driver"):
        paired(base, [other])
    assert paired(base, [other], ["driver"]).pairs
    with refused(UnknownName, "--across drivers", "'driver'"):
        paired(base, [other], ["drivers"])
    failed = _run(2, state="failed", failure="rank 1 died")
    with refused(WrongRunState, failed.id, "failed", "rank 1 died"):
        paired(base, [failed])
    with refused(BadInput, base[0].id, "base", "head"):
        paired(base, base)
    with refused(BadInput, _run(0).id, _run(1).id, "measure profiled", 0):
        paired([_run(0)], [_run(1, job=msgspec.structs.replace(_run(1).job, measure=Measure(profiled=0)))])
    with refused(BadInput, _run(0).id, _run(1).id, "vision"):
        paired([_run(0)], [_run(1, job=Job(name="j", workload="vision", recipe=RECIPE))])
    with refused(BadInput, 0, 1):
        gate("a", "b", paired([], [_run(1)]), GateRequest(("step_time",), Rule()), untraced)
    with refused(BadInput, "mfu", "step_time"):
        gate("a", "b", _sides(1.0), GateRequest(("mfu",), Rule()), untraced)


def test_runs_that_took_no_turns_are_said_to() -> None:
    found = paired([_run(0), _run(1)], [_run(2), _run(3), _run(4)])
    assert any("not interleaved" in caveat for caveat in found.caveats)
    assert any("head has 1 run more" in caveat for caveat in found.caveats)
    assert not paired([_run(0), _run(3)], [_run(1), _run(2)]).caveats


def test_metrics_share_one_error() -> None:
    found = gate(
        "a", "b", _sides(1.0, pairs=12), GateRequest(("step_time", "memory", "tokens_per_s"), Rule()), untraced
    )
    assert {one.rule.alpha for one in found.verdicts} == {0.01 / 3}
    assert found.says == "not worse"


@pytest.mark.parametrize(("slower", "said"), [(1.1, "worse"), (1.0, "not worse")])
def test_turns_end_as_soon_as_it_is_known(slower: float, said: str) -> None:
    rng, count = np.random.default_rng(2), iter(range(100))
    order: list[str] = []

    def measure(sides: Sequence[str]) -> list[Run]:
        order.extend(sides)
        times = [1e8 * (slower if side == "head" else 1.0) for side in sides]
        return [_run(next(count), time * exp(rng.normal(0, 0.005))) for time in times]

    heard: list[int] = []
    asked = GateRequest(("step_time",), Rule())
    pairs = take_turns(measure, asked, Random(3), lambda many, _: heard.append(many))  # noqa: S311
    assert heard == list(range(1, len(pairs) + 1))
    assert 7 <= len(pairs) < 12
    assert gate("a", "b", PairedRuns(tuple(pairs), ()), asked, untraced).says == said
    firsts = order[::2]
    assert set(firsts) == {"base", "head"}, "which comes first is drawn by lot"
    assert all({one, other} == {"base", "head"} for one, other in zip(order[::2], order[1::2], strict=True))


# What the machine read


def _reading(number: int, **clocks: str) -> Run:
    return _run(number, provenance=Provenance(clocks=clocks))


def test_readings_that_moved_are_named_the_surest_first_and_no_others() -> None:
    rng = np.random.default_rng(7)

    def side(number: int, sm: float, watts: float) -> Run:
        said = {"sm": f"{sm + rng.normal(0, 5):.0f} MHz", "power": f"{watts + rng.normal(0, 10):.1f} W",
                "load": f"{rng.uniform(0, 3):.2f}", "pstate": "P0", "max": "1980 MHz"}  # fmt: skip
        return _reading(number, **said)

    pairs = [Pair(side(2 * at, 1980, 600), side(2 * at + 1, 1740, 500)) for at in range(6)]
    found = moved(pairs, 0.01)
    assert [one.name for one in found] == ["sm", "power"]
    assert (found[0].unit, round(found[0].was, -1), round(found[0].now, -1)) == ("MHz", 1980, 1740)
    assert "the machine's sm: 1,980 MHz" in sentences.reading(msgspec.structs.replace(found[0], was=1980.0))
    assert moved(pairs[:2], 0.01) == ()
    always = [Pair(_reading(0, sm="2 MHz"), _reading(1, sm="1 MHz"))] * 3
    assert moved(always, 0.01)[0].chance == 0
    assert moved([Pair(_reading(0, sm="2 MHz"), _reading(1, sm="1 GHz"))] * 3, 0.01) == ()


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_chances_of_readings_are_those_of_a_paired_t_test(seed: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(seed)
    was, now = rng.normal(10, 1, (2, 7)).round(3)
    pairs = [Pair(_reading(0, a=f"{w}"), _reading(1, a=f"{n}")) for w, n in zip(was, now, strict=True)]
    (found,) = moved(pairs, 1.01)
    assert found.chance == pytest.approx(stats.ttest_rel(now, was).pvalue, abs=1e-9)


# Bisection


@given(st.integers(1, 12), st.data())
def test_the_culprit_is_found_or_stays_a_suspect(count: int, data: st.DataObject) -> None:
    commits = [f"{n:040x}" for n in range(count)]
    culprit = data.draw(st.integers(0, count))
    untold = data.draw(st.sets(st.integers(0, max(0, count - 2)), max_size=3)) - {count - 1}

    def judged(commit: str, rule: Rule) -> Verdict:
        at = commits.index(commit)
        said = "unclear" if at in untold else "worse" if at >= culprit else "not worse"
        return Verdict(metric="step_time", says=said, pairs=7, change=0.0, low=None, high=None, rule=rule)

    found = bisect("good", commits, judged, Rule(), lambda _: None)
    if culprit == count:
        assert not found.suspects
        assert found.exit_code == 0
        return
    assert commits[culprit] in found.suspects
    assert len(found.suspects) <= 1 + len(untold)
    assert (found.exit_code == 0) == (len(found.suspects) == 1)
    if not untold:
        assert len(found.steps) <= 2 + np.ceil(np.log2(count)) if count > 1 else len(found.steps) == 1


# The machine's noise


def test_noise_says_what_was_put_into_it() -> None:
    rng = np.random.default_rng(5)
    runs = [_run(at, 1e8 * exp(rng.normal(0, 0.02))) for at in range(40)]
    found = noise([Pair(*both) for both in zip(runs[::2], runs[1::2], strict=True)], "step_time", Rule())
    assert found.between == pytest.approx(0.02, rel=0.4)
    assert 0.005 <= found.false_alarms <= 0.01
    assert found.modes is None
    assert found.smallest in (0.02, 0.03, 0.05)
    drifting = [_run(at, 1e8 * exp(0.005 * at)) for at in range(20)]
    assert (
        noise(
            [Pair(*both) for both in zip(drifting[::2], drifting[1::2], strict=True)], "step_time", Rule()
        ).drift_chance
        < 1e-4
    )
    two = [_run(at, 1e8 * (1.2 if at % 3 else 1.0) * exp(rng.normal(0, 0.003))) for at in range(20)]
    modes = noise([Pair(*both) for both in zip(two[::2], two[1::2], strict=True)], "step_time", Rule()).modes
    assert modes is not None
    assert log(modes[1] / modes[0]) == pytest.approx(log(1.2), abs=0.01)
    with refused(BadInput, 1, "--pairs"):
        noise([Pair(runs[0], runs[1])], "step_time", Rule())


# Formats


@pytest.mark.parametrize(
    ("share", "said"), [(None, "?"), (-0.5, "-50.0 %"), (9.994, "+999.4 %"), (1871, "1,872 times")]
)
def test_a_share_is_said_as_people_read_it(share: float | None, said: str) -> None:
    assert sentences.percent(share) == said


@pytest.mark.parametrize("name", ["a\u202eb", "a\u200bb\u00adc", "tab\tand\x85"])
def test_formats_for_programs_keep_names_and_text_for_people_shows_them(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainyard.cli.gate.print_result import show
    from trainyard.cli.support.output import guarded

    hostile = msgspec.structs.replace(_gate(1.1), job=name)

    def printed(form: str) -> str:
        with guarded():
            show(hostile, form, False)
        text = capsys.readouterr().out
        assert "".join(char for char in text if not char.isprintable() and char != "\n") == ""
        return text

    assert json.loads(printed("github-action-benchmark"))[0]["name"] == f"{name}/step_time"
    assert list(json.loads(printed("bencher"))) == [name]
    assert list(json.loads(printed("asv"))["results"]) == [f"{name}.time_step_time"]
    suite = ElementTree.fromstring(printed("junit"))  # noqa: S314 (our own)
    assert suite[0].attrib["classname"] == f"trainyard.{name}"
    assert name not in printed("markdown")


def test_a_test_report_shows_what_xml_cannot_hold() -> None:
    hostile = msgspec.structs.replace(_gate(1.1), job="a\x07\ufffe\ud800")
    suite = ElementTree.fromstring(ci_formats.write(hostile, "junit"))  # noqa: S314 (our own)
    assert suite[0].attrib["classname"] == "trainyard.a⟨U+0007⟩⟨U+FFFE⟩⟨U+D800⟩"


def test_every_format_says_the_verdict(tmp_path: Path) -> None:
    found = _gate(1.1)
    hostile = msgspec.structs.replace(found, job="<b>|x|@all", base="`a`", head="b\x07")
    text = ci_formats.write(hostile, "github")
    assert text.startswith("## 🔴 worse: step time")
    assert "<b>" not in text
    suite = ElementTree.fromstring(ci_formats.write(hostile, "junit"))  # noqa: S314 (our own)
    assert suite.attrib["failures"] == "1"
    assert suite.find("testcase/failure") is not None
    (entry,) = json.loads(ci_formats.write(found, "github-action-benchmark"))
    assert (entry["name"], entry["unit"]) == ("j/step_time", "ns")
    assert json.loads(ci_formats.write(found, "bencher"))["j"]["step_time"]["value"] > 1e8
    asv = json.loads(ci_formats.write(found, "asv"))
    assert asv["version"] == 2
    assert asv["results"]["j.time_step_time"][0][0] == pytest.approx(0.106, rel=0.02)
    theirs = json.loads((Path(__file__).parents[2] / "golden" / "histories" / "asv.json").read_text())
    assert asv["result_columns"] == theirs["result_columns"]
    assert asv.keys() == theirs.keys()
    (tmp_path / "asv.json").write_text(json.dumps(asv))
    assert load(tmp_path / "asv.json", None).values == [asv["results"]["j.time_step_time"][0][0]]
    with refused(UnknownName, "--format junix", "'junit'"):
        ci_formats.write(found, "junix")
    both = gate("a", "b", _sides(1.0), GateRequest(("step_time", "tokens_per_s"), Rule()), untraced)
    with refused(BadInput, "--format github-action-benchmark", "step_time", "tokens_per_s"):
        ci_formats.write(both, "github-action-benchmark")
