"""What a Kineto file says outside its events. A field of another kind than Kineto writes is left out, and that is
said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

_FARTHEST = 2**61
_Count = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]


class _Distributed(msgspec.Struct):
    rank: Annotated[int, msgspec.Meta(ge=-1, lt=2**31)] = -1
    world_size: _Count = 1
    backend: str = ""
    pg_config: list[dict[str, Any]] | None = None


class Header:
    """`base`: ns to add to every stamp; `world` 0 where unsaid; `groups`: the process groups by name; `makes`: device
    number -> name."""

    def __init__(self, said: Mapping[str, bytes]) -> None:
        self.notes: list[str] = []
        base = self._field(said, "baseTimeNanoseconds", int | str, 0)
        self.base = self._number(base) if isinstance(base, str) else base
        if abs(self.base) >= _FARTHEST:
            self._left_out("baseTimeNanoseconds")
            self.base = 0
        found = self._field(said, "distributedInfo", _Distributed | None, None)
        self.world = found.world_size if found else 0
        self.rank = found.rank if found else -1
        if found and self.rank >= self.world:
            self.notes.append(f"distributedInfo says rank {self.rank} of a world of {self.world}, which cannot be.")
        self.backend = found.backend if found else ""
        self.groups = {str(group.get("pg_name")): group for group in (found and found.pg_config) or ()}
        self.host_name = self._field(said, "host_name", str, "")
        properties = self._field(said, "deviceProperties", list[dict[str, Any]] | None, None) or ()
        self.makes = {number: str(item.get("name", "")) for item in properties if type(number := item.get("id")) is int}

    @property
    def group_sizes(self) -> tuple[int, ...]:
        sizes = (group.get("pg_size") for group in self.groups.values())
        return tuple(size for size in sizes if type(size) is int and 0 < size < 2**31)

    def _field(self, said: Mapping[str, bytes], name: str, kind: Any, default: Any) -> Any:
        if name not in said:
            return default
        try:
            return msgspec.json.decode(said[name], type=kind)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            self._left_out(name)
            return default

    def _number(self, text: str) -> int:
        try:
            return int(text[:40])
        except ValueError:
            self._left_out("baseTimeNanoseconds")
            return 0

    def _left_out(self, name: str) -> None:
        self.notes.append(f"{name} is not what Kineto writes; it was left out.")
