"""Invariants of ledgers: entries always sum to the wall time, and unbalanced ledgers cannot be created."""

import re
from collections import Counter
from copy import copy, deepcopy
from fractions import Fraction

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.properties.strategies import accounts, ledgers
from tests.refused import refused
from trainyard import words
from trainyard.errors import BadLedger, UnknownName
from trainyard.ledger import Account, Entry, Ledger, Scope, diff, from_json, mean, to_json

# Construction, decoding and replacement all check the balance


@given(ledgers(), st.integers(-(2**50), 2**50).filter(bool))
def test_unbalanced_ledgers_cannot_be_created(ledger, error):
    wall = ledger.wall_ns + error
    values = (wall,) if wall < 0 else (f"{ledger.wall_ns:,}", f"{wall:,}", f"{-error:+,}")
    with refused(BadLedger, *values):
        Ledger(wall_ns=wall, entries=ledger.entries)
    with refused(BadLedger, *values):
        msgspec.structs.replace(ledger, wall_ns=wall)
    document = msgspec.json.decode(to_json([ledger]))
    document["ledgers"][0]["wall_ns"] = wall
    with refused(BadLedger, "$.ledgers[0]", *values):
        from_json(msgspec.json.encode(document))


@given(ledgers().filter(lambda ledger: ledger.entries))
def test_duplicate_account_in_a_phase_is_refused(ledger):
    twice = (*ledger.entries, ledger.entries[0])
    with refused(BadLedger, ledger.entries[0].account, ledger.entries[0].phase):
        Ledger(wall_ns=sum(entry.ns for entry in twice), entries=twice)


@given(accounts(), st.sampled_from(["ns", "hidden_ns", "count"]), st.integers(max_value=-1))
def test_negative_entry_fields_are_refused(account, field, value):
    with refused(BadLedger, account, field, value):
        Entry(account=account, **{"ns": 0, field: value})
    with refused(BadLedger, account, field, value):
        msgspec.structs.replace(Entry(account=account, ns=0), **{field: value})


def test_a_ledger_of_another_schema_is_refused():
    with refused(BadLedger, "trainyard/ledger/99"):
        Ledger(wall_ns=0, entries=(), schema="trainyard/ledger/99")


@given(st.lists(ledgers(), max_size=3))
def test_json_round_trip(several):
    assert from_json(to_json(several)) == tuple(several)


@given(st.binary() | st.text().map(str.encode) | st.just(b'{"schema": "trainyard/ledgers/2", "ledgers": []}'))
def test_invalid_data_raises_only_bad_ledger(data):
    with pytest.raises(BadLedger):
        from_json(data)


# Sums


@given(ledgers())
def test_all_totals_sum_to_the_wall_time(ledger):
    for totals in (ledger.by_account(), ledger.by_kind(), ledger.by_phase()):
        assert sum(totals.values()) == ledger.wall_ns
    assert 0 <= ledger.unrecognised_ns <= ledger.wall_ns


@given(ledgers())
def test_totals_are_in_the_order_of_the_words(ledger):
    kinds, phases = list(words.KINDS), list(words.PHASES)
    assert list(ledger.by_kind()) == sorted(ledger.by_kind(), key=kinds.index)
    assert list(ledger.by_phase()) == sorted(ledger.by_phase(), key=phases.index)
    assert Counter(ledger.sorted_entries()) == Counter(ledger.entries)


# Difference


@given(ledgers(), ledgers(basis="predicted"))
def test_changes_sum_to_the_change_in_wall_time(before, after):
    changes = diff(before, after)
    assert sum(change.ns for change in changes) == after.wall_ns - before.wall_ns
    assert sum(change.before_ns for change in changes) == before.wall_ns
    assert len({change.account for change in changes}) == len(changes)


@given(ledgers(), ledgers())
def test_the_difference_is_antisymmetric(before, after):
    there = {change.account: change.ns for change in diff(before, after)}
    back = {change.account: -change.ns for change in diff(after, before)}
    assert there == back


