"""Algorithm and bus bandwidth of collectives, by collective, group and size.

Definitions as in nccl-tests' doc/PERFORMANCE.md: algorithm bandwidth is size / time; bus bandwidth multiplies it by
the bytes that each member's link carries per byte of result, so that it can be compared with the hardware's.

The input is the ranks' surveys (`Survey`): an entry of a survey is one collective or transfer of that rank, and a rank
index is the position of a survey in the list. A matched collective has an entry of every member; a matched transfer has
the entries of a send and of its receive. `cross_rank.align_ranks` is the caller.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np

from trainyard.events import Collective
from trainyard.machine import Link, find_machine
from trainyard.stats.medians import lower_median
from trainyard.trace.align.matching import SYMMETRIC, Meetings, Transfers, meetings, transfers
from trainyard.trace.align.survey import Survey
from trainyard.trace.readers.collectives import group_of

_MATCHED_COLLECTIVES = (*(name for name in SYMMETRIC if name != "barrier"), "broadcast", "reduce")
"""Collectives whose bandwidth is measured, and whose calls are matched between ranks; barriers move no data."""
_SEND_RECV = "send_recv"


class Bandwidth(NamedTuple):
    """Collectives of one kind and group whose sizes lie between two successive powers of two.

    `from_last`: timed from the last member's arrival to the last member's end. Otherwise (clocks not aligned, or
    members missing) the time is the shortest member's duration, which may include waiting: the bandwidth is a lower
    bound. `size` (bytes), `time_ns`, `algbw` and `busbw` (bytes/s) are medians of `count` collectives, `slowest` and
    `fastest` the extremes of busbw; these three are None if the number of members is unknown (`members` 0).

    `waiting_ns`: the members' time before the last arrival, `moving_ns`: their time after it, both summed over members
    and collectives; None if it is unknown. `link`, `link_rate`: the link between the members by the known machine
    of their device, and its bytes/s per device and direction; empty and None if device, hosts or members are unknown.
    """

    collective: str
    group: str
    members: int
    size: int
    count: int
    time_ns: int
    algbw: int
    busbw: int | None
    slowest: int | None
    fastest: int | None
    from_last: bool
    waiting_ns: int | None = None
    moving_ns: int | None = None
    link: str = ""
    link_rate: int | None = None

    @property
    def verdict(self) -> Literal["mostly waiting", "mostly moving", "cannot tell"]:
        """Whether the members wait for the last arrival for longer than the transfer takes."""
        if self.waiting_ns is None or self.moving_ns is None:
            return "cannot tell"
        return "mostly waiting" if self.waiting_ns > self.moving_ns else "mostly moving"

    @property
    def link_use(self) -> float | None:
        """Median bus bandwidth as a fraction of the link's rate; None if one of them is unknown."""
        return self.busbw / self.link_rate if self.busbw is not None and self.link_rate else None


class _Timed(NamedTuple):
    """One timed collective: `size` in bytes, `ns` that it took; `members`: number of ranks, 0 if unknown; `from_last`:
    timed from the last member's arrival to the last end, else by one member's duration. `ranks`: the members' ranks,
    empty if unknown. `waiting_ns`, `moving_ns`: summed over members, 0 unless `from_last`."""

    kind: Collective
    group: str
    members: int
    size: int
    ns: int
    from_last: bool
    ranks: tuple[int, ...] = ()
    waiting_ns: int = 0
    moving_ns: int = 0


