"""slow_link: one group or pair of ranks has far less bandwidth than comparable ones.

What it does: takes the bus bandwidth of each group's (point-to-point: each pair's) collectives and compares it with
other groups of as many ranks and messages of similar size; a group below half of their median is slow.
Why it matters: a link that fell back to fewer lanes, or a ring that leaves its rail, slows every step.
Example: of 16 groups of 8 ranks, one all-gathers at 11 GB/s and the others at 23.
Remedy: run the vendor's link test there, and look at cabling, switch counters and the rank's placement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainyard import units
from trainyard.booked import Booked
from trainyard.change import RowChange
from trainyard.detect.finding_text import finding, matters, mean_per_step
from trainyard.detect.row_changes import row_change
from trainyard.events import Collective
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run
from trainyard.stats.medians import median

_SLOW_FRACTION = 0.5  # of the median: healthy algorithms and rings differ by tens of per cent
_MIN_GROUPS = 3  # fewest comparable groups
_MIN_CALLS = 3  # fewest calls of each group
_MAX_SLOW_FRACTION = 1 / 3  # of the groups: if more are slow, they use a slower network and no link is faulty

_CallClass = tuple[str, int, int]
"""Calls that are comparable: (collective, number of members, bit length of the size in bytes)."""


class SlowLink:
    rule = "slow_link"
    needs = ("ledger", "ranks")

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """One finding per class of comparable calls with a slow link; the cost is the time beyond the median rate.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        calls_by_class = _calls_by_link(ranks or ())
        findings: list[Finding] = []
        for call_class, links in calls_by_class.items():
            rates = {link: _upper_quartile_rate(calls) for link, calls in links.items() if len(calls) >= _MIN_CALLS}
            if len(rates) < _MIN_GROUPS:
                continue
            median_rate = median(rates.values())
            slow = [link for link, rate in rates.items() if rate < _SLOW_FRACTION * median_rate]
            if not slow or len(slow) > _MAX_SLOW_FRACTION * len(rates):
                continue
            worst = min(slow, key=lambda link: rates[link])
            lost_ns = mean_per_step(
                ranks or (),
                (int(call.owned * (1 - rates[link] / median_rate)) for link in slow for call in links[link]),
            )
            if not matters(ledger, lost_ns):
                continue
            findings.extend(
                finding(
                    self.rule,
                    ledger,
                    links[worst][0].account,
                    lost_ns,
                    f"A slow link ({worst}) costs",
                    evidence=f"{call_class[0]} reaches {_show(rates[worst])} there; the median of {len(rates)} "
                    f"comparable groups is {_show(median_rate)}",
                    remedy="Test that link (nccl-tests, the vendor's link counters) and check the ranks' placement.",
                    confidence=0.8 if ledger.scope.aligned != "no" else 0.6,
                    change=_change_at_median_rate(
                        f"{self.rule}:{call_class[0]}:{worst}",
                        ranks or (),
                        {link: (links[link], rates[link] / median_rate) for link in slow},
                    ),
                )
            )
        return findings


class _Call(NamedTuple):
    """A collective call. `rate`: bus bandwidth in bytes per ns; `owned`: ns booked to it; `rank`: rank number; `row`:
    its row in the interval columns of that rank."""

    account: Account
    rate: float
    owned: int
    rank: int
    row: int


def _change_at_median_rate(rule: str, ranks: Sequence[Booked], slow: dict[str, tuple[list[_Call], float]]) -> RowChange:
    """The change in which slow links reach the median rate. `rule`: name of the change. `slow`: link -> (its calls, its
    rate as a fraction of the median rate)."""
    rows: list[list[int]] = [[] for _ in ranks]
    remaining: list[list[float]] = [[] for _ in ranks]
    index_of_rank = {rank.events.rank: index for index, rank in enumerate(ranks)}
    for calls, fraction in slow.values():
        for call in calls:
            rows[index_of_rank[call.rank]].append(call.row)
            remaining[index_of_rank[call.rank]].append(fraction)
    return row_change(
        rule,
        ranks,
        rows=[np.array(column, np.int64) for column in rows],
        remaining=[np.array(column, np.float64) for column in remaining],
    )


def _calls_by_link(ranks: Sequence[Booked]) -> dict[_CallClass, dict[str, list[_Call]]]:
    """Class of comparable calls -> name of the link (a group or pair of ranks) -> its calls in full steps."""
    calls_by_class: dict[_CallClass, dict[str, list[_Call]]] = defaultdict(lambda: defaultdict(list))
    for rank in ranks:
        for row, collective in rank.collectives.items():
            members = 2 if collective.peer >= 0 else collective.members
            length_ns = int(rank.stop[row] - rank.start[row])
            if collective.size <= 0 or members < 2 or length_ns <= 0 or not rank.full(rank.start[row : row + 1])[0]:
                continue
            call_class = (collective.name, members, collective.size.bit_length())
            rate = collective.size * _bus_factor(collective.name, members) / length_ns
            account = rank.pairs[rank.key[row]][0]
            link = _link_name(collective, rank.events.rank)
            calls_by_class[call_class][link].append(_Call(account, rate, int(rank.owned[row]), rank.events.rank, row))
    return calls_by_class


def _link_name(collective: Collective, rank: int) -> str:
    """The ranks that a collective connects, as text: `ranks 0 and 1`; the group's name if they are not recorded."""
    if collective.peer >= 0:
        low, high = sorted((rank, collective.peer))
        return f"ranks {low} and {high}"
    if collective.ranks:
        return "ranks " + ", ".join(map(str, collective.ranks[:8])) + (", …" if len(collective.ranks) > 8 else "")
    return f"group {collective.group_name or collective.group}"


def _bus_factor(name: str, members: int) -> float:
    """The factor from algorithm bandwidth (buffer bytes / time) to bus bandwidth, as nccl-tests defines it: the bytes
    that cross each link per byte of the buffer, for a group of `members` ranks."""
    if name == "all_reduce":
        return 2 * (members - 1) / members
    return (members - 1) / members if name in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def _upper_quartile_rate(calls: list[_Call]) -> float:
    """The upper quartile of the calls' rates: calls that waited for a late rank do not show the link's speed."""
    rates = sorted(call.rate for call in calls)
    return rates[(3 * len(rates)) // 4]


def _show(bytes_per_ns: float) -> str:
    """A bandwidth as text, in bytes per second."""
    return units.show_rate(bytes_per_ns * 1e9, "B/s")
