"""Decode a dump of torch's flight recorder: the pickle that NCCL's watchdog writes, the JSON form, or our document.

The fields, of versions 1.0 to 2.10: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp. Pickles are decoded as plain
data (`formats/plain_pickle.py`) and never executed. Files come from outside and from many versions: a missing field
takes a default, a field of a wrong type is ignored, and an entry that is not a mapping is skipped and counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from trainyard.code_location import CodeLocation
from trainyard.errors import BadFile, DamagedFile
from trainyard.formats.plain_pickle import loads
from trainyard.hangs.flight_record import (
    COMPLETED,
    SCHEDULED,
    STARTED,
    FlightRecord,
    Group,
    GroupStatus,
    Operation,
    RankState,
)
from trainyard.hangs.stack_text import parse_stack

SCHEMA = "trainyard/flight-record/1"
"""The schema of the document that a rank of our own job writes: the recorder's dump with the rank, its groups and its
Python stack, which the dump lacks."""
_CONTENTS = "flight record"
_STATES = {"scheduled": SCHEDULED, "started": STARTED, "completed": COMPLETED}
_PEERS = re.compile(r"(?P<name>\S+) (?P<first>\d{1,9})(?P<arrow>->|<-)(?P<second>\d{1,9})\Z")
_MAX_NUMBER = 2**62
_MAX_TEXT, _MAX_CALLS, _MAX_TENSORS, _MAX_DIMENSIONS, _MAX_RANKS = 300, 64, 4096, 32, 1 << 20


def decode_record(data: bytes, source: str, rank: int = -1) -> FlightRecord:
    """Decode the flight record in `data`.

    `source`: the file's name, for messages; `rank`: the global rank by the file's name, -1 if that has none, then the
    document must name it. Raises `BadFile` for data that is not a flight record, `DamagedFile` if it is cut short.
    """
    document = _decode_plain_data(data, source)
    dump, context = document, document
    if isinstance(document, dict) and document.get("schema") == SCHEMA:
        dump = document.get("dump")
    if isinstance(dump, dict) and dump.get("entries") == {}:
        dump = {**dump, "entries": []}
    if not isinstance(dump, dict) or not isinstance(dump.get("entries", []), list | tuple) or not _is_dump(dump):
        raise BadFile(
            f"{source}: not a flight record: it has no list `entries` of collectives.",
            "Pass dumps of torch's flight recorder (comm_lib_trace_rank_<N>, nccl_trace_rank_<N>), or their JSON form.",
        )
    return _RecordDecoder(dump, context).record(source, rank)


def _is_dump(dump: Mapping[Any, Any]) -> bool:
    """Whether a mapping has the keys of a dump. A recorder without entries leaves their key out of its JSON form."""
    return "entries" in dump or ("version" in dump and ("pg_config" in dump or "pg_status" in dump))


def _decode_plain_data(data: bytes, source: str) -> Any:
    """Decode a pickle or a JSON document without creating anything but plain data."""
    if data[:1] == b"\x80":
        return loads(data, source, _CONTENTS)
    if not data.strip():
        raise DamagedFile(f"{source}: empty.", "Did the process end before the recorder wrote its file?")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        if data.lstrip()[:1] != b"{":
            raise BadFile(f"{source}: not a flight record: neither a pickle nor JSON.") from error
        raise DamagedFile(
            f"{source}: the JSON document is damaged or cut short ({error}).", "Dump the flight record again."
        ) from error


class _RecordDecoder:
    """Decodes one dump. Parts of a pickle that entries share are decoded once: a small file may share large lists."""

    def __init__(self, dump: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """`dump`: the recorder's document; `context`: the document around it, or the dump again."""
        self.dump, self.context = dump, context
        self.skipped = 0
        self._stacks: dict[int, tuple[CodeLocation, ...]] = {}
        self._shapes: dict[int, tuple[tuple[int, ...], ...]] = {}
        """Identity of a list in the dump -> its decoded form."""
        self._group_names: dict[int, str] = {}
        """`pg_id` -> name of the process group, from the entries."""

    def record(self, source: str, rank: int) -> FlightRecord:
        """The whole record. Raises `BadFile` if neither the file's name nor the document gives the rank."""
        stated_rank = _integer(self.context.get("rank"), -1)
        rank = stated_rank if stated_rank >= 0 else rank
        if rank < 0:
            raise BadFile(
                f"{source}: a flight record does not hold its rank, and the file's name has no number.",
                "Rename the file so that it ends in its rank, as in comm_lib_trace_rank_3.",
            )
        entries = self.dump.get("entries", ())
        operations = [operation for entry in entries if (operation := self._operation(entry))]
        groups = self._groups(operations)
        return FlightRecord(
            rank=rank,
            operations=tuple(sorted(operations, key=lambda operation: operation.record)),
            groups=groups,
            status=self._status(),
            world=max(0, _integer(self.context.get("world"), 0)),
            job=_text(self.context.get("job")),
            version=_text(self.dump.get("version")),
            state=_decode_state(self.context),
            source=source,
            skipped=self.skipped,
            has_starts=any(_has_start(entry) for entry in entries if isinstance(entry, dict)),
        )

    def _operation(self, entry: Any) -> Operation | None:
        """The operation of an entry; None, and counted as skipped, if it is not a mapping."""
        if not isinstance(entry, dict):
            self.skipped += 1
            return None
        backend, _, full_name = _text(entry.get("profiling_name")).rpartition(":")
        peers = _PEERS.match(full_name)
        name = peers["name"] if peers else full_name.partition(" ")[0]
        source, target = (int(peers["first"]), int(peers["second"])) if peers else (-1, -1)
        if peers and peers["arrow"] == "<-":
            source, target = target, source
        is_p2p = bool(entry["is_p2p"]) if "is_p2p" in entry else name in ("send", "recv")
        group, _ = _group_of(entry)
        self._group_names[_integer(entry.get("pg_id"), -1)] = group
        sequence_key = "p2p_seq_id" if is_p2p else "collective_seq_id"
        return Operation(
            record=_integer(entry.get("record_id"), 0),
            group=group,
            sequence=_integer(entry.get(sequence_key), _integer(entry.get("seq_id"), -1)),
            name=name,
            backend=backend,
            is_p2p=is_p2p,
            source=source,
            target=target,
            input_sizes=self._shape(entry.get("input_sizes")),
            output_sizes=self._shape(entry.get("output_sizes")),
            input_dtypes=_texts(entry.get("input_dtypes")),
            output_dtypes=_texts(entry.get("output_dtypes")),
            state=_state(entry, backend),
            created_ns=_integer(entry.get("time_created_ns"), 0),
            stack=self._stack(entry.get("frames")),
        )

    def _stack(self, frames: Any) -> tuple[CodeLocation, ...]:
        """The calls of an entry, innermost first, at most `_MAX_CALLS`."""
        if not isinstance(frames, list | tuple):
            return ()
        if id(frames) not in self._stacks:
            self._stacks[id(frames)] = tuple(
                CodeLocation(
                    file=_text(frame.get("filename")),
                    line=_integer(frame.get("line"), 0),
                    function=_text(frame.get("name")),
                )
                for frame in frames[:_MAX_CALLS]
                if isinstance(frame, dict)
            )
        return self._stacks[id(frames)]

    def _shape(self, sizes: Any) -> tuple[tuple[int, ...], ...]:
        """The shapes of tensors; those that are not lists of numbers are left out."""
        if not isinstance(sizes, list | tuple):
            return ()
        if id(sizes) not in self._shapes:
            self._shapes[id(sizes)] = tuple(
                tuple(_integer(number, 0) for number in size[:_MAX_DIMENSIONS])
                for size in sizes[:_MAX_TENSORS]
                if isinstance(size, list | tuple)
            )
        return self._shapes[id(sizes)]

    def _groups(self, operations: list[Operation]) -> dict[str, Group]:
        """The process groups by name: those that the document lists with their members, and those of the entries."""
        groups = {operation.group: Group(operation.group) for operation in operations}
        for entry in self.dump.get("entries", ()):
            if isinstance(entry, dict):
                name, description = _group_of(entry)
                groups[name] = Group(name, description)
        for key, config in _mapping(self.dump.get("pg_config")).items():
            config = _mapping(config)
            name = _text(config.get("name")) or _text(key)
            ranks = _ranks(config.get("ranks"))
            if not name:  # gloo's recorder lists its last group only, without a name
                continue
            known = groups.get(name, Group(name))
            groups[name] = Group(name, _text(config.get("desc")) or known.description, ranks or known.ranks)
        for key, ranks in _mapping(self.context.get("groups")).items():
            name = _text(key)
            groups[name] = Group(name, groups.get(name, Group(name)).description, _ranks(ranks))
        return groups

    def _status(self) -> dict[str, GroupStatus]:
        """Name of a process group -> the sequence numbers of the last collectives that this rank enqueued, started and
        completed in it, -1 if unknown. The dump has them by the group's `pg_id`."""
        statuses = {}
        for key, status in _mapping(self.dump.get("pg_status")).items():
            status = _mapping(status)
            name = self._group_names.get(_integer(key, -2), "")  # -2: unreadable, the id of no group
            if name:
                statuses[name] = GroupStatus(
                    *(_integer(status.get(f"last_{word}_collective"), -1) for word in GroupStatus._fields)
                )
        return statuses


