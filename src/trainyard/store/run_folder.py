"""One run's folder of plain files, the source of truth for the run.

run.json               record.Run without samples and ledgers; written last, after the files it refers to
job.toml               the job file; comments are redacted, and a job with a secret in a value is rejected
samples/rank<N>.jsonl  one line per step
ledgers.json           a document of ledgers
traces/  facts/  logs/ files of the profiler, the ranks and the launcher
SHA256SUMS             the digests of all these files, once the run has ended
tags.json              tag -> when it was assigned

The head of a run is the contents of run.json. Functions with an argument `shown` use it in messages in place of the
path, for files that were copied from elsewhere.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from trainyard import ledger as ledgers
from trainyard import renamed_keys
from trainyard.errors import BadFile, BadLedger
from trainyard.formats.decoding import UNREADABLE, check_integers
from trainyard.formats.regular_files import is_regular, read_bytes
from trainyard.record import OLD_SCHEMAS, SCHEMA, Run, Sample
from trainyard.redact import redact_json
from trainyard.store import digests
from trainyard.store.disk_space import write_whole, writing
from trainyard.store.redact_run import redact_files, redact_job, redact_older

PARTS = ("samples", "traces", "facts", "logs")
_RANK = re.compile(r"rank(\d{1,6})(\.[a-z.]+)\Z")


class _SchemaOnly(msgspec.Struct):
    schema: str = ""


def create(folder: Path, run: Run, job_text: str) -> None:
    """Create a run's folder with its job file and run.json; it counts as a run once its run.json exists.

    `job_text`: the job file, whose comments are redacted. Raises the errors of `disk_space.writing`.
    """
    with writing(folder):
        folder.mkdir(parents=True)
        for part in PARTS:
            (folder / part).mkdir()
    write_whole(folder / "job.toml", redact_job(job_text).encode())
    write_whole(folder / "run.json", _encode_head(run))


def write(folder: Path, run: Run) -> Run:
    """Write samples and ledgers, then run.json, all redacted; return the run with its digest.

    run.json has the state `incomplete` until everything is written: a kill in between must not leave a finished run
    with the wrong samples. A run that has ended also gets a list of the digests of all its files; an earlier list and
    its signature are removed.
    """
    write_whole(folder / "run.json", _encode_head(msgspec.structs.replace(run, state="incomplete", failure="")))
    for name in (digests.FILE, digests.SIGNATURE):
        with writing(folder):
            (folder / name).unlink(missing_ok=True)
    for rank in sorted({sample.rank for sample in run.samples}):
        lines = (msgspec.json.encode(sample) + b"\n" for sample in run.samples if sample.rank == rank)
        write_whole(folder / "samples" / f"rank{rank}.jsonl", b"".join(lines))
    write_whole(folder / "ledgers.json", ledgers.to_json(run.ledgers))
    redact_files(folder)
    run = msgspec.structs.replace(run, digest=digest(folder))
    head = _encode_head(run)
    if run.state != "incomplete":
        write_whole(folder / digests.FILE, digests.render(digests.compute(folder, {digests.HEAD: head})))
    write_whole(folder / "run.json", head)
    return run


def _encode_head(run: Run) -> bytes:
    """Encode the contents of run.json: the run without samples and ledgers, redacted."""
    head = msgspec.structs.replace(run, samples=(), ledgers=())
    fields = msgspec.to_builtins(head, enc_hook=ledgers.encode_hook)
    data = msgspec.json.encode({"schema": run.schema, "state": run.state, **fields})  # written even if default
    return redact_json(msgspec.json.format(data, indent=1) + b"\n", keep_numbers=True)


def redact_run(folder: Path) -> None:
    """Remove the secrets that an earlier version left in a run's folder, and update its digest if it was valid.

    Files listed in SHA256SUMS were written without secrets, and are not checked again.
    """
    listed = read_digests(folder)
    if listed is not None:
        redact_files(folder, listed)
        return
    head, data = read_head(folder), read_bytes(folder / "run.json")
    intact = bool(head.digest) and digest(folder) == head.digest
    changed = [redact_files(folder), redact_older(folder)]
    if any(changed) and intact:
        write_whole(folder / "run.json", _encode_head(msgspec.structs.replace(head, digest=digest(folder))))
    elif (shown := redact_json(data, keep_numbers=True)) != data:
        write_whole(folder / "run.json", shown)


def read_head(folder: Path, shown: str = "") -> Run:
    """Read run.json alone. Raises `BadFile` with the path, also for the schema of another version. `shown`: the name of
    the folder in messages."""
    shown = f"{shown or folder}/run.json"
    return decode_head(read_bytes(folder / "run.json", shown), shown)


def decode_head(data: bytes, shown: str) -> Run:
    """Decode the contents of a run.json: the run without samples and ledgers, redacted.

    `shown`: the file's name in messages. A file of the old schema is upgraded. Raises `BadFile` for anything else, and
    for a trace outside the run's folder.
    """
    data = redact_json(data, keep_numbers=True)
    try:
        schema = msgspec.json.decode(data, type=_SchemaOnly).schema
        if schema not in (SCHEMA, *OLD_SCHEMAS):
            raise BadFile(
                f"{shown}: its schema is {schema!r}, but this version reads {SCHEMA!r}.",
                "Use the trainyard that wrote it, or a later one.",
            )
        document = msgspec.json.decode(data)
        check_integers(document, shown)
        if schema in OLD_SCHEMAS:
            data = _upgraded(document)
        run = msgspec.json.decode(data, type=Run, dec_hook=ledgers.decode_hook)
    except UNREADABLE as error:
        raise BadFile(f"{shown}: not a run: {error}.") from error
    if run.state == "damaged":
        raise BadFile(f"{shown}: not a run: the state 'damaged' is never stored.")
    for name in run.trace:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise BadFile(f"{shown}: its trace {name!r} points outside the run's folder.")
    return run


def _upgraded(document: dict[str, Any]) -> bytes:
    """A run.json of an older schema in the current one: keys of its job and of its incidents were renamed."""
    job, incidents = document.get("job"), document.get("incidents")
    renamed: dict[str, Any] = {"job": renamed_keys.upgraded(job)} if isinstance(job, dict) else {}
    if isinstance(incidents, list):
        renamed["incidents"] = [renamed_keys.upgraded_incident(incident) for incident in incidents]
    return msgspec.json.encode({**document, "schema": SCHEMA, **renamed})


def read(folder: Path, shown: str = "") -> Run:
    """Read a run with its samples and ledgers. Raises `BadFile`. `shown`: the name of the folder in messages."""
    head = read_head(folder, shown)
    booked = read_ledgers(folder, shown)
    return msgspec.structs.replace(head, samples=tuple(read_samples(folder, shown)), ledgers=booked)


def read_ledgers(folder: Path, shown: str = "") -> tuple[ledgers.Ledger, ...]:
    """Read the run's ledgers; empty if the file does not exist. `shown`: the name of the folder in messages. Raises
    `BadFile`."""
    path, shown = folder / "ledgers.json", f"{shown or folder}/ledgers.json"
    try:
        return ledgers.from_json(read_bytes(path, shown)) if path.exists() else ()
    except BadLedger as error:
        raise BadFile(f"{shown}: {error.message}") from error


def read_samples(folder: Path, shown: str = "") -> list[Sample]:
    """All samples in rank order. An incomplete last line, which a killed rank leaves, is skipped. `shown`: the name of
    the folder in messages. Raises `BadFile` for any other bad line."""
    return [
        sample
        for path in sample_files(folder)
        for sample in _read_sample_file(path, f"{shown or folder}/samples/{path.name}")
    ]


def _read_sample_file(path: Path, shown: str) -> Iterator[Sample]:
    """Yield the samples of one file; a last line that is cut off is skipped. `shown`: the name of the file in messages.
    Raises `BadFile` for any other bad line."""
    lines = read_bytes(path, shown).split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            yield decode_sample(line)
        except UNREADABLE as error:
            if number == len(lines):  # the last line has no newline after it: torn
                return
            raise BadFile(f"{shown}:{number}: not a sample: {error}.") from error


def decode_sample(line: bytes) -> Sample:
    """Decode one line of a sample file. A loss that is not a number is stored as null, as JSON has no NaN."""
    fields = msgspec.json.decode(line)
    if isinstance(fields, dict) and fields.get("loss", 0.0) is None:
        fields["loss"] = float("nan")
    return msgspec.convert(fields, Sample)


def sample_files(folder: Path) -> list[Path]:
    return rank_files(folder / "samples", ".jsonl")


def rank_files(folder: Path, *endings: str, ranks: int = 0) -> list[Path]:
    """Regular files `rank<N><ending>` in `folder`, sorted by rank N.

    Files still being written are named `.NAME.part`, and do not match. `endings`: with their dots, such as `.json.gz`;
    `ranks`: if not 0, only files with N < `ranks`.
    """
    matches = [(path, _RANK.match(path.name)) for path in folder.glob("rank*")]
    numbered = sorted(
        (int(match[1]), path) for path, match in matches if match and match[2] in endings and is_regular(path)
    )
    return [path for number, path in numbered if not ranks or number < ranks]


def digest(folder: Path) -> str:
    """The SHA-256 digest (hexadecimal) over job, samples and ledgers: each file's name, length and contents."""
    hasher = hashlib.sha256()
    for path in (folder / "job.toml", *sample_files(folder), folder / "ledgers.json"):
        data = read_bytes(path)
        hasher.update(f"{path.name} {len(data)}\n".encode() + data)
    return hasher.hexdigest()


def write_digests(folder: Path) -> None:
    """Recompute the digests of a run that has ended, including files that were added since."""
    write_whole(folder / digests.FILE, digests.render(digests.compute(folder)))


def read_digests(folder: Path) -> dict[str, str] | None:
    """Name -> digest; None for a run that has not ended or was written by an earlier version. Raises `BadFile`."""
    path = folder / digests.FILE
    return digests.parse(read_bytes(path), str(path)) if path.exists() else None
