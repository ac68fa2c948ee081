"""small_messages: many collectives too small to use the network's bandwidth.

What it does: where a group makes dozens of collectives of one kind a step under 256 KiB, takes their time above what
the same bytes would take in buckets of 25 MiB: the group's shortest collective for each bucket, and the bytes at
the best rate that the trace shows.
Why it matters: below some hundred kilobytes a collective costs its latency, whatever it carries.
Example: 160 all-reduces of a gradient each take 20 µs; in two buckets they take 100 µs in all.
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
_MANY = 16  # a step: fewer hardly cost anything
_BUCKET = 25 * 2**20  # bytes: the default bucket of DDP


class SmallMessages:
    rule = "small_messages"
    needs = ("ledger", "events")

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        found: dict[Account, list[int]] = {}
        for rank in events or ():
            for account, number, size, lost in _storms(rank):
                row = found.setdefault(account, [0, 0, 0])
                row[0], row[1], row[2] = row[0] + number, row[1] + size, row[2] + lost
        steps = max(1, sum(rank.steps for rank in events or ()))
        made: list[Finding] = []
        for account, (number, size, lost) in found.items():
            if not matters(ledger, lost // steps):
                continue
            what = words.COLLECTIVES[account.what].label
            made.extend(
                finding(
                    self.rule,
                    ledger,
                    account,
                    lost // steps,
                    f"{number // steps:,} {what} calls a step of {units.show_size(size / number)} each waste",
                    evidence=f"{units.show_size(size / steps)} a step would fit into "
                    f"{_buckets(size // steps):,} of {units.show_size(_BUCKET, 0)}",
                    remedy="Use larger buckets (bucket_cap_mb), coalesce the calls, or keep one flat buffer.",
                    # Unaligned, some of it is waiting for late ranks, which larger messages do not mend.
                    sure=0.8 if ledger.scope.aligned != "no" else 0.5,
                )
            )
        return made


def _storms(booked: Booked) -> Iterator[tuple[Account, int, int, int]]:
    """(account, calls, bytes, ns above what buckets would take) of all full steps."""
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
