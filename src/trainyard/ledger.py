"""The step ledger: every nanosecond of a training step booked to exactly one account.

Invariants, checked at construction, decoding and replacement: the entries' `ns` sum to `wall_ns`, none is
negative, and each (account, phase) occurs once. `hidden_ns` is not part of the balance: it is time during
which the account was active while an account of higher precedence owned the instant.

`mean` of ledgers balances by largest remainder; `diff` of two sums exactly to the change in wall time. An account is a
category of time, such as `comm/all_gather@dp_shard`; a phase is forward, recompute, backward, optimizer or other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from trainyard import words
from trainyard.errors import BadLedger, UnknownName
from trainyard.formats.decoding import UNREADABLE
from trainyard.printable import encode_json

SCHEMA = "trainyard/ledger/1"
"""Version of one ledger's fields."""
BEFORE, WINDOW, AFTER = "before", "window", "after"
"""Labels in `Scope.steps` of parts that are not steps: before the first mark, the whole window, after the last step."""
LEDGERS_SCHEMA = "trainyard/ledgers/1"
"""Version of a document that holds several ledgers."""

_K = TypeVar("_K")
_GROUP = re.compile(r"[A-Za-z0-9_.\-]{1,64}\Z")


class Account:
    """Where time is booked: `kind/what@group`, immutable, hashable, ordered by precedence in `words`.

    `what` is empty for kinds without subdivision; `group` is the mesh axis of a collective or empty.
    Raises `UnknownName` for a `kind` or `what` that is not in `words`, or a `group` with invalid characters.
    Not a Struct, because msgspec calls its hooks for plain classes only.
    """

    __slots__ = ("group", "kind", "what")
    kind: str
    what: str
    group: str

    def __init__(self, kind: str, what: str = "", group: str = "") -> None:
        """Raises `UnknownName` for words that are not in `words.KINDS`, or a group with invalid characters."""
        whats = words.KINDS[words.check(kind, words.KINDS, "kind of account")].whats  # subdivisions of the kind
        if whats:
            words.check(what, whats, f"{kind} account")
        elif what:
            raise UnknownName(f"{kind!r} has no accounts below it, but {what!r} was given.")
        if group and not _GROUP.match(group):
            raise UnknownName(f"{group!r} is not a group.", "Use letters, digits, '_', '-' and '.', 64 at most.")
        for slot, value in (("kind", kind), ("what", what), ("group", group)):
            object.__setattr__(self, slot, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("an Account is immutable")

    def __reduce__(self) -> tuple[type[Account], tuple[str, str, str]]:
        return Account, (self.kind, self.what, self.group)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Account) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash((self.kind, self.what, self.group))

    @classmethod
    def parse(cls, text: str) -> Account:
        """`"comm/all_gather@dp_shard"` -> `Account("comm", "all_gather", "dp_shard")`."""
        head, _, group = text.partition("@")
        kind, _, subdivision = head.partition("/")
        return cls(kind, subdivision, group)

    def __str__(self) -> str:
        subdivision = f"/{self.what}" if self.what else ""
        return f"{self.kind}{subdivision}" + (f"@{self.group}" if self.group else "")

    def __repr__(self) -> str:
        return f"Account.parse({str(self)!r})"

    @property
    def rank(self) -> tuple[int, int, str]:
        """Sort key of the order of precedence: kind, then `what` in the order of its table, then group."""
        whats = words.KINDS[self.kind].whats
        index = list(whats).index(self.what) if whats else 0
        return (list(words.KINDS).index(self.kind), index, self.group)

    @property
    def label(self) -> str:
        """Display name: `Exposed all-gather (dp_shard)`."""
        kind = words.KINDS[self.kind]
        word = kind.whats.get(self.what)
        text = word.label if word else kind.label
        if self.kind == "comm":
            text = f"Exposed {text}"
        elif self.kind == "straggler":
            text = f"Straggler, {text}"
        return f"{text} ({self.group})" if self.group else text

    @property
    def colour(self) -> str:
        """The colour of the account in charts (`#rrggbb`): that of `what`, except for stragglers."""
        kind = words.KINDS[self.kind]
        word = kind.whats.get(self.what)
        return kind.colour if word is None or self.kind == "straggler" else word.colour

    @property
    def means(self) -> str:
        """The definition of the account: that of `what` if it has one, else that of the kind, as for stragglers."""
        kind = words.KINDS[self.kind]
        word = kind.whats.get(self.what)
        return kind.means if word is None or self.kind == "straggler" else word.means


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a ledger. `ns` is exposed time; `hidden_ns` is not part of the balance.

    `count`: number of intervals booked; `flops`, `bytes`: their total work, None if unknown.
    """

    account: Account
    phase: str = "other"
    ns: int
    hidden_ns: int = 0
    count: int = 0
    flops: int | None = None
    bytes: int | None = None
    how: Literal["seen", "inferred", "modelled"] = "seen"

    def __post_init__(self) -> None:
        words.check(self.phase, words.PHASES, "phase")
        for name, value in (("ns", self.ns), ("hidden_ns", self.hidden_ns), ("count", self.count)):
            if value < 0:
                raise BadLedger(f"{self.account} has {name} = {value}, which must not be negative.")


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """The steps and ranks that a ledger covers.

    `partial`: the part is not a full step: it began outside the window, has no step mark, or is an evaluation, a
    checkpoint, a pause or warm-up. It is included in sums but never in means, diffs or headlines.
    """

    steps: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    reduce: Literal["one", "mean"] = "one"
    aligned: Literal["no", "host", "collectives", "bounds"] = "no"
    partial: bool = False


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """A step's wall time, divided into accounts. Raises `BadLedger` unless it balances to the nanosecond.

    `unions`: kind -> length of the union of its intervals (ns), exposed plus hidden, counted once however many streams
    ran. `late`, on a mean over aligned ranks: rank -> ns per step that the other ranks waited (exposed) for it, summed
    over them. `source`: its origin (a file name, a run id).
    """

    wall_ns: int
    entries: tuple[Entry, ...]
    basis: Literal["predicted", "measured"] = "measured"
    scope: Scope = Scope()
    source: str = ""
    unions: dict[str, int] = {}
    late: dict[int, int] = {}
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        """Raises `BadLedger` for another schema, entries that do not sum to the wall time, or an account and phase that
        occur twice."""
        if self.schema != SCHEMA:
            raise BadLedger(f"the ledger's schema is {self.schema!r}; this version reads {SCHEMA!r}.")
        if self.wall_ns < 0:
            raise BadLedger(f"wall_ns = {self.wall_ns} is negative.")
        total = sum(entry.ns for entry in self.entries)
        if total != self.wall_ns:
            raise BadLedger(
                f"entries sum to {total:,} ns but the wall time is {self.wall_ns:,} ns: {total - self.wall_ns:+,} ns.",
                "Every nanosecond belongs to exactly one account.",
            )
        keys: set[tuple[Account, str]] = set()
        for entry in self.entries:
            if (key := (entry.account, entry.phase)) in keys:
                raise BadLedger(f"{entry.account} in phase {entry.phase} occurs twice.", "Merge the two entries.")
            keys.add(key)
        for kind in self.unions:
            words.check(kind, words.KINDS, "kind of account")

    def by_account(self) -> dict[Account, int]:
        """Exposed ns of each account, phases summed, in order of precedence."""
        return _sum_by_key((entry.account, entry.ns) for entry in self.sorted_entries())

    def by_kind(self) -> dict[str, int]:
        """Exposed ns of each kind that has any entry, in order of precedence."""
        return _sum_by_key((entry.account.kind, entry.ns) for entry in self.sorted_entries())

    def by_phase(self) -> dict[str, int]:
        """Exposed ns of each phase that has any entry, in the order of `words.PHASES`."""
        totals = _sum_by_key((entry.phase, entry.ns) for entry in self.entries)
        return {phase: totals[phase] for phase in words.PHASES if phase in totals}

    def sorted_entries(self) -> list[Entry]:
        """The entries in order of precedence of their accounts, then of `words.PHASES`."""
        phases = list(words.PHASES)
        return sorted(self.entries, key=lambda entry: (entry.account.rank, phases.index(entry.phase)))

    @property
    def unrecognised_ns(self) -> int:
        """Time on `compute/other` and `unexplained`. The coverage is 1 - unrecognised_ns / wall_ns."""
        return sum(
            entry.ns
            for entry in self.entries
            if entry.account.kind == "unexplained" or (entry.account.kind, entry.account.what) == ("compute", "other")
        )


class AccountChange(msgspec.Struct, frozen=True, kw_only=True):
    """One account before and after. `low_ns` and `high_ns` bound after - before, if the steps give a spread."""

    account: Account
    before_ns: int
    after_ns: int
    low_ns: int | None = None
    high_ns: int | None = None
    verdict: Literal["better", "worse", "same", "unknown"] = "unknown"

    @property
    def ns(self) -> int:
        return self.after_ns - self.before_ns


def diff(before: Ledger, after: Ledger) -> tuple[AccountChange, ...]:
    """The change of each account; the `ns` sum to `after.wall_ns - before.wall_ns` exactly.

    Two single ledgers have no spread, so a difference is `unknown`, never better or worse.
    """
    before_ns, after_ns = before.by_account(), after.by_account()
    accounts = sorted(before_ns.keys() | after_ns.keys(), key=lambda account: account.rank)
    return tuple(
        AccountChange(
            account=account,
            before_ns=before_ns.get(account, 0),
            after_ns=after_ns.get(account, 0),
            verdict="same" if before_ns.get(account, 0) == after_ns.get(account, 0) else "unknown",
        )
        for account in accounts
    )


def mean(ledgers: Sequence[Ledger], source: str = "") -> Ledger:
    """The mean ledger of several steps or ranks. An account that a ledger lacks counts as 0. Rounding by largest
    remainder (ties: order of precedence) keeps the mean balanced. `source`: of the result, by default that of the
    first.

    Raises `BadLedger` for an empty sequence or a mix of predicted and measured ledgers.
    """
    if not ledgers:
        raise BadLedger("no ledgers to average.")
    first = ledgers[0]
    if any(ledger.basis != first.basis for ledger in ledgers):
        raise BadLedger("a mean of predicted and measured ledgers has no meaning.", "Use diff to compare them.")
    count = len(ledgers)
    entries_of: dict[tuple[Account, str], list[Entry]] = {}  # (account, phase) -> its entries, at most one per ledger
    for ledger in ledgers:
        for entry in ledger.sorted_entries():
            entries_of.setdefault((entry.account, entry.phase), []).append(entry)
    account_phases = list(entries_of)
    wall_ns = sum(ledger.wall_ns for ledger in ledgers) // count
    exposed_ns = _divide_exactly([sum(e.ns for e in entries_of[key]) for key in account_phases], count, wall_ns)
    entries = tuple(
        Entry(
            account=account,
            phase=phase,
            ns=ns,
            hidden_ns=sum(e.hidden_ns for e in same_entries) // count,
            count=_divide_rounded(sum(e.count for e in same_entries), count),
            flops=_mean_if_all_known([e.flops for e in same_entries], count),
            bytes=_mean_if_all_known([e.bytes for e in same_entries], count),
            how=max((e.how for e in same_entries), key=list(words.HOWS).index),
        )
        for (account, phase), ns in zip(account_phases, exposed_ns)
        for same_entries in [entries_of[account, phase]]
    )
    union_ns = _sum_by_key((kind, ns) for ledger in ledgers for kind, ns in ledger.unions.items())
    same_alignment = all(ledger.scope.aligned == first.scope.aligned for ledger in ledgers)
    scope = Scope(
        steps=tuple(dict.fromkeys(step for ledger in ledgers for step in ledger.scope.steps)),
        ranks=tuple(sorted({rank for ledger in ledgers for rank in ledger.scope.ranks})),
        reduce="mean",
        aligned=first.scope.aligned if same_alignment else "no",
        partial=any(ledger.scope.partial for ledger in ledgers),
    )
    return Ledger(
        wall_ns=wall_ns,
        entries=entries,
        basis=first.basis,
        scope=scope,
        source=source or first.source,
        unions={kind: ns // count for kind, ns in union_ns.items()},
    )


def _divide_exactly(totals: list[int], n: int, target: int) -> list[int]:
    """Divides every total by `n` so that the quotients sum to `target`: floors them, then adds 1 to those with the
    largest remainders."""
    quotients = [total // n for total in totals]
    missing = target - sum(quotients)
    by_remainder = sorted(range(len(totals)), key=lambda i: -(totals[i] % n))
    for i in by_remainder[:missing]:
        quotients[i] += 1
    return quotients


def _divide_rounded(total: int, n: int) -> int:
    """total / n, rounded half up."""
    return (2 * total + n) // (2 * n)


def _mean_if_all_known(values: Sequence[int | None], n: int) -> int | None:
    """The mean over `n` ledgers, rounded down; None if a value is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) // n if len(known) == len(values) and known else None


