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
from statistics import median
from typing import NamedTuple

from trainyard import units
from trainyard.booked import Booked
from trainyard.detect.finding_text import finding, matters, mean_per_step
from trainyard.events import Collective
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_SLOW = 0.5  # of the median: healthy algorithms and rings differ by tens of per cent
_LIKE = 3  # fewest comparable groups
_CALLS = 3  # fewest calls of each group
_MINORITY = 1 / 3  # most groups that may be slow: if more are, they use a slower network and no link is faulty

_Like = tuple[str, int, int]


class SlowLink:
    rule = "slow_link"
    needs = ("ledger", "events")

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        seen = _seen(events or ())
        findings: list[Finding] = []
        for like, links in seen.items():
            rates = {link: _rate(calls) for link, calls in links.items() if len(calls) >= _CALLS}
            if len(rates) < _LIKE:
                continue
            usual = median(rates.values())
            slow = [link for link, rate in rates.items() if rate < _SLOW * usual]
            if not slow or len(slow) > _MINORITY * len(rates):
                continue
            worst = min(slow, key=lambda link: rates[link])
            lost = mean_per_step(
                events or (),
                (int(call.owned * (1 - rates[link] / usual)) for link in slow for call in links[link]),
            )
            if not matters(ledger, lost):
                continue
            findings.extend(
                finding(
                    self.rule,
                    ledger,
                    links[worst][0].account,
                    lost,
                    f"A slow link ({worst}) costs",
                    evidence=f"{like[0]} reaches {_show(rates[worst])} there; the median of {len(rates)} comparable "
                    f"groups is {_show(usual)}",
                    remedy="Test that link (nccl-tests, the vendor's link counters) and check the ranks' placement.",
                    sure=0.8 if ledger.scope.aligned != "no" else 0.6,
                )
            )
        return findings


class _Call(NamedTuple):
    account: Account
    rate: float
    owned: int


def _seen(events: Sequence[Booked]) -> dict[_Like, dict[str, list[_Call]]]:
    """Each group's calls, by collective, number of members and power of two of the size."""
    seen: dict[_Like, dict[str, list[_Call]]] = defaultdict(lambda: defaultdict(list))
    for rank in events:
        for row, collective in rank.collectives.items():
            members = 2 if collective.peer >= 0 else collective.members
            length = int(rank.stop[row] - rank.start[row])
            if collective.size <= 0 or members < 2 or length <= 0 or not rank.full(rank.start[row : row + 1])[0]:
                continue
            like = (collective.name, members, collective.size.bit_length())
            rate = collective.size * _bus_factor(collective.name, members) / length
            account = rank.pairs[rank.key[row]][0]
            seen[like][_link(collective, rank.events.rank)].append(_Call(account, rate, int(rank.owned[row])))
    return seen


def _link(collective: Collective, rank: int) -> str:
    if collective.peer >= 0:
        low, high = sorted((rank, collective.peer))
        return f"ranks {low} and {high}"
    if collective.ranks:
        return "ranks " + ", ".join(map(str, collective.ranks[:8])) + (", …" if len(collective.ranks) > 8 else "")
    return f"group {collective.group_name or collective.group}"


def _bus_factor(name: str, members: int) -> float:
    """Bytes over the slowest link per byte of the buffer: bus bandwidth as nccl-tests defines it."""
    if name == "all_reduce":
        return 2 * (members - 1) / members
    return (members - 1) / members if name in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def _rate(calls: list[_Call]) -> float:
    """The upper quartile of the calls' rates: calls that waited for a late rank do not show the link's speed."""
    rates = sorted(call.rate for call in calls)
    return rates[(3 * len(rates)) // 4]


def _show(rate: float) -> str:
    return units.show_rate(rate * 1e9, "B/s")
