"""What a reader finds, row by row, and the columns that `assemble` is given: the common end of the readers here."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from trainyard.errors import BadFile
from trainyard.events import I64, Collective, Events
from trainyard.trace.readers.assemble import (
    DEVICE_KINDS,
    HOST_KINDS,
    WAIT_KINDS,
    DeviceTable,
    FileFacts,
    HostTable,
    StreamWaits,
    assemble,
)

MARK = "ProfilerStep#"
"""What the annotations of steps begin with in `Events`."""
STATED = "class::"
"""Begins the name of an op that a reader makes of what a file states of its device's work: `class::matmul`."""
_FARTHEST = 2**62


def experimental(files: str, unproven: str) -> str:
    """The note that every reader which no real file has proved puts on what it read."""
    schema = "follows their documented schema and has not met a real file yet"
    return f"experimental: the reader of {files} {schema}. {unproven}"


class Gather:
    """Rows of one process. Times are integer ns; a row whose times are none is dropped and counted, and so is a device
    row that stands twice. `marks`: what the annotations of steps begin with in this file."""

    def __init__(self, source: str, marks: str = MARK) -> None:
        self.source = source
        self.marks = marks
        self.dropped = 0
        self._names: dict[str, int] = {}
        self._threads: dict[Hashable, int] = {}
        self._lanes: dict[str, int] = {}
        self._host: list[tuple[int, ...]] = []
        self._device: list[tuple[int, ...]] = []
        self._waits: list[tuple[int, ...]] = []
        self._of_host: dict[int, Collective] = {}
        self._of_device: dict[int, Collective] = {}

    def __len__(self) -> int:
        """Device rows."""
        return len(self._device)

    def span(
        self,
        name: str,
        what: int,
        thread: Hashable,
        start: Any,
        stop: Any,
        *,
        correlation: int = -1,
        external: int = -1,
        seq: int = -1,
        backward: bool = False,
        collective: Collective | None = None,
    ) -> None:
        """A host span; `what` as in `events.OP` and its like."""
        if not self._timely(start, stop):
            return
        if collective is not None:
            self._of_host[len(self._host)] = collective
        self._host.append(
            (start, stop, _number_of(name, self._names), _number_of(thread, self._threads), what, _long(correlation),
             _long(external), _long(seq), backward, -1)
        )  # fmt: skip

    def work(
        self,
        name: str,
        what: int,
        lane: str,
        device: int,
        start: Any,
        stop: Any,
        *,
        correlation: int = -1,
        external: int = -1,
        size: int = -1,
        collective: Collective | None = None,
    ) -> None:
        """A device interval on the stream `lane`; `what` as in `events.KERNEL`; `size`: bytes moved."""
        if not self._timely(start, stop):
            return
        if collective is not None:
            self._of_device[len(self._device)] = collective
        self._device.append(
            (start, stop, _number_of(name, self._names), _number_of(lane, self._lanes), _int(device), what,
             _long(correlation), _long(external), _long(size), -1)
        )  # fmt: skip

    def wait(self, correlation: int, device: int, lane: str, on: str) -> None:
        """The call `correlation` made the stream `lane` wait for the stream `on`."""
        lanes = self._lanes
        self._waits.append((_long(correlation), _int(device), _number_of(lane, lanes), _number_of(on, lanes)))

    def events(self, notes: Sequence[str], makes: Mapping[int, str] = {}, host_name: str = "") -> tuple[Events, ...]:
        """One `Events` for each device with work. Raises `BadFile` where none has any."""
        if not self._device:
            raise BadFile(f"{self.source}: the file holds no work of a device.", "Was kernel tracing on?")
        table = np.array(self._device, np.int64)
        once = np.sort(np.unique(table[:, :7], axis=0, return_index=True)[1])
        number = table[once, 4]
        devices = np.unique(number[number >= 0]).tolist()
        notes = [*notes, *self._losses(len(table) - len(once), int((number < 0).sum()) if len(devices) > 1 else 0)]
        if len(devices) > 1:
            notes.append("The file holds several devices; each is taken as a rank of its own.")
        waits = StreamWaits(*_columns(self._waits, WAIT_KINDS))
        made: list[Events] = []
        for device in devices if len(devices) > 1 else [-1]:
            rows = once[number == device] if device >= 0 else once
            facts = FileFacts(
                source=f"{self.source}:{device}" if device >= 0 else self.source,
                names=tuple(self._names),
                lanes=tuple(self._lanes),
                makes=makes,
                host_name=host_name,
                notes=tuple(notes),
            )
            # Made anew for each device: `assemble` puts a table in order where it stands.
            spans: list[Any] = _columns(self._host, HOST_KINDS)
            host = HostTable(*spans, collectives=self._of_host)
            own = waits.of(device) if device >= 0 else waits
            made.extend(assemble(facts, host, self._device_table(table, rows), own, MARK))
        return tuple(made)

    def _device_table(self, table: I64, rows: I64) -> DeviceTable:
        place_of = {row: place for place, row in enumerate(rows.tolist())} if self._of_device else {}
        collectives = {place_of[row]: found for row, found in self._of_device.items() if row in place_of}
        columns: list[Any] = [column.astype(kind) for column, kind in zip(table[rows].T, DEVICE_KINDS)]
        return DeviceTable(*columns, collectives=collectives)

    def _losses(self, twice: int, homeless: int) -> list[str]:
        said = (
            (self.dropped, "events with an unreadable or negative time were left out"),
            (twice, "device events stand in the file twice and count once"),
            (homeless, "device events do not say their device and were left out"),
        )
        return [f"{count:,} {what}." for count, what in said if count]

    def _timely(self, start: Any, stop: Any) -> bool:
        """Whether these are a span's times. `bool` is an int, and no time."""
        timely = type(start) is int and type(stop) is int and -_FARTHEST < start <= stop < _FARTHEST
        self.dropped += not timely
        return timely


def _number_of(key: Any, numbers: dict[Any, int]) -> int:
    return numbers.setdefault(key, len(numbers))


def _long(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**63 else -1


def _int(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**31 else -1


def _columns(rows: list[tuple[int, ...]], kinds: tuple[type, ...]) -> list[Any]:
    table = np.array(rows, np.int64).reshape(len(rows), len(kinds))
    return [column.astype(kind) for column, kind in zip(table.T, kinds)]
