"""Flight records in the supervisor: how they travel from the agents, and the verdict on a hang from them.

An agent stores the record of a rank under a key of its own, compressed, and reports when. The supervisor reads each
record once.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

from trainyard.errors import BadFile
from trainyard.hangs.decode_record import decode_record
from trainyard.hangs.find_culprit import find_culprit
from trainyard.hangs.flight_record import FlightRecord
from trainyard.hangs.verdict import HangAnalysis
from trainyard.launch.supervisor.find_cause import STOPPED
from trainyard.launch.supervisor.messages import RankReport
from trainyard.launch.supervisor.signed_store import SignedStore

MAX_BYTES = 64 * 2**20
"""Largest record that is transferred, uncompressed."""
_UNDECIDED = ("cannot_tell", "no_hang")
MISMATCHES = ("missing_collective", "wrong_order", "wrong_size", "wrong_dtype")
"""Verdicts that name a cause in the program, if ranks end with an error instead of hanging."""


def record_key(generation: int, rank: int) -> str:
    """The key of a rank's flight record in the store."""
    return f"flight/{generation}/{rank}"


def publish_record(store: SignedStore, generation: int, rank: int, data: bytes) -> None:
    """Store the record of a rank; one that is too large is left out."""
    if len(data) <= MAX_BYTES:
        store.set(record_key(generation, rank), zlib.compress(data, 1))


class StoredRecords:
    """Reads the flight records that the agents published."""

    def __init__(self, store: SignedStore) -> None:
        """`store`: that of the agents."""
        self._store = store
        self._last: dict[int, tuple[tuple[int, int], FlightRecord]] = {}
        """Rank -> ((generation, time of the record), the record) that was read last."""

    def read(self, generation: int, ranks: Sequence[RankReport]) -> dict[int, FlightRecord]:
        """The records of the ranks that have published one, by rank; one that cannot be decoded is left out."""
        records = {}
        for report in ranks:
            if not report.recorded_ns:
                continue
            time_of_record = generation, report.recorded_ns
            if report.rank not in self._last or self._last[report.rank][0] != time_of_record:
                self._last[report.rank] = time_of_record, self._fetch(generation, report.rank)
            records[report.rank] = self._last[report.rank][1]
        return records

    def _fetch(self, generation: int, rank: int) -> FlightRecord:
        packed = self._store.get(record_key(generation, rank))
        data = zlib.decompressobj().decompress(packed, MAX_BYTES)
        try:
            return decode_record(data, f"rank {rank}", rank)
        except BadFile:
            return FlightRecord(rank)


def judge_hang(ranks: Sequence[RankReport], records: Mapping[int, FlightRecord]) -> HangAnalysis | None:
    """The verdict on the ranks of a generation, by their flight records and the states of their processes; None if it
    is undecided or blames no rank and no network.

    `ranks`: the reports of all ranks; `records`: by rank, of those that could write one.
    """
    if not any(record.operations for record in records.values()):
        return None
    analysis = find_culprit([_with_state(report, records.get(report.rank)) for report in ranks])
    is_decided = analysis.kind not in _UNDECIDED and (analysis.ranks or analysis.kind == "network")
    return analysis if is_decided else None


def describe_verdict(analysis: HangAnalysis) -> str:
    """The verdict and its evidence as part of a sentence."""
    summary, evidence = (f"{text[0].lower()}{text[1:].rstrip('.')}" for text in (analysis.summary, analysis.evidence))
    return f"{summary} ({evidence})"


def _with_state(report: RankReport, record: FlightRecord | None) -> FlightRecord:
    """The record of a rank with the state of its process as its agent reports it."""
    record = record or FlightRecord(report.rank)
    state = record.state._replace(
        exit_code=report.exit_code,
        error=report.reason or record.state.error,
        is_stopped=report.state == STOPPED and report.exit_code is None,
        steps_begun=report.begun + 1,
        steps_done=report.done,
    )
    return record._replace(state=state)
