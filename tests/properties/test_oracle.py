"""Ledgers and other tools' figures against `tests/oracle.py`, to the nanosecond: recorded traces and random ones."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import oracle
from tests.properties.test_trace_properties import cpu_traces, rank_traces
from tests.trace_maker import write
from trainyard import words
from trainyard.errors import BadInput
from trainyard.trace import reconcile
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.classify.context import PHASES
from trainyard.trace.measure import measure, read

KINDS = list(words.KINDS)
DEVICE = [
    "a100_ddp_resnet.json.gz",
    "diff_control.json.gz",
    "diff_test.json.gz",
    "h100_qwen_0.5b.json.gz",
    "mi300_qwen_0.5b.json.gz",
    "mi300_resnet_ac.json.gz",
    "resnet50_loader0.json.gz",
    "resnet50_loader4.json.gz",
    *(f"v100_dlrm_8ranks/rank-{rank}.json.gz" for rank in range(8)),
]


@pytest.mark.parametrize("name", DEVICE)
def test_a_recorded_trace_is_booked_as_the_oracle_says(name, public_trace):
    agree(public_trace(name))


@pytest.mark.parametrize("name", ["v100_dlrm_8ranks", "cpu_gloo_3ranks"])
@pytest.mark.parametrize("window", ["steps", "all"])
def test_of_many_ranks_every_instant_has_the_owner_the_oracle_names(name, window, public_trace):
    for rank in measure(read([public_trace(name)]), window).ranks:
        owners_agree(rank)


@settings(max_examples=600)
@given(rank_traces())
def test_a_random_trace_is_booked_as_the_oracle_says(tmp_path_factory, document):
    agree(write(tmp_path_factory.mktemp("t"), document))


@settings(max_examples=500)
@given(rank_traces(), st.integers(0, 999))
def test_stamps_with_fractions_of_a_us_reconcile_too(tmp_path_factory, document, shift):
    """Times as large as µs, shifted off the whole µs: what HTA rounds, and where it counts less than nothing."""
    for event in document["traceEvents"]:
        event["ts"] = f"{round(event['ts'] * 1000) * 137 // 100 * 10 + shift:04d}"
        event["ts"] = float(f"{event['ts'][:-3]}.{event['ts'][-3:]}")
    figures_agree(write(tmp_path_factory.mktemp("t"), document))


@settings(max_examples=500)
@given(st.one_of(rank_traces(), cpu_traces()), st.sampled_from(["steps", "all"]))
def test_of_a_random_trace_every_instant_has_the_owner_the_oracle_names(tmp_path_factory, document, window):
    (rank,) = measure(read([write(tmp_path_factory.mktemp("t"), document)]), window).ranks
    owners_agree(rank)


@settings(max_examples=300)
@given(rank_traces(0, 2), rank_traces(1, 2))
def test_of_random_ranks_together_too(tmp_path_factory, first, second):
    folder = tmp_path_factory.mktemp("t")
    files = [write(folder, first, "0.json"), write(folder, second, "1.json")]
    for rank in measure(read(files)).ranks:
        owners_agree(rank)


def agree(path: Path) -> None:
    """One rank's file in each window: ours by steps, ours as a whole, HTA's, TraceLens'."""
    found = oracle.read(path)
    pieces = oracle.of_kind(found.pieces, oracle.ours)
    (whole, _) = measure(read([path]), "all").ledgers
    by_step = measure(read([path])).ledgers[:-1]
    stretches = oracle.parts(found) if found.marks else [("window", *found.window)]
    assert [ledger.scope.steps for ledger in by_step] == [(label,) for label, _, _ in stretches]
    for ledger, (begin, end) in [
        (whole, found.window),
        *((ledger, (begin, end)) for ledger, (_, begin, end) in zip(by_step, stretches)),
    ]:
        answer = oracle.breakdown(pieces, begin, end)
        kinds = ledger.by_kind()
        assert ledger.wall_ns == end - begin
        assert {kind: ledger.unions.get(kind, 0) for kind in oracle.KINDS} == answer.unions
        assert {kind: kinds.get(kind, 0) for kind in oracle.KINDS} == answer.owned
        assert sum(ns for kind, ns in kinds.items() if kind not in oracle.KINDS) == end - begin - answer.busy
    figures_agree(path)


def figures_agree(path: Path) -> None:
    found = oracle.read(path)
    (events,) = read([path])
    for tool, answer in (("hta", oracle.hta), ("tracelens", oracle.tracelens)):
        try:
            got = {figure.name: figure.ns for figure in reconcile.TOOLS[tool](events).figures}
        except BadInput:
            with pytest.raises((IndexError, ValueError)):  # it has nothing to add up either
                answer(found)
            continue
        assert got == answer(found), tool


def owners_agree(rank: RankTrace) -> None:
    """Every account's ns and hidden ns, but for the idle device's: nothing but those it ranks above can own theirs."""
    one, waits, keys = rank.classified, rank.waits, rank.keys
    places = keys.precedence().tolist()
    columns = zip(
        [*one.start.tolist(), *waits.start.tolist()],
        [*one.stop.tolist(), *waits.stop.tolist()],
        [*one.key.tolist(), *waits.key.tolist()],
    )
    pairs = keys.pairs
    kind_of = [KINDS.index(account.kind) for account, _ in pairs]
    booked = [oracle.Interval(start, stop, kind_of[key], places[key], key) for start, stop, key in columns]
    seen = {key for key, kind in enumerate(kind_of) if kind <= KINDS.index("copy") or not len(rank.events.work)}
    for part, ledger in zip(rank.parts, rank.ledgers):
        owned, lives = oracle.owners(booked, rank.parts[0].start, part.start, part.stop)
        got: Counter = Counter()
        hidden: Counter = Counter()
        for entry in ledger.entries:
            got[entry.account, entry.phase] += entry.ns
            hidden[entry.account, entry.phase] += entry.hidden_ns
        for key in seen:
            account, phase = pairs[key]
            name = account, PHASES[phase]
            assert got[name] == owned[key], name
            assert hidden[name] == lives[key] - owned[key], name