@given(ledgers(), ledgers())
def test_diff_of_single_ledgers_is_never_better_or_worse(before, after):
    assert {change.verdict for change in diff(before, after)} <= {"same", "unknown"}
    assert {change.verdict for change in diff(before, before)} <= {"same"}


# Mean


@given(st.lists(ledgers(), min_size=1, max_size=7))
def test_mean_balances_and_rounds_by_under_a_nanosecond(several):
    n = len(several)
    middle = mean(several)
    assert middle.wall_ns == sum(ledger.wall_ns for ledger in several) // n
    exact: Counter[tuple[Account, str]] = Counter()
    for ledger in several:
        exact.update({(entry.account, entry.phase): entry.ns for entry in ledger.entries})
    assert {(entry.account, entry.phase) for entry in middle.entries} == set(exact)
    for entry in middle.entries:
        assert abs(entry.ns - Fraction(exact[entry.account, entry.phase], n)) < 1


@given(ledgers(), st.integers(1, 5))
def test_mean_of_copies_is_the_ledger(ledger, n):
    middle = mean([ledger] * n)
    assert middle.wall_ns == ledger.wall_ns
    assert Counter(middle.entries) == Counter(ledger.entries)
    assert middle.unions == ledger.unions
    assert middle.scope == msgspec.structs.replace(ledger.scope, reduce="mean")


@given(st.lists(ledgers(), min_size=2, max_size=4), st.randoms())
def test_mean_does_not_depend_on_order(several, random):
    shuffled = random.sample(several, len(several))
    assert mean(shuffled).by_kind().keys() == mean(several).by_kind().keys()
    assert mean(shuffled).wall_ns == mean(several).wall_ns
    for entry, other in zip(mean(shuffled).sorted_entries(), mean(several).sorted_entries()):
        assert abs(entry.ns - other.ns) <= 1


@given(ledgers(), ledgers(basis="predicted"))
def test_mean_of_nothing_or_mixed_bases_is_refused(measured, predicted):
    with refused(BadLedger):
        mean([])
    with refused(BadLedger, "predicted", "measured"):
        mean([measured, predicted])


def test_mean_merges_scopes():
    def one(rank, aligned):
        return Ledger(wall_ns=0, entries=(), scope=Scope(steps=("4",), ranks=(rank,), aligned=aligned))

    assert mean([one(1, "host"), one(0, "host")]).scope == Scope(
        steps=("4",), ranks=(0, 1), reduce="mean", aligned="host"
    )
    assert mean([one(1, "host"), one(0, "no")]).scope.aligned == "no"


# Accounts


@given(accounts())
def test_an_account_survives_text_pickling_and_copying(account):
    assert Account.parse(str(account)) == account
    assert hash(Account.parse(str(account))) == hash(account)
    assert copy(account) == deepcopy(account) == account


@given(accounts(), accounts())
def test_accounts_order_by_precedence(account, other):
    assert (account == other) == (str(account) == str(other))
    if account.kind != other.kind:
        kinds = list(words.KINDS)
        assert (account.rank < other.rank) == (kinds.index(account.kind) < kinds.index(other.kind))


@given(accounts())
def test_accounts_are_immutable(account):
    kind = account.kind
    with pytest.raises(AttributeError):
        account.kind = "copy"
    assert account.kind == kind


REAL = {f"{kind}/{what}" if what else kind for kind, row in words.KINDS.items() for what in row.whats or [""]}


@given(st.text())
@example("compute/matmul\n")
@example("comm/all_reduce@dp<script>")
@example("comm/all_reduce@" + "x" * 65)
@example("data_wait/h2d")
@example("compute")
def test_hostile_text_is_not_an_account(text):
    head, _, group = text.partition("@")
    # Random text is sometimes a valid account, because Hypothesis also draws constants from the code.
    assume(head not in REAL or not re.fullmatch(r"[A-Za-z0-9_.\-]{0,64}", group))
    with pytest.raises(UnknownName):
        Account.parse(text)


@given(accounts())
def test_accounts_have_labels_and_colours(account):
    assert account.label
    assert account.colour.startswith("#")
    assert not account.group or account.group in account.label
