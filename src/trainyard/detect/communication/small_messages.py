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
from trainyard.change import RowChange
from trainyard.detect.confidence import confidence
from trainyard.detect.finding_text import finding, matters
from trainyard.detect.row_changes import row_change
from trainyard.events import I64
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

# `Booked` is one rank's profile. Its columns have one row per interval of work: `start`, `stop`, `owned` (ns booked to
# it), `name` (index into `events.names`), `key` (index into `pairs`: account and phase), `begins` (False if it resumes
# interrupted work). `keys(test)` is a mask over `pairs`, `names(test)` one over names; index them with these columns.
# `idle` has one row per idle interval of the device (on a CPU: of the training thread). `full(times)`: mask of the
# times in full steps.

_MAX_SMALL_BYTES = 256 * 1024  # at 100 GB/s this takes 3 µs, a fraction of any collective's latency
_MIN_CALLS = 16  # calls a step: fewer cost little
_DEPENDENT_DOUBT = 0.4  # that calls in the forward pass cannot be combined: the next layer needs each result
_UNALIGNED_DOUBT = 0.35
_BUCKET_BYTES = 25 * 2**20  # DDP's default bucket_cap_mb


class SmallMessages:
    rule = "small_messages"
    needs = ("ledger", "ranks")

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """One finding per account whose small calls take longer than the same bytes in large buckets.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        # Account -> [calls, bytes, ns in excess of buckets], over all ranks and full steps.
        totals: dict[Account, list[int]] = {}
        rows_by_account: dict[Account, dict[int, I64]] = {}
        for rank_index, rank in enumerate(ranks or ()):
            for account, rows, total_bytes, lost_ns in _small_call_totals(rank):
                total = totals.setdefault(account, [0, 0, 0])
                total[0], total[1], total[2] = total[0] + len(rows), total[1] + total_bytes, total[2] + lost_ns
                rows_by_account.setdefault(account, {})[rank_index] = rows
        steps = max(1, sum(rank.steps for rank in ranks or ()))
        findings: list[Finding] = []
        for account, (calls, total_bytes, lost_ns) in totals.items():
            if not matters(ledger, lost_ns // steps):
                continue
            label = words.COLLECTIVES[account.what].label
            buckets = _bucket_count(total_bytes // steps)
            findings.extend(
                finding(
                    self.rule,
                    ledger,
                    account,
                    lost_ns // steps,
                    f"{calls // steps:,} {label} calls per step of {units.show_size(total_bytes / calls)} each waste",
                    evidence=f"their {units.show_size(total_bytes / steps)} per step would fit into "
                    f"{units.counted(buckets, 'bucket')} of "
                    f"{units.show_size(_BUCKET_BYTES, 0)}",
                    remedy=_remedy(account, ranks or ()),
                    # If clocks are not aligned, part of it is waiting for late ranks: larger messages do not help.
                    confidence=confidence(
                        _DEPENDENT_DOUBT if _phase_of(ledger, account) in ("forward", "recompute") else 0,
                        _UNALIGNED_DOUBT if ledger.scope.aligned == "no" or len(ledger.scope.ranks) == 1 else 0,
                    ),
                    change=_change_to_buckets(f"{self.rule}:{account}", ranks or (), rows_by_account[account], lost_ns),
                )
            )
        return findings


def _phase_of(ledger: Ledger, account: Account) -> str:
    """The phase with most of the account's time; empty if the ledger lacks it."""
    entries = [entry for entry in ledger.entries if entry.account == account]
    return max(entries, key=lambda entry: entry.ns).phase if entries else ""


def _remedy(account: Account, ranks: Sequence[Booked]) -> str:
    """The remedy; DDP's bucket size only for all-reduces of a program of PyTorch."""
    if account.what == "all_reduce" and any(rank.events.shows_torch for rank in ranks):
        return "Use larger buckets (bucket_cap_mb), coalesce the calls, or keep one flat buffer."
    return "Coalesce the calls, or keep one flat buffer."


def _change_to_buckets(rule: str, ranks: Sequence[Booked], rows: dict[int, I64], lost_ns: int) -> RowChange:
    """The change in which the small calls take the time of the same bytes in buckets. `rows`: index of each rank -> its
    small calls; `lost_ns`: their time in excess of buckets, over all ranks."""
    rows_by_rank = [rows.get(index, np.empty(0, np.int64)) for index in range(len(ranks))]
    total_ns = sum(_owned_ns(rank, own) for rank, own in zip(ranks, rows_by_rank))
    return row_change(rule, ranks, rows=rows_by_rank, remaining=1 - lost_ns / max(1, total_ns))


def _small_call_totals(booked: Booked) -> Iterator[tuple[Account, I64, int, int]]:
    """Yields (account, rows of its small calls, their bytes, their ns in excess of buckets) over all full steps, for
    each communication account with many small calls. In buckets, the bytes would take the latency (the shortest call)
    of each bucket plus their transfer at the best rate of any call."""
    rows_by_account: dict[Account, list[int]] = {}
    for row, collective in booked.collectives.items():
        if collective.size > 0 and booked.full(booked.start[row : row + 1])[0]:
            rows_by_account.setdefault(booked.pairs[booked.key[row]][0], []).append(row)
    for account, rows in rows_by_account.items():
        group_rows = np.array(rows, np.int64)
        sizes = np.array([booked.collectives[row].size for row in rows], np.int64)
        length_ns = np.maximum(1, booked.stop[group_rows] - booked.start[group_rows])
        is_small = sizes <= _MAX_SMALL_BYTES
        if account.kind != "comm" or is_small.sum() < _MIN_CALLS * booked.steps:
            continue
        small_bytes = int(sizes[is_small].sum())
        best_bytes_per_ns = float((sizes / length_ns).max())
        latency_ns = int(length_ns.min())
        buckets = booked.steps * _bucket_count(small_bytes // booked.steps)
        ideal_ns = buckets * latency_ns + small_bytes / best_bytes_per_ns
        small_rows = group_rows[is_small]
        yield account, small_rows, small_bytes, max(0, _owned_ns(booked, small_rows) - int(ideal_ns))


def _owned_ns(booked: Booked, rows: I64) -> int:
    """ns booked to the intervals `rows` in the ledger."""
    return int(booked.owned[rows].sum())


def _bucket_count(size_bytes: int) -> int:
    """Number of buckets that hold `size_bytes` bytes, at least 1."""
    return max(1, -(-size_bytes // _BUCKET_BYTES))
