"""slow_link: one group's or peer's traffic is far slower than that of its like.

What it does: takes the bus bandwidth of each group's (point-to-point: each pair's) collectives and compares it with
other groups of the same size that carry messages of like size; one below half of their median is slow.
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
from trainyard.detect.finding_text import each_step, finding, matters
from trainyard.events import Collective
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_SLOW = 0.5  # of the median of the others: algorithms and rings differ by tens of per cent in good health
_LIKE = 3  # groups at least, so that the one can be told from the others
_CALLS = 3  # of each group at least
_MINORITY = 1 / 3  # of the groups: more than that are a slower kind of network, and no fault

_Like = tuple[str, int, int]


class SlowLink:
    rule = "slow_link"
    needs = ("ledger", "events")

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        seen = _seen(events or ())
        made: list[Finding] = []
        for like, links in seen.items():
            rates = {link: _rate(calls) for link, calls in links.items() if len(calls) >= _CALLS}
            if len(rates) < _LIKE:
                continue
            usual = median(rates.values())
            slow = [link for link, rate in rates.items() if rate < _SLOW * usual]
            if not slow or len(slow) > _MINORITY * len(rates):
                continue
            worst = min(slow, key=lambda link: rates[link])
            lost = each_step(
                events or (),
                (int(call.owned * (1 - rates[link] / usual)) for link in slow for call in links[link]),
            )
            if not matters(ledger, lost):
                continue
            made.extend(
                finding(
                    self.rule,
                    ledger,
                    links[worst][0].account,
                    lost,
                    f"A slow link, of {worst}, costs",
                    evidence=f"{like[0]} there reaches {_show(rates[worst])}, the median of {len(rates)} like groups "
                    f"{_show(usual)}",
                    remedy="Test that link (nccl-tests, the vendor's link counters) and look at the ranks' placement.",
                    sure=0.8 if ledger.scope.aligned != "no" else 0.6,
                )
            )
        return made


class _Call(NamedTuple):
    account: Account
    rate: float
    owned: int


def _seen(events: Sequence[Booked]) -> dict[_Like, dict[str, list[_Call]]]:
    """By kind of collective, members and magnitude of size: each group's calls."""
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
    """Bytes over the slowest link for each byte of the buffer, as nccl-tests defines bus bandwidth."""
    if name == "all_reduce":
        return 2 * (members - 1) / members
    return (members - 1) / members if name in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def _rate(calls: list[_Call]) -> float:
    """The upper quartile: some calls wait for a late rank, and say nothing of the link."""
    rates = sorted(call.rate for call in calls)
    return rates[(3 * len(rates)) // 4]


def _show(rate: float) -> str:
    return units.show_rate(rate * 1e9, "B/s")
