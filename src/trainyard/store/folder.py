"""One run's folder: plain files that are the truth about the run.

run.json               record.Run without samples and ledgers; written last, so what it says is there
job.toml               the job file, verbatim
samples/rank<N>.jsonl  one line a step
ledgers.json           a document of ledgers
traces/  facts/  logs/ what the profiler, the ranks and the launcher wrote
tags.json              name -> when it was given
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import msgspec

from trainyard import ledger as ledgers
from trainyard.errors import BadFile, BadLedger
from trainyard.record import SCHEMA, Run, Sample
from trainyard.store.disk import write_whole, writing

PARTS = ("samples", "traces", "facts", "logs")
_RANK = re.compile(r"rank(\d{1,6})(\.[a-z.]+)\Z")


class _Version(msgspec.Struct):
    schema: str = ""


def create(folder: Path, run: Run, job_text: str) -> None:
    """A new folder, marked by the state `run` carries; until its run.json is there it is no run."""
    with writing(folder):
        folder.mkdir(parents=True)
        for part in PARTS:
            (folder / part).mkdir()
    write_whole(folder / "job.toml", job_text.encode())
    _write_head(folder, run)


def write(folder: Path, run: Run) -> Run:
    """Samples and ledgers, then run.json; returns the run with its digest."""
    for rank in sorted({sample.rank for sample in run.samples}):
        lines = (msgspec.json.encode(sample) + b"\n" for sample in run.samples if sample.rank == rank)
        write_whole(folder / "samples" / f"rank{rank}.jsonl", b"".join(lines))
    write_whole(folder / "ledgers.json", ledgers.to_json(run.ledgers))
    run = msgspec.structs.replace(run, digest=digest(folder))
    _write_head(folder, run)
    return run


def _write_head(folder: Path, run: Run) -> None:
    head = msgspec.structs.replace(run, samples=(), ledgers=())
    fields = msgspec.to_builtins(head, enc_hook=ledgers.encode_hook)
    data = msgspec.json.encode({"schema": run.schema, "state": run.state, **fields})  # said even where default
    write_whole(folder / "run.json", msgspec.json.format(data, indent=1) + b"\n")


def read_head(folder: Path) -> Run:
    """run.json alone. Raises `BadFile` with the path, also for a schema of a later version."""
    path = folder / "run.json"
    data = _bytes(path)
    try:
        schema = msgspec.json.decode(data, type=_Version).schema
        if schema != SCHEMA:
            raise BadFile(
                f"{path}: its schema is {schema!r}, but this version reads {SCHEMA!r}.",
                "Use the trainyard that wrote it, or a later one.",
            )
        run = msgspec.json.decode(data, type=Run, dec_hook=ledgers.decode_hook)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: not a run: {error}.") from error
    for name in run.trace:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise BadFile(f"{path}: its trace {name!r} points outside the run's folder.")
    return run


def read(folder: Path) -> Run:
    """The whole run, with its samples and ledgers."""
    head = read_head(folder)
    path = folder / "ledgers.json"
    try:
        booked = ledgers.from_json(_bytes(path)) if path.exists() else ()
    except BadLedger as error:
        raise BadFile(f"{path}: {error.says}") from error
    return msgspec.structs.replace(head, samples=tuple(read_samples(folder)), ledgers=booked)


def read_samples(folder: Path) -> list[Sample]:
    """All ranks' samples in rank order. A torn last line, which a killed rank leaves, is passed over."""
    return [sample for path in _sample_files(folder) for sample in _lines(path)]


def _lines(path: Path) -> Iterable[Sample]:
    lines = _bytes(path).split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            yield decode_sample(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            if number == len(lines):  # the last line has no newline after it: torn
                return
            raise BadFile(f"{path}:{number}: not a sample: {error}.") from error


def decode_sample(line: bytes) -> Sample:
    """One line of a sample file. JSON has no word for a loss that is not a number: it is written as null."""
    fields = msgspec.json.decode(line)
    if isinstance(fields, dict) and fields.get("loss", 0.0) is None:
        fields["loss"] = float("nan")
    return msgspec.convert(fields, Sample)


def _sample_files(folder: Path) -> list[Path]:
    return rank_files(folder / "samples", ".jsonl")


def rank_files(part: Path, *endings: str, ranks: int = 0) -> list[Path]:
    """`rank<N>` with one of the `endings`, by number; what an unfinished write left is not among them. `ranks`: of so
    many only, the first ones, where it is not 0."""
    found = [(match, path) for path in part.glob("rank*") if (match := _RANK.match(path.name)) and match[2] in endings]
    numbered = sorted((int(match[1]), path) for match, path in found)
    return [path for number, path in numbered if not ranks or number < ranks]


def digest(folder: Path) -> str:
    """sha256 over job, samples and ledgers: each file's name, length and contents."""
    total = hashlib.sha256()
    for path in (folder / "job.toml", *_sample_files(folder), folder / "ledgers.json"):
        data = _bytes(path)
        total.update(f"{path.name} {len(data)}\n".encode() + data)
    return total.hexdigest()


def read_tags(folder: Path) -> dict[str, str]:
    """Tag -> when it was given (ISO 8601); empty where the file is missing."""
    path = folder / "tags.json"
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(_bytes(path), type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: not a table of tags: {error}.", "Delete the file and tag the run again.") from error


def write_tags(folder: Path, tags: dict[str, str]) -> None:
    write_whole(folder / "tags.json", msgspec.json.encode(tags))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadFile(f"{path}: cannot be read: {error.strerror or error}.") from error
