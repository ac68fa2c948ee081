"""Ledgers and other tools' figures equal those of `tests/oracle.py` exactly, on recorded and random traces."""

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
def test_recorded_traces_match_the_oracle(name, public_trace):
    check_ledgers(public_trace(name))


@pytest.mark.parametrize("name", ["v100_dlrm_8ranks", "cpu_gloo_3ranks"])
@pytest.mark.parametrize("window", ["steps", "all"])
def test_owners_in_recorded_multi_rank_traces_match_the_oracle(name, window, public_trace):
    for rank in measure(read([public_trace(name)]), window).ranks:
        check_owners(rank)


@settings(max_examples=300)
@given(rank_traces())
def test_random_traces_match_the_oracle(tmp_path_factory, document):
    check_ledgers(write(tmp_path_factory.mktemp("t"), document))


@settings(max_examples=250)
@given(rank_traces(), st.integers(0, 999))
def test_fractional_microseconds_reconcile(tmp_path_factory, document, shift):
    """Times shifted off whole µs, which HTA rounds; some of its figures become negative."""
    for event in document["traceEvents"]:
        event["ts"] = f"{round(event['ts'] * 1000) * 137 // 100 * 10 + shift:04d}"
        event["ts"] = float(f"{event['ts'][:-3]}.{event['ts'][-3:]}")
    check_figures(write(tmp_path_factory.mktemp("t"), document))


@settings(max_examples=250)
@given(st.one_of(rank_traces(), cpu_traces()), st.sampled_from(["steps", "all"]))
def test_owners_in_random_traces_match_the_oracle(tmp_path_factory, document, window):
    (rank,) = measure(read([write(tmp_path_factory.mktemp("t"), document)]), window).ranks
    check_owners(rank)


@settings(max_examples=150)
@given(rank_traces(0, 2), rank_traces(1, 2))
def test_owners_in_random_multi_rank_traces_match_the_oracle(tmp_path_factory, first, second):
    folder = tmp_path_factory.mktemp("t")
    files = [write(folder, first, "0.json"), write(folder, second, "1.json")]
    for rank in measure(read(files)).ranks:
        check_owners(rank)


def check_ledgers(path: Path) -> None:
    """Compares one rank's file: our ledgers by step and of the whole window, HTA's and TraceLens' figures."""
    trace = oracle.read(path)
    pieces = oracle.of_kind(trace.pieces, oracle.ours)
    (whole, _) = measure(read([path]), "all").ledgers
    by_step = measure(read([path])).ledgers[:-1]
    stretches = oracle.parts(trace) if trace.marks else [("window", *trace.window)]
    assert [ledger.scope.steps for ledger in by_step] == [(label,) for label, _, _ in stretches]
    for ledger, (begin, end) in [
        (whole, trace.window),
        *((ledger, (begin, end)) for ledger, (_, begin, end) in zip(by_step, stretches)),
    ]:
        answer = oracle.breakdown(pieces, begin, end)
        kinds = ledger.by_kind()
        assert ledger.wall_ns == end - begin
        assert {kind: ledger.unions.get(kind, 0) for kind in oracle.KINDS} == answer.unions
        assert {kind: kinds.get(kind, 0) for kind in oracle.KINDS} == answer.owned
        assert sum(ns for kind, ns in kinds.items() if kind not in oracle.KINDS) == end - begin - answer.busy
    check_figures(path)


def check_figures(path: Path) -> None:
    trace = oracle.read(path)
    (events,) = read([path])
    for tool, answer in (("hta", oracle.hta), ("tracelens", oracle.tracelens)):
        try:
            got = {figure.name: figure.ns for figure in reconcile.TOOLS[tool](events).figures}
        except BadInput:
            with pytest.raises((IndexError, ValueError)):  # the oracle has nothing to sum either
                answer(trace)
            continue
        assert got == answer(trace), tool


def check_owners(rank: RankTrace) -> None:
    """Compares ns and hidden ns of every account except idle time, which only owns what no other account does."""
    classified, waits, keys = rank.classified, rank.waits, rank.keys
    places = keys.precedence().tolist()
    columns = zip(
        [*classified.start.tolist(), *waits.start.tolist()],
        [*classified.stop.tolist(), *waits.stop.tolist()],
        [*classified.key.tolist(), *waits.key.tolist()],
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
