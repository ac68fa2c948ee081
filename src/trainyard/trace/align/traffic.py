"""Traffic matrix: the bytes that each rank sends to each other rank in all-to-alls and point-to-point transfers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainyard.events import Collective
from trainyard.trace.align.matching import Meetings, Transfers, meetings, transfers
from trainyard.trace.align.survey import Survey

_ALL_TO_ALL, _SEND_RECV = "all_to_all", "send_recv"


class PairTraffic(NamedTuple):
    """Traffic from rank `sender` to rank `receiver`. `bytes`: over `calls` calls; `ns`: the time of these calls, from
    the last arrival if that is known, else by the shortest duration. An all-to-all serves all pairs at once, so the
    times of pairs do not add up to the time of its calls."""

    collective: str
    sender: int
    receiver: int
    bytes: int
    calls: int
    ns: int


def measure_traffic(surveys: Sequence[Survey], aligned: bool) -> list[PairTraffic]:
    """One row for each collective and ordered pair of different ranks that exchanged data, sorted. If `aligned`, the
    surveys are on the common clock. Calls whose members or sizes are not recorded are left out."""
    cells: dict[tuple[str, int, int], list[int]] = defaultdict(lambda: [0, 0, 0])  # bytes, calls, ns

    def add(collective: str, sender: int, receiver: int, sent_bytes: int, ns: int) -> None:
        cell = cells[collective, sender, receiver]
        cell[0] += sent_bytes
        cell[1] += 1
        cell[2] += ns

    moving_ns = _moving_ns(surveys, aligned)
    ranks = {survey.facts.rank for survey in surveys}
    for survey, times_ns in zip(surveys, moving_ns):
        rank = survey.facts.rank
        shares = [_sent_by(kind, rank) for kind in survey.kinds]
        for kind_index, ns in zip(survey.kind.tolist(), times_ns.tolist()):
            kind = survey.kinds[kind_index]
            for member, sent_bytes in shares[kind_index]:
                add(_ALL_TO_ALL, rank, member, sent_bytes, ns)
            if kind.name == _SEND_RECV and kind.peer >= 0 and kind.size > 0 and kind.peer != rank:
                if not kind.receives:
                    add(_SEND_RECV, rank, kind.peer, kind.size, ns)
                elif kind.peer not in ranks:  # otherwise the sender's own file has it
                    add(_SEND_RECV, kind.peer, rank, kind.size, ns)
    return [PairTraffic(*pair, *values) for pair, values in sorted(cells.items())]


def _sent_by(kind: Collective, rank: int) -> list[tuple[int, int]]:
    """(receiver, bytes) of an all-to-all for each other member that `rank` sends to; empty for other collectives."""
    if kind.name != _ALL_TO_ALL:
        return []
    return [(member, size) for member, size in zip(kind.ranks, kind.sent) if member != rank and size > 0]


def _moving_ns(surveys: Sequence[Survey], aligned: bool) -> list[np.ndarray]:
    """For each survey, the time in ns of each of its entries without waiting for other members: for matched all-to-alls
    and sends from the last arrival to this rank's end (of a send: to the receiver's end), or the shortest duration of
    the members if clocks are not aligned or the members do not overlap; the own duration of all other entries."""
    times = [survey.stop - survey.start for survey in surveys]
    met, sent = meetings(surveys, (_ALL_TO_ALL,)), transfers(surveys)
    if met.size:
        _set_meeting_times(times, met, aligned)
    _set_transfer_times(times, sent, aligned)
    return times


def _set_meeting_times(times: list[np.ndarray], met: Meetings, aligned: bool) -> None:
    """Writes the times of matched all-to-alls into `times`."""
    shortest_ns = np.minimum.reduceat(met.stop - met.start, met.first[:-1])[met.meeting]
    from_last_ns = met.stop - met.arrived[met.meeting]
    ns = np.where((from_last_ns > 0) & aligned, from_last_ns, shortest_ns)
    for rank_index, entry, value in zip(met.rank_index.tolist(), met.entry.tolist(), ns.tolist()):
        times[rank_index][entry] = value


def _set_transfer_times(times: list[np.ndarray], sent: Transfers, aligned: bool) -> None:
    """Writes the times of matched sends into `times`."""
    from_last_ns = sent.received_until - np.maximum(sent.sent_from, sent.received_from)
    shortest_ns = np.minimum(sent.sent_until - sent.sent_from, sent.received_until - sent.received_from)
    ns = np.where((from_last_ns > 0) & aligned, from_last_ns, shortest_ns)
    for rank_index, entry, value in zip(sent.sender.tolist(), sent.send.tolist(), ns.tolist()):
        times[rank_index][entry] = value
