"""The stored record of a launch, and the documents that `trainyard launch` prints.

A launch is a job that was handed to a launcher. Its folder `<store>/launches/<id>/` has `job.toml`, the rendered files,
`launch-record.json` and `logs/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from trainyard.errors import BadFile, BadInput, UnknownName, nearest
from trainyard.formats.decoding import UNREADABLE
from trainyard.launch_request import JobStatus, Variable
from trainyard.store.disk_space import write_whole

FILE = "launch-record.json"


class LaunchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A launch. `on`: name of the launcher; `job`: name of the job; `scheduler_id`: id at the launcher, empty if it was
    not submitted; `started`: time of submission (UTC); `ranks`: of the whole job; `folder`: of the launch."""

    id: str
    on: str
    job: str
    scheduler_id: str = ""
    started: str = ""
    nodes: int
    ranks: int
    folder: str


class LaunchReport(msgspec.Struct, frozen=True, kw_only=True):
    """A launch and its current status."""

    schema: Literal["trainyard/launch/1"] = "trainyard/launch/1"
    launch: LaunchRecord
    status: JobStatus


class LaunchList(msgspec.Struct, frozen=True, kw_only=True):
    """The stored launches, newest first."""

    schema: Literal["trainyard/launches/1"] = "trainyard/launches/1"
    launches: tuple[LaunchRecord, ...]


class RenderedLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """The files that a launch would submit. `files`: name -> contents; `environment`: the variables that the launcher
    sets, with their reasons."""

    schema: Literal["trainyard/launch-files/1"] = "trainyard/launch-files/1"
    on: str
    nodes: int
    ranks: int
    files: dict[str, str]
    environment: dict[str, Variable]


class LaunchLog(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a log file. `path`: of the file, or a description of the source; `lines`: without line ends."""

    path: str
    lines: tuple[str, ...]


class LaunchLogs(msgspec.Struct, frozen=True, kw_only=True):
    """The ends of the logs of a launch, by file name."""

    schema: Literal["trainyard/launch-logs/1"] = "trainyard/launch-logs/1"
    launch: LaunchRecord
    logs: tuple[LaunchLog, ...]


def write_record(record: LaunchRecord) -> None:
    """Write the record into the launch's folder."""
    write_whole(Path(record.folder) / FILE, msgspec.json.format(msgspec.json.encode(record), indent=1))


def list_records(root: Path) -> list[LaunchRecord]:
    """The launches in the store at `root`, newest first. Folders without a readable record are left out."""
    records: list[LaunchRecord] = []
    for path in sorted((root / "launches").glob(f"*/{FILE}")):
        try:
            records.append(_read(path))
        except BadFile:
            continue
    return sorted(records, key=lambda record: record.started, reverse=True)


def find_record(root: Path, name: str) -> LaunchRecord:
    """The launch with the id `name`, or the only one whose id begins with it. Raises `UnknownName`, or `BadInput` for a
    prefix of several ids."""
    records = list_records(root)
    matches = [record for record in records if record.id == name] or [
        record for record in records if name and record.id.startswith(name)
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise BadInput(
            f"{name!r} is a prefix of {len(matches)} launches: {', '.join(match.id for match in matches)}.",
            "Give more characters.",
        )
    known = [record.id for record in records]
    raise UnknownName(
        f"there is no launch {name!r} in {root / 'launches'}.",
        nearest(name, known) if known else "`trainyard launch JOB.toml --on slurm` makes the first.",
    )


def _read(path: Path) -> LaunchRecord:
    """Read a record; its folder is the one that it is in. Raises `BadFile`."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=LaunchRecord)
    except (*UNREADABLE, OSError) as error:
        raise BadFile(f"{path}: not the record of a launch: {error}.") from error
    return msgspec.structs.replace(record, folder=str(path.parent))
