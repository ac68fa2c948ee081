"""The fields of a Kineto file outside its events: the job, the devices, the clock and the profiler's own messages.

`reader.py` makes a `Header` of the raw JSON that `document.Walk` collects. A note is a sentence for the user.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

_MAX_TIMESTAMP_NS = 2**61
_Count = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
LOG_KEYS = ("ERROR", "WARNING")
"""Keys under which Kineto writes its own messages, as lists of texts."""
_LOSS = re.compile(r"drop|overflow|lost|exceed|truncat|stopped|terminat|incomplete|out of memory", re.IGNORECASE)
_MAX_MESSAGES, _MAX_MESSAGE_LENGTH = 3, 200


class _Distributed(msgspec.Struct):
    """The header's `distributedInfo`. `rank`: -1 if absent; `pg_config`: a description of each process group."""

    rank: Annotated[int, msgspec.Meta(ge=-1, lt=2**31)] = -1
    world_size: _Count = 1
    backend: str = ""
    pg_config: list[dict[str, Any]] | None = None


class Header:
    """The fields of a Kineto file outside its events. A field of another type than Kineto writes is left out and
    reported in `notes`.

    `base`: ns to add to every timestamp; `rank`: -1, and `world` (number of ranks): 0, if the file does not state it;
    `groups`: name of a process group -> its description (`pg_size`, `ranks`, ...); `device_names`: device number ->
    name; `backend`: of the communication; `host_name`: empty if not stated; `notes`: sentences on fields left out.
    """

    def __init__(self, fields: Mapping[str, bytes]) -> None:
        """`fields`: key of the trace's header -> its raw JSON. A field of the wrong type is left out and noted."""
        self.notes: list[str] = []
        base = self._decode_field(fields, "baseTimeNanoseconds", int | str, default=0)
        self.base = self._parse_base(base) if isinstance(base, str) else base
        if abs(self.base) >= _MAX_TIMESTAMP_NS:
            self._note_left_out("baseTimeNanoseconds")
            self.base = 0
        job = self._decode_field(fields, "distributedInfo", _Distributed | None, default=None)
        self.world = job.world_size if job else 0
        self.rank = job.rank if job else -1
        if job and self.rank >= self.world:
            self.notes.append(f"distributedInfo states rank {self.rank} in a world of {self.world}: ranks start at 0.")
        self.backend = job.backend if job else ""
        self.groups = {str(group.get("pg_name")): group for group in (job and job.pg_config) or ()}
        self.host_name = self._decode_field(fields, "host_name", str, default="")
        properties = self._decode_field(fields, "deviceProperties", list[dict[str, Any]] | None, default=None) or ()
        self.device_names = {
            number: str(item.get("name", "")) for item in properties if type(number := item.get("id")) is int
        }
        self.notes.extend(self._describe_losses(fields))

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Number of ranks of each process group whose description states it."""
        sizes = (group.get("pg_size") for group in self.groups.values())
        return tuple(size for size in sizes if type(size) is int and 0 < size < 2**31)

    def _describe_losses(self, fields: Mapping[str, bytes]) -> list[str]:
        """Sentences that quote the profiler's messages on records that it lost, each once. `fields`: as in
        `__init__`."""
        messages: list[str] = []
        for key in LOG_KEYS:
            texts = self._decode_field(fields, key, list[Any] | str, default=[])
            for text in [texts] if isinstance(texts, str) else texts:
                message = " ".join(str(text).split())[:_MAX_MESSAGE_LENGTH]
                if _LOSS.search(message) and message not in messages:
                    messages.append(message)
        more = len(messages) - _MAX_MESSAGES
        return [
            *(
                f"The profiler lost events, so that the ledger is incomplete; it reports: {message}"
                for message in messages[:_MAX_MESSAGES]
            ),
            *([f"{more:,} more messages of the profiler report lost events."] if more > 0 else []),
        ]

    def _decode_field(self, fields: Mapping[str, bytes], name: str, field_type: Any, default: Any) -> Any:
        """Decodes the header field `name` as the type `field_type`; `default` if it is absent, or, with a note, if it
        is of another type. `fields`: key -> its value as raw JSON."""
        if name not in fields:
            return default
        try:
            return msgspec.json.decode(fields[name], type=field_type)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            self._note_left_out(name)
            return default

    def _parse_base(self, text: str) -> int:
        """The base time, an integer, in `text`, of which only 40 digits are read; 0, with a note, if it is not one."""
        try:
            return int(text[:40])
        except ValueError:
            self._note_left_out("baseTimeNanoseconds")
            return 0

    def _note_left_out(self, name: str) -> None:
        self.notes.append(f"{name} is not in Kineto's format; it was left out.")