def _state(entry: Mapping[str, Any], backend: str) -> int:
    """SCHEDULED, STARTED or COMPLETED. gloo does not update its entries' state: it only retires them at their end."""
    state = _STATES.get(_text(entry.get("state")), SCHEDULED)
    if entry.get("time_discovered_completed_ns") or (backend == "gloo" and entry.get("retired") is True):
        return COMPLETED
    return max(state, STARTED) if entry.get("time_discovered_started_ns") else state


def _has_start(entry: Mapping[str, Any]) -> bool:
    """Whether an entry shows that the device started it. Without timing, the recorder sees its end only."""
    return bool(entry.get("time_discovered_started_ns")) or entry.get("state") == "started"


def _decode_state(context: Mapping[str, Any]) -> RankState:
    """The state of the process in our own document; defaults for a dump of torch."""
    exit_code = context.get("exit_code")
    return RankState(
        exit_code=exit_code if isinstance(exit_code, int) else None,
        error=_text(context.get("error"), 4096),
        is_stopped=context.get("is_stopped") is True,
        stack=parse_stack(_text(context.get("stack"), 1 << 16)),
        steps_begun=_integer(context.get("steps_begun"), -1),
        steps_done=_integer(context.get("steps_done"), -1),
    )


def _group_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Name and description of an entry's process group. Early versions have a name only, or an index only."""
    group = entry.get("process_group", entry.get("pg_name"))
    if isinstance(group, list | tuple):
        return (_text(group[0]) if group else ""), (_text(group[1]) if len(group) > 1 else "")
    return _text(group) or str(_integer(entry.get("pg_id"), 0)), ""


def _ranks(ranks: Any) -> tuple[int, ...]:
    """Global ranks in ascending order, of a list or of its text `[0, 1]`, which is how torch writes it."""
    if isinstance(ranks, str):
        numbers = [int(number) for number in re.findall(r"\d{1,9}", ranks[: _MAX_RANKS * 10])]
    elif isinstance(ranks, list | tuple):
        numbers = [number for number in ranks[:_MAX_RANKS] if isinstance(number, int)]
    else:
        numbers = []
    return tuple(sorted({number for number in numbers if number >= 0}))


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}


def _integer(value: Any, default: int) -> int:
    """An integer, or the digits of one, within bounds; else the default."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MAX_NUMBER:
        return default
    return value


def _text(value: Any, most: int = _MAX_TEXT) -> str:
    """A text, cut to `most` characters; empty for another type."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < _MAX_NUMBER else ""
    return value[:most] if isinstance(value, str) else ""


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list | tuple):
        return ()
    return tuple(_text(value) for value in values[:_MAX_TENSORS])