def measure_bandwidths(surveys: Sequence[Survey], aligned: bool) -> list[Bandwidth]:
    """One row for each (collective, group, members, size bucket, timing method), sorted by collective, group and size.
    If `aligned`, surveys are on the common clock. Barriers and empty messages are left out."""
    matched_collectives, matched_transfers = meetings(surveys, _MATCHED_COLLECTIVES), transfers(surveys)
    # By rank index, a mask over the entries of the survey.
    is_unmatched = [np.ones(len(survey.row), bool) for survey in surveys]
    for rank_index, entry in [
        *zip(matched_collectives.rank_index.tolist(), matched_collectives.entry.tolist()),
        *zip(matched_transfers.sender.tolist(), matched_transfers.send.tolist()),
        *zip(matched_transfers.receiver.tolist(), matched_transfers.receive.tolist()),
    ]:
        is_unmatched[rank_index][entry] = False
    # (collective, group, members, number of binary digits of the size, `from_last`) -> the collectives.
    buckets: dict[tuple[str, str, int, int, bool], list[_Timed]] = defaultdict(list)
    timed_matches = (
        *_time_meetings(surveys, matched_collectives, aligned),
        *_time_transfers(surveys, matched_transfers, aligned),
    )
    for timed in (*timed_matches, *_time_unmatched(surveys, is_unmatched)):
        if timed.size > 0 and timed.ns > 0:
            # Sizes with k binary digits are those from 2**(k - 1) to below 2**k.
            digits = timed.size.bit_length()
            buckets[timed.kind.name, timed.group, timed.members, digits, timed.from_last].append(timed)
    links = _Links(surveys)
    return [_bandwidth_row(*key[:3], timings, links) for key, timings in sorted(buckets.items())]


def bus_factor(collective: str, members: int) -> Fraction | None:
    """The ratio of bus to algorithm bandwidth, as defined in nccl-tests. `collective`: a key of words.COLLECTIVES;
    `members`: number of ranks, 0 if unknown. None if the ratio depends on values that the file does not give."""
    if collective == _SEND_RECV:
        return Fraction(1)
    if not members:
        return None
    if collective == "all_reduce":
        return Fraction(2 * (members - 1), members)
    if collective in ("all_gather", "reduce_scatter", "all_to_all"):
        return Fraction(members - 1, members)
    return Fraction(1) if collective in ("broadcast", "reduce") else None


def _time_meetings(surveys: Sequence[Survey], matched: Meetings, aligned: bool) -> Iterator[_Timed]:
    """Yields each matched collective, timed from the last arrival to the last end if clocks are `aligned` and all
    members overlap in time, else by the member with the shortest duration."""
    if not matched.size:
        return
    # Members are consecutive by collective. `arrived`, `left`: the last arrival and the first end of each collective.
    first = matched.first[:-1]
    arrived = matched.arrived
    last_stop = np.maximum.reduceat(matched.stop, first)
    shortest_ns = np.minimum.reduceat(matched.stop - matched.start, first)
    is_exact = (arrived < matched.left) & aligned
    duration_ns = np.where(is_exact, last_stop - arrived, shortest_ns)
    # The times of each member, summed over the members of each collective.
    last_arrival = arrived[matched.meeting]
    waiting_ns = np.add.reduceat(last_arrival - matched.start, first)
    moving_ns = np.add.reduceat(matched.stop - last_arrival, first)
    columns = (first, matched.first[1:], duration_ns, is_exact, waiting_ns * is_exact, moving_ns * is_exact)
    for begin, end, length_ns, exact, waiting, moving in zip(*(column.tolist() for column in columns)):
        # (rank index, entry) of each member.
        members = list(zip(matched.rank_index[begin:end].tolist(), matched.entry[begin:end].tolist()))
        kinds = [surveys[rank_index].kinds[surveys[rank_index].kind[entry]] for rank_index, entry in members]
        facts = surveys[members[0][0]].facts
        yield _Timed(
            kind=kinds[0],
            group=group_of(kinds[0], facts),
            members=end - begin,
            size=max(kind.size for kind in kinds),
            ns=length_ns,
            from_last=exact,
            ranks=tuple(surveys[rank_index].facts.rank for rank_index, _ in members),
            waiting_ns=waiting,
            moving_ns=moving,
        )


