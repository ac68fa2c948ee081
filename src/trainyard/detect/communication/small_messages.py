"""small_messages: many collectives too small to use the network's bandwidth.

What it does: if a group makes dozens of collectives of one kind under 256 KiB in a step, takes their time in excess of
the same bytes in buckets of 25 MiB: the time of the group's shortest collective for each bucket, and the bytes at
the best rate in the trace.
Why it matters: below some hundred kilobytes a collective takes its latency, whatever its size.
Example: 160 all-reduces of one gradient each take 20 µs each; in two buckets they take 100 µs in all.
Remedy: larger buckets (`bucket_cap_mb`), coalesced collectives, or one flat buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trainyard import units, words
from trainyard.booked import Booked
from trainyard.detect.finding_text import finding, matters
from trainyard.events import I64
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_SMALL = 256 * 1024  # bytes: at 100 GB/s this takes 3 µs, a fraction of any collective's latency
_MANY = 16  # calls a step: fewer cost little
_BUCKET = 25 * 2**20  # bytes: DDP's default bucket_cap_mb


class SmallMessages:
    rule = "small_messages"
    needs = ("ledger", "events")

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        totals: dict[Account, list[int]] = {}
        for rank in events or ():
            for account, number, size, lost in _storms(rank):
                row = totals.setdefault(account, [0, 0, 0])
                row[0], row[1], row[2] = row[0] + number, row[1] + size, row[2] + lost
        steps = max(1, sum(rank.steps for rank in events or ()))
        findings: list[Finding] = []
        for account, (number, size, lost) in totals.items():
            if not matters(ledger, lost // steps):
                continue
            label = words.COLLECTIVES[account.what].label
            findings.extend(
                finding(
                    self.rule,
                    ledger,
                    account,
                    lost // steps,
                    f"{number // steps:,} {label} calls a step of {units.show_size(size / number)} each waste",
                    evidence=f"their {units.show_size(size / steps)} a step would fit into "
                    f"{_buckets(size // steps):,} bucket{'s' if _buckets(size // steps) != 1 else ''} of "
                    f"{units.show_size(_BUCKET, 0)}",
                    remedy="Use larger buckets (bucket_cap_mb), coalesce the calls, or keep one flat buffer.",
                    # If clocks are not aligned, part of it is waiting for late ranks: larger messages do not help.
                    sure=0.8 if ledger.scope.aligned != "no" else 0.5,
                )
            )
        return findings


def _storms(booked: Booked) -> Iterator[tuple[Account, int, int, int]]:
    """(account, calls, bytes, ns in excess of buckets) over all full steps, for each account with many small calls."""
    by_account: dict[Account, list[int]] = {}
    for row, collective in booked.collectives.items():
        if collective.size > 0 and booked.full(booked.start[row : row + 1])[0]:
            by_account.setdefault(booked.pairs[booked.key[row]][0], []).append(row)
    for account, rows in by_account.items():
        own = np.array(rows, np.int64)
        sizes = np.array([booked.collectives[row].size for row in rows], np.int64)
        length = np.maximum(1, booked.stop[own] - booked.start[own])
        small = sizes <= _SMALL
        if account.kind != "comm" or small.sum() < _MANY * booked.steps:
            continue
        total = int(sizes[small].sum())
        rate = float((sizes / length).max())
        ideal = booked.steps * _buckets(total // booked.steps) * int(length.min()) + total / rate
        yield account, int(small.sum()), total, max(0, _owned(booked, own[small]) - int(ideal))


def _owned(booked: Booked, rows: I64) -> int:
    return int(booked.owned[rows].sum())


def _buckets(size: int) -> int:
    return max(1, -(-size // _BUCKET))
