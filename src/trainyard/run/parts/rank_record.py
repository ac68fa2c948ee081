"""What each watched rank records about its job, in `job/rank<N>.json` of its node's run folder. No torch here."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trainyard.errors import BadFile
from trainyard.formats.decoding import UNREADABLE
from trainyard.formats.regular_files import read_bytes
from trainyard.run.parts.part import ClockStamp
from trainyard.store.disk_space import write_whole
from trainyard.store.run_folder import rank_files

FOLDER = "job"


class ClockBound(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a clock's offset: the clock of rank `reference` minus that of this rank's host, from `low_ns` to
    `high_ns`, at the time `at_ns` of the latter, by `rounds` messages each way."""

    reference: int
    low_ns: int
    high_ns: int
    at_ns: int
    rounds: int


class RankRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a job. `job_id`, `agreed_by`, `world_size`, `node`: as in `Part`; `clock`: at its first recorded
    step. `hosts`: rank -> host name, empty unless this rank has read them. `collector`: where the part of a node is
    sent at the end: addresses separated by commas, port and token, separated by spaces (`network.py`); empty if
    unknown. `bound`: of its host's clock, None if it was not measured."""

    job_id: str
    agreed_by: str
    rank: int
    world_size: int
    node: str
    clock: ClockStamp
    hosts: dict[int, str] = {}
    collector: str = ""
    bound: ClockBound | None = None


def write_record(folder: Path, record: RankRecord) -> None:
    """Write the record of a rank to the run's folder; it is never visible half-written."""
    path = folder / FOLDER / f"rank{record.rank}.json"
    path.parent.mkdir(exist_ok=True)
    write_whole(path, msgspec.json.encode(record))


def read_records(folder: Path) -> list[RankRecord]:
    """The records in a run's folder, in rank order. Raises `BadFile`."""
    return [_read(path) for path in rank_files(folder / FOLDER, ".json")]


def _read(path: Path) -> RankRecord:
    """Read one record. Raises `BadFile`."""
    try:
        return msgspec.json.decode(read_bytes(path), type=RankRecord)
    except UNREADABLE as error:
        raise BadFile(f"{path}: not the record of a rank: {error}.") from error