def _time_transfers(surveys: Sequence[Survey], matched: Transfers, aligned: bool) -> Iterator[_Timed]:
    """Yields each matched transfer, timed from the later start of send and receive to the end of the receive if clocks
    are `aligned` and the receive ends after that start, else by the shorter of send and receive."""
    later_start = np.maximum(matched.sent_from, matched.received_from)
    is_exact = (later_start < matched.received_until) & aligned
    send_ns = matched.sent_until - matched.sent_from
    receive_ns = matched.received_until - matched.received_from
    duration_ns = np.where(is_exact, matched.received_until - later_start, np.minimum(send_ns, receive_ns))
    # Summed over both ends. A send whose data are buffered may end before the receive begins: its moving time is 0.
    waiting_ns = (later_start - matched.sent_from) + (later_start - matched.received_from)
    moving_ns = np.maximum(matched.sent_until - later_start, 0) + matched.received_until - later_start
    columns = (
        matched.sender,
        matched.receiver,
        matched.receive,
        duration_ns,
        is_exact,
        waiting_ns * is_exact,
        moving_ns * is_exact,
    )
    for sender, rank_index, entry, length_ns, exact, waiting, moving in zip(*(column.tolist() for column in columns)):
        kind = surveys[rank_index].kinds[surveys[rank_index].kind[entry]]
        yield _Timed(
            kind=kind,
            group=group_of(kind, surveys[rank_index].facts),
            members=2,
            size=kind.size,
            ns=length_ns,
            from_last=exact,
            ranks=(surveys[sender].facts.rank, surveys[rank_index].facts.rank),
            waiting_ns=waiting,
            moving_ns=moving,
        )


def _time_unmatched(surveys: Sequence[Survey], is_unmatched: Sequence[np.ndarray]) -> Iterator[_Timed]:
    """Yields the collectives and transfers whose other members are not in the files or could not be matched, timed by
    one member's duration, which includes waiting. `is_unmatched[i]`: mask over the entries of survey i."""
    for survey, mask in zip(surveys, is_unmatched):
        groups = [group_of(kind, survey.facts) for kind in survey.kinds]
        for entry in np.flatnonzero(mask).tolist():
            kind_index = int(survey.kind[entry])
            kind = survey.kinds[kind_index]
            members = 2 if kind.name == _SEND_RECV else kind.members
            if kind.name in (*_MATCHED_COLLECTIVES, _SEND_RECV):
                ns = int(survey.stop[entry] - survey.start[entry])
                yield _Timed(
                    kind=kind,
                    group=groups[kind_index],
                    members=members,
                    size=kind.size,
                    ns=ns,
                    from_last=False,
                    ranks=kind.ranks,
                )


class _Links:
    """The links between ranks, by the host and the device that each rank's file names."""

    def __init__(self, surveys: Sequence[Survey]) -> None:
        """`surveys`: of the ranks whose files are read; other ranks have no known host."""
        self._host_of_rank = {survey.facts.rank: survey.facts.host_name for survey in surveys}
        devices = {survey.facts.device for survey in surveys}
        # The data sheet of the known machine with this device; None if there is none.
        self._machine = find_machine(devices.pop()) if len(devices) == 1 else None

    def between(self, ranks: Sequence[int]) -> Link | None:
        """The slowest link that traffic between these ranks crosses: the one within a host if they share one, else the
        one between hosts; None if it is unknown."""
        hosts = {self._host_of_rank.get(rank, "") for rank in ranks}
        if self._machine is None or not hosts or "" in hosts:
            return None
        return self._machine.intra_node if len(hosts) == 1 else self._machine.inter_node


def _bandwidth_row(collective: str, group: str, members: int, timings: Sequence[_Timed], links: _Links) -> Bandwidth:
    """The row of one bucket: medians and extremes of its collectives. `timings`: of the bucket, all timed by the same
    method."""
    factor = bus_factor(collective, members)
    # In ascending order of algorithm bandwidth, exactly, and so of bus bandwidth.
    ordered = sorted(timings, key=lambda timed: Fraction(timed.size, timed.ns))
    median_call = lower_median(ordered)
    link = links.between(sorted({rank for timed in timings for rank in timed.ranks}))
    bus_bandwidths = [None if factor is None else int(factor * timed.size * 10**9 / timed.ns) for timed in ordered]
    return Bandwidth(
        collective=collective,
        group=group,
        members=members,
        size=lower_median(sorted(timed.size for timed in timings)),
        count=len(timings),
        time_ns=lower_median(sorted(timed.ns for timed in timings)),
        algbw=median_call.size * 10**9 // median_call.ns,
        busbw=lower_median(bus_bandwidths),
        slowest=bus_bandwidths[0],
        fastest=bus_bandwidths[-1],
        from_last=timings[0].from_last,
        waiting_ns=sum(timed.waiting_ns for timed in timings) if timings[0].from_last else None,
        moving_ns=sum(timed.moving_ns for timed in timings) if timings[0].from_last else None,
        link=link.name if link else "",
        link_rate=round(link.bandwidth.value) if link else None,
    )