def _sum_by_key(pairs: Iterable[tuple[_K, int]]) -> dict[_K, int]:
    """Sums the ns of equal keys; keys stay in the order of their first occurrence."""
    totals: dict[_K, int] = {}
    for key, ns in pairs:
        totals[key] = totals.get(key, 0) + ns
    return totals


def encode_hook(value: object) -> object:
    """For msgspec encoders: accounts in text form."""
    if isinstance(value, Account):
        return str(value)
    raise TypeError(f"cannot write {type(value).__name__}")


def decode_hook(kind: type, value: Any) -> Any:
    """For msgspec decoders: accounts from text form."""
    if kind is Account:
        if not isinstance(value, str):
            raise BadLedger(f"an account must be a string, not {type(value).__name__}.", "Write kind/what@group.")
        return Account.parse(value)
    raise TypeError(f"cannot read {kind.__name__}")


class Ledgers(msgspec.Struct, frozen=True, kw_only=True):
    """A document of ledgers, as `trainyard trace --json` prints it and a run folder stores it."""

    schema: Literal["trainyard/ledgers/1"] = LEDGERS_SCHEMA
    ledgers: tuple[Ledger, ...]


def to_json(ledgers: Iterable[Ledger]) -> bytes:
    return encode_json(Ledgers(ledgers=tuple(ledgers)), encode_hook)


def from_json(data: bytes) -> tuple[Ledger, ...]:
    """Decode a document of ledgers. Raises `BadLedger` with the path in the document if it is malformed or does not
    balance."""
    try:
        return msgspec.json.decode(data, type=Ledgers, dec_hook=decode_hook).ledgers
    except UNREADABLE as error:
        raise BadLedger(f"not a document of ledgers: {error}.") from error
