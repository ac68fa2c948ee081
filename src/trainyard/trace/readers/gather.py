"""Collects host spans and device work row by row and assembles `Events` from them; shared by several readers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from trainyard.errors import BadFile
from trainyard.events import I64, Collective, Events
from trainyard.step_marks import STEP_MARK
from trainyard.trace.readers.assemble import (
    DEVICE_DTYPES,
    HOST_DTYPES,
    WAIT_DTYPES,
    DeviceTable,
    FileFacts,
    HostTable,
    StreamWaits,
    assemble,
)

STATED = "class::"
"""Prefix of the ops that a reader creates from the op class stated in a file: `class::matmul`."""
_MAX_TIMESTAMP_NS = 2**62


def experimental(files: str, unproven: str) -> str:
    """The note of a reader that is not yet validated on real files."""
    schema = "follows their documented schema and is not yet validated on real files"
    return f"experimental: the reader of {files} {schema}. {unproven}"


class Gather:
    """Rows of one process, with the columns of HostTable, DeviceTable and StreamWaits. Times are integer ns. Rows with
    invalid times and duplicate device rows are dropped and counted. `marks`: prefix of the step annotations in this
    file. Names, threads and lanes (streams) are stored once: text -> number."""

    def __init__(self, source: str, marks: str = STEP_MARK) -> None:
        """`source`: the file's name, for messages; `marks`: prefix of the spans that mark steps."""
        self.source = source
        self.marks = marks
        self.dropped = 0
        self._names: dict[str, int] = {}
        self._threads: dict[Hashable, int] = {}
        self._lanes: dict[str, int] = {}
        # Rows with the columns of the tables; collectives by row of their table.
        self._host: list[tuple[int, ...]] = []
        self._device: list[tuple[int, ...]] = []
        self._waits: list[tuple[int, ...]] = []
        self._host_collectives: dict[int, Collective] = {}
        self._device_collectives: dict[int, Collective] = {}

    def __len__(self) -> int:
        """Device rows."""
        return len(self._device)

    def span(
        self,
        name: str,
        kind: int,
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
        """Adds a host span. `kind`: `events.OP`, `events.CALL`, ...; `seq`: autograd sequence number."""
        if not self._has_times(start, stop):
            return
        if collective is not None:
            self._host_collectives[len(self._host)] = collective
        self._host.append(
            (start, stop, _index_of(name, self._names), _index_of(thread, self._threads), kind,
             _int64_or_unknown(correlation), _int64_or_unknown(external), _int64_or_unknown(seq), backward, -1)
        )  # fmt: skip

    def work(
        self,
        name: str,
        kind: int,
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
        """Adds a device interval on the stream `lane`. `kind`: `events.KERNEL`, ...; `size`: bytes moved."""
        if not self._has_times(start, stop):
            return
        if collective is not None:
            self._device_collectives[len(self._device)] = collective
        self._device.append(
            (start, stop, _index_of(name, self._names), _index_of(lane, self._lanes), _int32_or_unknown(device), kind,
             _int64_or_unknown(correlation), _int64_or_unknown(external), _int64_or_unknown(size), -1)
        )  # fmt: skip

    def wait(self, correlation: int, device: int, lane: str, on: str) -> None:
        """Adds a wait: the call `correlation` made the stream `lane` wait for the stream `on`."""
        lanes = self._lanes
        self._waits.append(
            (_int64_or_unknown(correlation), _int32_or_unknown(device), _index_of(lane, lanes), _index_of(on, lanes))
        )

    def events(
        self, notes: Sequence[str], device_names: Mapping[int, str] = {}, host_name: str = ""
    ) -> tuple[Events, ...]:
        """Returns one `Events` for each device with work. Raises `BadFile` if no device has any."""
        if not self._device:
            raise BadFile(f"{self.source}: the file holds no device work.", "Was kernel tracing on?")
        table = np.array(self._device, np.int64)
        distinct = np.sort(np.unique(table[:, :7], axis=0, return_index=True)[1])
        device_of_row = table[distinct, 4]
        devices = np.unique(device_of_row[device_of_row >= 0]).tolist()
        notes = [
            *notes,
            *self._losses(len(table) - len(distinct), int((device_of_row < 0).sum()) if len(devices) > 1 else 0),
        ]
        if len(devices) > 1:
            notes.append("The file holds several devices; each is treated as a separate rank.")
        waits = StreamWaits(*_columns(self._waits, WAIT_DTYPES))
        by_device: list[Events] = []
        for device in devices if len(devices) > 1 else [-1]:
            rows = distinct[device_of_row == device] if device >= 0 else distinct
            facts = FileFacts(
                source=f"{self.source}:{device}" if device >= 0 else self.source,
                names=tuple(self._names),
                lanes=tuple(self._lanes),
                device_names=device_names,
                host_name=host_name,
                notes=tuple(notes),
            )
            # New columns for each device: `assemble` sorts them in place.
            spans: list[Any] = _columns(self._host, HOST_DTYPES)
            host = HostTable(*spans, collectives=self._host_collectives)
            own_waits = waits.on_device(device) if device >= 0 else waits
            by_device.extend(assemble(facts, host, self._device_table(table, rows), own_waits, self.marks))
        return tuple(by_device)

    def _device_table(self, table: I64, rows: I64) -> DeviceTable:
        new_row = {row: index for index, row in enumerate(rows.tolist())} if self._device_collectives else {}
        collectives = {new_row[row]: value for row, value in self._device_collectives.items() if row in new_row}
        columns: list[Any] = [column.astype(dtype) for column, dtype in zip(table[rows].T, DEVICE_DTYPES)]
        return DeviceTable(*columns, collectives=collectives)

    def _losses(self, duplicates: int, without_device: int) -> list[str]:
        """Notes on rows that were left out, with their numbers."""
        losses = (
            (self.dropped, "events with an unreadable or negative time were left out"),
            (duplicates, "device events are duplicates and count once"),
            (without_device, "device events do not name their device and were left out"),
        )
        return [f"{count:,} {message}." for count, message in losses if count]

    def _has_times(self, start: Any, stop: Any) -> bool:
        """Whether these are the times of a span; counts the row as dropped if not. A bool is not a time."""
        valid = type(start) is int and type(stop) is int and -_MAX_TIMESTAMP_NS < start <= stop < _MAX_TIMESTAMP_NS
        self.dropped += not valid
        return valid


def _index_of(key: Any, numbers: dict[Any, int]) -> int:
    return numbers.setdefault(key, len(numbers))


def _int64_or_unknown(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**63 else -1


def _int32_or_unknown(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**31 else -1


def _columns(rows: list[tuple[int, ...]], dtypes: tuple[type, ...]) -> list[Any]:
    table = np.array(rows, np.int64).reshape(len(rows), len(dtypes))
    return [column.astype(dtype) for column, dtype in zip(table.T, dtypes)]
