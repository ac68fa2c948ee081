"""Redacts the text files in a run's folder that ranks and launchers wrote without redaction.

To redact is to replace secrets (passwords, tokens, keys, as `trainyard.redact` recognises them) by a placeholder.
Documents are JSON files, logs any text.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import IO, cast

from trainyard.errors import BadFile
from trainyard.formats import toml
from trainyard.formats.atomic import replacing_own
from trainyard.formats.regular_files import is_regular, open_regular, read_bytes
from trainyard.redact import redact, redact_json, redact_json_lines, redact_lines, secret_paths
from trainyard.store.disk_space import write_whole, writing

_LOGS = "logs"
_WRITTEN_REDACTED = ("run.json", "ledgers.json", "tags.json")
_DOCUMENTS = ("*.json", "facts/*.json", "life/*.jsonl", "chaos/*.json")
_LONG_DOCUMENTS = ("samples/*.jsonl", "traces/*.json", "traces/*.json.gz")
_TOML = re.compile(
    r'''"""(?:[^"\\]|\\.|"(?!""))*+(?:"{3,5})?|\'\'\'(?:[^']|'(?!\'\'))*+(?:'{3,5})?'''
    r"""|"(?:[^"\\\n]|\\[^\n])*+"?|'[^'\n]*+'?|(?P<comments>\#[^\n]*+(?:\n[ \t]*+\#[^\n]*+)*+)""",
    re.DOTALL,
)
"""A string of a TOML document, or comments on consecutive lines."""
_CHUNK_BYTES = 1 << 20


def redact_files(folder: Path, skip: Container[str] = ()) -> bool:
    """Rewrite the job file, documents and logs in a run's folder that contain a secret; return whether any did.

    `skip`: names of files, relative to the folder, that are not checked. run.json, samples, ledgers and traces are not
    checked either: they are written without secrets.
    """
    documents = [
        path for pattern in _DOCUMENTS for path in sorted(folder.glob(pattern)) if path.name not in _WRITTEN_REDACTED
    ]

    def is_checked(path: Path) -> bool:
        return _is_file(path) and path.relative_to(folder).as_posix() not in skip

    changed = [_redact_document(path, redact_json) for path in documents if is_checked(path)]
    changed += [_redact_document(path, _redact_job) for path in [folder / "job.toml"] if is_checked(path)]
    changed += [_redact_log(path) for path in sorted((folder / _LOGS).glob("*")) if is_checked(path)]
    return any(changed)


def redact_older(folder: Path) -> bool:
    """Rewrite ledgers, samples and traces in which an earlier version stored a secret; return whether any had one.

    Raises `BadFile` for a file that cannot be read.
    """
    changed = [_redact_document(path, _redact_record) for path in [folder / "ledgers.json"] if _is_file(path)]
    paths = [path for pattern in _LONG_DOCUMENTS for path in sorted(folder.glob(pattern)) if _is_file(path)]
    return any([*changed, *(_redact_long_document(path) for path in paths)])


def redact_job(text: str) -> str:
    """A job file with the secrets in its comments redacted. If a value contains a secret or the text is not TOML, the
    whole text is redacted and may no longer be a valid job file."""
    shown = _TOML.sub(lambda match: _redact_comments(match["comments"]) if match["comments"] else match[0], text)
    try:
        return redact(shown) if any(secret_paths(toml.loads(shown))) else shown
    except toml.DecodeError:
        return redact(shown)


def copy_redacted(source: IO[bytes], target: Path, compress: bool) -> None:
    """Copy the JSON document `source`, such as a trace, without its secrets. `compress`: compress with gzip."""
    with gzip.open(target, "wb", compresslevel=6) if compress else target.open("wb") as file:
        file.writelines(redact_json_lines(source))


def _is_file(path: Path) -> bool:
    return is_regular(path, links=False)


def _redact_document(path: Path, redact_bytes: Callable[[bytes], bytes]) -> bool:
    """Rewrite a file with its contents redacted by `redact_bytes`; return whether that changed them."""
    data = read_bytes(path)
    redacted = redact_bytes(data)
    if redacted != data:
        write_whole(path, redacted)
    return redacted != data


def _redact_record(data: bytes) -> bytes:
    return redact_json(data, keep_numbers=True)


def _redact_job(data: bytes) -> bytes:
    return redact_job(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _redact_comments(comments: str) -> str:
    """Redacted comments that are still comments, even if a secret was at the beginning of a line."""
    lines = redact(comments).split("\n")
    return "\n".join(line if line.lstrip(" \t").startswith("#") else f"# {line}" for line in lines)


def _redact_long_document(path: Path) -> bool:
    """Redact a document of any size in pieces, and write it only if that changes it; return whether it did.

    Whether it changes is decided by the digests of both versions, so that neither is held in memory. Raises `BadFile`.
    """
    is_compressed = path.suffix == ".gz"
    try:
        with _open_document(path, is_compressed) as before, _open_document(path, is_compressed) as file:
            if _digest(iter(lambda: before.read(_CHUNK_BYTES), b"")) == _digest(redact_json_lines(file)):
                return False
        with (
            _open_document(path, is_compressed) as file,
            writing(path, path.stat().st_size),
            replacing_own(path) as part,
        ):
            copy_redacted(file, part, is_compressed)
    except (OSError, EOFError, zlib.error) as error:
        raise BadFile(f"{path}: cannot be read: {error}.", "Delete it if it is no longer needed.") from error
    return True


def _open_document(path: Path, is_compressed: bool) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if is_compressed else path.open("rb")


def _digest(pieces: Iterable[bytes]) -> bytes:
    """The SHA-256 digest over the concatenation of the pieces."""
    hasher = hashlib.sha256()
    for piece in pieces:
        hasher.update(piece)
    return hasher.digest()


def _redact_log(path: Path) -> bool:
    """Redact a log line by line, as it may be long, and write it only if a line changes; return whether any did."""
    changed = any(before != after for before, after in zip_longest(_read_lines(path), _read_redacted_lines(path)))
    if changed:
        with writing(path, path.stat().st_size), replacing_own(path) as part, part.open("wb") as target:
            target.writelines(_read_redacted_lines(path))
    return changed


def _read_redacted_lines(path: Path) -> Iterator[bytes]:
    """The lines of a log with secrets redacted; bytes that are not UTF-8 are kept."""
    lines = (line.decode("utf-8", "surrogateescape") for line in _read_lines(path))
    for line in redact_lines(lines):
        yield line.encode("utf-8", "surrogateescape")


def _read_lines(path: Path) -> Iterator[bytes]:
    with open_regular(path) as file:
        yield from file
