"""Tags of runs: `tags.json`, a table of tag -> when it was assigned."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec

from trainyard.errors import BadFile, BadInput
from trainyard.formats.decoding import UNREADABLE
from trainyard.formats.regular_files import read_bytes
from trainyard.store.disk_space import write_whole

FILE = "tags.json"
MAX_BYTES = 1 << 20
"""Size up to which the table of a remote store is read."""
_TAG = r"\A(?![0-9a-f]{8}\Z)[A-Za-z][A-Za-z0-9._\-]{0,63}\Z"
_WHEN = r"\A\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+\-]\d\d:\d\d)?)?\Z"
"""A date, or a date and time, of ISO 8601."""
_Table = dict[Annotated[str, msgspec.Meta(pattern=_TAG)], Annotated[str, msgspec.Meta(pattern=_WHEN)]]
_MAX_CLOCK_DIFFERENCE = timedelta(days=1)


def check_tag(tag: str) -> None:
    """Raises `BadInput` for text that cannot be a tag."""
    if not re.match(_TAG, tag):
        raise BadInput(
            f"{tag!r} is not a tag.",
            "Use a letter, then letters, digits, '.', '_' or '-': at most 64 characters, and not 8 hexadecimal digits.",
        )


def now() -> str:
    """The current time in UTC, as runs and tags record it; sortable as text."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def read_tags(folder: Path) -> dict[str, str]:
    """Tag -> when it was assigned (ISO 8601); empty if the run has no tags. Raises `BadFile` for a damaged table."""
    path = folder / FILE
    if not path.exists():
        return {}
    return _decode(read_bytes(path), str(path), "Delete the file and tag the run again.")


def write_tags(folder: Path, tags: dict[str, str]) -> None:
    write_whole(folder / FILE, encode(tags))


def encode(tags: dict[str, str]) -> bytes:
    return msgspec.json.encode(tags)


def decode_remote(data: bytes, shown: str) -> dict[str, str]:
    """Decode the tags of a run in a remote store. `shown`: the name of the file in messages. Raises `BadFile`, also for
    a time in the future: such an assignment would override all later ones until then."""
    tags = _decode(data, shown, "Push the run again from the store that has its tags: that replaces them.")
    latest = (datetime.now(UTC) + _MAX_CLOCK_DIFFERENCE).isoformat()
    for tag, when in tags.items():
        if when > latest:
            raise BadFile(f"{shown}: the tag {tag!r} was assigned at {when}, which is in the future.")
    return tags


def _decode(data: bytes, shown: str, next_step: str) -> dict[str, str]:
    """Decode a table of tags: tag -> when it was assigned. `next_step`: the remedy in the message. Raises `BadFile`,
    with `shown` as the file's name."""
    try:
        return msgspec.json.decode(data, type=_Table)
    except UNREADABLE as error:
        raise BadFile(f"{shown}: not a table of tags: {error}.", next_step) from error
