"""host_device_thrash: exposed copies between host and device in the step.

What it does: takes exposed copies between host and device: dozens of small ones in a step, or those of pageable host
memory, or else all.
Why it matters: a small copy costs its latency, a pageable one is staged by the host and cannot overlap.
Example: 60 masks of a kilobyte sent one by one in every step.
Remedy: send one packed tensor, overlap large copies with compute, pin the loader's memory and copy with
`non_blocking=True`, make constants on the device.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainyard import units
from trainyard.booked import Booked, Mask
from trainyard.detect.confidence import confidence, doubt_of_recurrence
from trainyard.detect.finding_text import finding, matters
from trainyard.detect.largest_intervals import largest_work
from trainyard.detect.row_changes import row_change
from trainyard.detect.select_events import (
    dominant_account,
    owned_ns_per_step,
    select_by_name,
    select_work,
    starts_per_step,
)
from trainyard.events import I64
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.record import Run

_MIN_COPIES = 32  # copies a step: a batch is a few tensors, and the optimizer's state is not copied
_SMALL_BYTES = 64 * 1024  # at 10 GB/s this takes 6 µs, about the latency of a copy
_SHORT_NS = 20_000  # the same as a time, if the file does not record bytes
_NEEDED_DOUBT = 0.05  # that the copies are needed at these times, so that packing or overlapping them gains nothing
_PAGEABLE_NAME = re.compile(r"pageable", re.I)


class _Selected(NamedTuple):
    """Copies to report: rows of each rank; `adjective`: their kind in the sentence, ending in a space; the remedy."""

    rows_by_rank: list[I64]
    adjective: str
    remedy: str


class HostDeviceThrash:
    rule = "host_device_thrash"
    needs = ("ledger", "ranks")

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The exposed copies: many small ones, those of pageable memory, or all.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work: `bytes` (-1 if unknown), `owned` (ns booked to it, which for copies is the exposed time). Accounts of
        copies are `copy/h2d` (host to device) and `copy/d2h`.
        """
        ranks = ranks or ()
        rows_by_rank = [select_work(rank, "copy", "h2d", "d2h") for rank in ranks]
        pageable_by_rank = [select_by_name(rank, rows, _PAGEABLE_NAME) for rank, rows in zip(ranks, rows_by_rank)]
        selected = _select(ranks, rows_by_rank, pageable_by_rank)
        cost_ns = owned_ns_per_step(ranks, selected.rows_by_rank)
        if not matters(ledger, cost_ns):
            return ()
        copies = starts_per_step(ranks, selected.rows_by_rank)
        moved_bytes = sum(int(rank.bytes[rows].clip(0).sum()) for rank, rows in zip(ranks, selected.rows_by_rank))
        size = units.show_size(moved_bytes / max(1, sum(rank.steps for rank in ranks)))
        pageable = starts_per_step(ranks, pageable_by_rank)
        largest = largest_work(ranks, selected.rows_by_rank)
        counted = units.counted(copies, f"{selected.adjective}copy", f"{selected.adjective}copies")
        return finding(
            self.rule,
            ledger,
            dominant_account(ranks, selected.rows_by_rank),
            cost_ns,
            f"{counted} per step between host and device cost{'s' if copies == 1 else ''}",
            evidence="; ".join(
                filter(
                    None,
                    (
                        f"{size} per step in all" if moved_bytes else "",
                        f"{pageable:,} of all copies are from or to pageable memory" if pageable else "",
                    ),
                )
            ),
            remedy=selected.remedy,
            confidence=confidence(
                doubt_of_recurrence(largest.steps_with, largest.steps, largest.is_single) if largest else 0,
                0 if selected.adjective == "pageable " else _NEEDED_DOUBT,
            ),
            largest=largest,
            change=row_change(self.rule, ranks, rows=selected.rows_by_rank),
        )


def _select(ranks: Sequence[Booked], rows_by_rank: list[I64], pageable_by_rank: list[I64]) -> _Selected:
    """The copies that the rule reports: small ones if they are many and take most of the time, else pageable ones if
    they do, else all."""
    all_ns = owned_ns_per_step(ranks, rows_by_rank)
    small_by_rank = [rows[_is_small(rank, rows)] for rank, rows in zip(ranks, rows_by_rank)]
    if starts_per_step(ranks, small_by_rank) >= _MIN_COPIES and 2 * owned_ns_per_step(ranks, small_by_rank) > all_ns:
        return _Selected(small_by_rank, "small ", "Pack small copies into one, or make them on the device.")
    is_torch = any(rank.events.shows_torch for rank in ranks)
    if 2 * owned_ns_per_step(ranks, pageable_by_rank) > all_ns:
        remedy = (
            "Pin the host's memory (pin_memory=True) and copy with non_blocking=True."
            if is_torch
            else "Copy from and to page-locked memory, asynchronously."
        )
        return _Selected(pageable_by_rank, "pageable ", remedy)
    return _Selected(rows_by_rank, "exposed ", "Copy earlier, on a stream of its own, so that compute overlaps it.")


def _is_small(booked: Booked, rows: I64) -> Mask:
    """Mask over `rows`: whether a copy takes its latency rather than the time of its bytes."""
    size, length_ns = booked.bytes[rows], booked.stop[rows] - booked.start[rows]
    return np.where(size > 0, size <= _SMALL_BYTES, length_ns <= _SHORT_NS)
