"""SHA256SUMS: the SHA-256 digest of every file of a run that has ended, in the format of `sha256sum --check`.

Not listed: tags, which change; the lock and checkpoints, which stay on the machine that ran; hidden and unfinished
files; links and special files; the list itself and its signature.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from trainyard.errors import BadFile
from trainyard.formats.regular_files import is_regular, sha256_of, unreadable

FILE = "SHA256SUMS"
SIGNATURE = "SHA256SUMS.sig"
HEAD = "run.json"
_LOCAL = ("tags.json", "lock", "processes.lock", "checkpoints", FILE, SIGNATURE)
_LINE = re.compile(r"([0-9a-f]{64})  (.+)\Z")
_MAX_NAME_BYTES, _MAX_PART_BYTES, _MAX_PARTS = 1024, 255, 16
"""Limits of a file's name, of one part of it between slashes (as of most file systems), and of the number of parts."""


def is_listed(name: str) -> bool:
    """Whether a file has a digest and is pushed and pulled. `name`: relative to the run's folder, with slashes."""
    parts = PurePosixPath(name).parts
    return not name_problem(name) and parts[0] not in _LOCAL and not any(part.startswith(".") for part in parts)


def name_problem(name: str) -> str:
    """Why a file name is rejected, as the end of a phrase "a file ...", or an empty string if it is not.

    Rejected is a name that is outside the run's folder, contains control characters, or is too long to create.
    """
    parts = name.split("/")
    if name.startswith("/") or "" in parts or "." in parts or ".." in parts:
        return "outside its folder"
    if not name.isprintable() or "\\" in name:
        return "with control characters or backslashes in its name"
    longest = max(len(part.encode()) for part in parts)
    if len(name.encode()) > _MAX_NAME_BYTES or longest > _MAX_PART_BYTES or len(parts) > _MAX_PARTS:
        return f"whose name is too long ({len(name)} characters)"
    return ""


def compute(folder: Path, new_contents: Mapping[str, bytes] | None = None) -> dict[str, str]:
    """File name -> SHA-256 digest (hexadecimal) of every listed file in the folder.

    `new_contents`: file name -> contents that are about to be written, used instead of those on the disk. Raises
    `BadFile` for a file that cannot be read.
    """
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in (new_contents or {}).items()}
    for name, path in files(folder).items():
        if name not in digests:
            digests[name] = file_digest(path)
    return digests


def files(folder: Path) -> dict[str, Path]:
    """File name -> path of the listed files, in order of their names. Names are relative to the folder, with
    slashes."""
    paths_by_name = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {
        name: path for name, path in sorted(paths_by_name.items()) if is_listed(name) and is_regular(path, links=False)
    }


def file_digest(path: Path) -> str:
    """The SHA-256 digest of a file, in hexadecimal. Raises `BadFile`."""
    try:
        return sha256_of(path)
    except OSError as error:
        raise unreadable(path, error) from error


def render(digests: Mapping[str, str]) -> bytes:
    """The contents of a SHA256SUMS that lists these digests, sorted by file name."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items())).encode()


def parse(data: bytes, shown: str) -> dict[str, str]:
    """Parse the contents of a SHA256SUMS: file name -> SHA-256 digest (hexadecimal).

    `shown`: the file's name in messages. Raises `BadFile` for anything but a list of files inside a run's folder,
    run.json among them, each listed once and not also as a folder.
    """
    try:
        lines = data.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise BadFile(f"{shown}: not a list of digests: {error}.") from error
    digests: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        match = _LINE.match(line)
        if match is None:
            raise BadFile(f"{shown}:{number}: not a digest and the name of a file.")
        digest, name = match.groups()
        if reason := name_problem(name):
            raise BadFile(f"{shown}:{number}: lists a file {reason}: {name!r}.")
        if not is_listed(name):
            raise BadFile(f"{shown}:{number}: lists {name!r}, which is not a file of a run that is pushed and pulled.")
        if name in digests:
            raise BadFile(f"{shown}:{number}: lists {name!r} a second time.")
        digests[name] = digest
    if HEAD not in digests:
        raise BadFile(f"{shown}: does not list {HEAD}.")
    for name in digests:
        if listed_parent := next((str(parent) for parent in PurePosixPath(name).parents if str(parent) in digests), ""):
            raise BadFile(f"{shown}: lists {listed_parent!r} as a file and as a folder.")
    return digests
