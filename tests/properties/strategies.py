"""Hypothesis strategies that generate valid ledgers and their parts."""

from hypothesis import strategies as st

from trainyard import words
from trainyard.ledger import Account, Entry, Ledger, Scope

NS = st.integers(0, 2**50)
GROUPS = st.sampled_from(["", *words.AXES, "world", "sub4", "node-1.rack_2"])
PLACES = [(kind, what) for kind, table in words.KINDS.items() for what in (table.whats or [""])]


def accounts() -> st.SearchStrategy[Account]:
    return st.builds(lambda kind_and_what, group: Account(*kind_and_what, group), st.sampled_from(PLACES), GROUPS)


@st.composite
def entries(draw: st.DrawFn, account: Account, phase: str) -> Entry:
    known = st.none() | st.integers(0, 2**60)
    return Entry(
        account=account,
        phase=phase,
        ns=draw(NS),
        hidden_ns=draw(NS),
        count=draw(st.integers(0, 10**6)),
        flops=draw(known),
        bytes=draw(known),
        how=draw(st.sampled_from(sorted(words.HOWS))),
    )


def scopes() -> st.SearchStrategy[Scope]:
    return st.builds(
        Scope,
        steps=st.lists(st.text(max_size=6), max_size=3, unique=True).map(tuple),
        ranks=st.lists(st.integers(0, 9), max_size=3, unique=True).map(sorted).map(tuple),
        reduce=st.sampled_from(sorted(words.REDUCES)),
        aligned=st.sampled_from(sorted(words.ALIGNMENTS)),
        partial=st.booleans(),
    )


@st.composite
def ledgers(draw: st.DrawFn, basis: str = "measured", max_size: int = 8) -> Ledger:
    keys = st.tuples(accounts(), st.sampled_from(sorted(words.PHASES)))
    lines = [draw(entries(*key)) for key in draw(st.lists(keys, max_size=max_size, unique=True))]
    return Ledger(
        wall_ns=sum(line.ns for line in lines),
        entries=tuple(lines),
        basis=basis,
        scope=draw(scopes()),
        source=draw(st.text(max_size=10)),
        unions=draw(st.dictionaries(st.sampled_from(sorted(words.KINDS)), NS, max_size=3)),
    )
