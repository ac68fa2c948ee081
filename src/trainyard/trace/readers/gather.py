"""Collects host spans and device work row by row and assembles `Events` from them; shared by several readers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from trainyard.errors import BadFile
from trainyard.events import CALL, I64, KERNEL, NOTE, OP, Collective, Events, InferredSteps
from trainyard.redact import redact
from trainyard.step_marks import INFERRED_MARK, STEP_MARK
from trainyard.trace.readers.assemble import assemble
from trainyard.trace.readers.step_ranges import Range, find_steps
from trainyard.trace.readers.tables import (
    DEVICE_DTYPES,
    HOST_DTYPES,
    WAIT_DTYPES,
    DeviceTable,
    FileFacts,
    HostTable,
    StreamWaits,
)

STATED = "class::"
"""Prefix of the ops that a reader creates from the op class stated in a file: `class::matmul`."""
PHASE = "phase::"
"""Prefix of the annotations that a reader creates inside ranges around a phase: `phase::backward`."""
SYSTEM = "OS: "
"""Prefix of calls of the operating system: the host waits or works outside the framework."""
SAMPLED = "sampled: "
"""Prefix of functions that samples show on a thread."""
OWN_RANGES = (PHASE, SYSTEM, SAMPLED, "nccl:", "mpi:")
"""Beginnings of the names of annotations that readers create."""
_MAX_TIMESTAMP_NS = 2**62
# Positions of the columns of `HostTable` and `DeviceTable` in a row.
_NAME, _THREAD, _KIND, _CORRELATION, _EXTERNAL = 2, 3, 4, 5, 6
_DEVICE, _DEVICE_KIND, _DEVICE_CORRELATION, _DEVICE_EXTERNAL = 4, 5, 6, 7
_MAX_NAME = 60
"""Letters of a range's name that the evidence of inferred steps repeats."""


def note_unvalidated(files: str, unproven: str) -> str:
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
        self.main: Hashable | None = None
        """The main thread, if the reader knows it."""
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
        """Adds a host span, from `start` to `stop` ns; one with invalid times is counted as dropped. `kind`:
        `events.OP`, `CALL`, `NOTE` or `PYTHON`; `thread`: any key of its thread; `correlation`, `external`: ids that a
        call or an op shares with the device work it launched; `seq`: autograd sequence number."""
        if not self._has_times(start, stop):
            return
        if collective is not None:
            self._host_collectives[len(self._host)] = collective
        self._host.append(
            (start, stop, _number_of(name, self._names), _number_of(thread, self._threads), kind,
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
        """Adds a device interval, from `start` to `stop` ns, on the stream `lane` of `device` (-1 if unknown); one with
        invalid times is counted as dropped. `kind`: `events.KERNEL`, `COPY` or `MEMSET`; `correlation`, `external`: ids
        of the call and of the op that launched it; `size`: bytes moved."""
        if not self._has_times(start, stop):
            return
        if collective is not None:
            self._device_collectives[len(self._device)] = collective
        self._device.append(
            (start, stop, _number_of(name, self._names), _number_of(lane, self._lanes), _int32_or_unknown(device), kind,
             _int64_or_unknown(correlation), _int64_or_unknown(external), _int64_or_unknown(size), -1)
        )  # fmt: skip

    def wait(self, correlation: int, device: int, lane: str, on: str) -> None:
        """Adds a wait: the call `correlation` made the stream `lane` wait for the stream `on`."""
        lanes = self._lanes
        self._waits.append(
            (_int64_or_unknown(correlation), _int32_or_unknown(device), _number_of(lane, lanes), _number_of(on, lanes))
        )

    def events(
        self,
        notes: Sequence[str],
        device_names: Mapping[int, str] = {},
        host_name: str = "",
        *,
        rank: int = -1,
        world: int = 0,
        python: bool = False,
    ) -> tuple[Events, ...]:
        """Returns one `Events` for each device with work. `notes`: messages for the user; `device_names`: device number
        -> name; `rank`, `world`: of a process that states them; `python`: whether it is a Python interpreter. Raises
        `BadFile` if no device has any work."""
        if not self._device:
            raise BadFile(f"{self.source}: the file holds no device work.", "Was kernel tracing on?")
        self._copy_phases_to_helper_threads()
        inferred = self._infer_steps()
        table = np.array(self._device, np.int64)
        # Rows are duplicates if all columns up to the correlation id are equal.
        distinct = np.sort(np.unique(table[:, : _DEVICE_CORRELATION + 1], axis=0, return_index=True)[1])
        device_of_row = table[distinct, _DEVICE]
        devices = np.unique(device_of_row[device_of_row >= 0]).tolist()
        notes = [
            *notes,
            *self._describe_losses(
                len(table) - len(distinct), int((device_of_row < 0).sum()) if len(devices) > 1 else 0
            ),
        ]
        if len(devices) > 1:
            notes.append("The file holds several devices; each is treated as a separate rank.")
        waits = StreamWaits(*_split_columns(self._waits, WAIT_DTYPES))
        by_device: list[Events] = []
        for device in devices if len(devices) > 1 else [-1]:
            rows = distinct[device_of_row == device] if device >= 0 else distinct
            facts = FileFacts(
                source=f"{self.source}:{device}" if device >= 0 else self.source,
                names=tuple(self._names),
                lanes=tuple(self._lanes),
                rank=rank if device < 0 else -1,
                world=world,
                device_names=device_names,
                host_name=host_name,
                notes=tuple(notes),
            )
            # New columns for each device: `assemble` sorts them in place.
            spans: list[Any] = _split_columns(self._host, HOST_DTYPES)
            host = HostTable(*spans, collectives=self._host_collectives)
            own_waits = waits.on_device(device) if device >= 0 else waits
            by_device.extend(
                assemble(
                    facts, host, self._device_table(table, rows), own_waits, INFERRED_MARK if inferred else self.marks
                )
            )
        main = self._threads.get(self.main, -1) if self.main is not None else -1
        return tuple(
            replace(
                events,
                mark=self.marks,
                inferred=inferred,
                python=python,
                main=main if main >= 0 and not events.marks else events.main,
            )
            for events in by_device
        )

    def _device_table(self, table: I64, rows: I64) -> DeviceTable:
        """Selects `rows` of `table`, which holds all device rows, as columns; collectives get their new row numbers."""
        new_row = {row: index for index, row in enumerate(rows.tolist())} if self._device_collectives else {}
        collectives = {new_row[row]: value for row, value in self._device_collectives.items() if row in new_row}
        columns: list[Any] = [column.astype(dtype) for column, dtype in zip(table[rows].T, DEVICE_DTYPES)]
        return DeviceTable(*columns, collectives=collectives)

    def find_launching_threads(self) -> set[Hashable]:
        """The keys of the threads that launch device work."""
        threads = list(self._threads)
        return {threads[span[_THREAD]] for span in self._host if span[_KIND] == CALL and span[_CORRELATION] >= 0}

    def find_free_time(self, thread: Hashable) -> tuple[I64, NDArray[np.bool_]]:
        """(ascending edges in ns, is_free): before edge i, is_free[i] is whether no call, wait or Python frame of the
        thread is open; is_free[-1] holds after the last edge. The edges are those of all of the thread's spans."""
        number = self._threads.get(thread, -1)
        names = list(self._names)
        # Columns: start, stop, whether the span keeps the thread busy.
        spans = [(span[0], span[1], span[_KIND] != NOTE or names[span[_NAME]].startswith((SYSTEM, "mpi:")))
                 for span in self._host if span[_THREAD] == number]  # fmt: skip
        table = np.array(spans, np.int64).reshape(-1, 3)
        edges = np.unique(table[:, :2])
        change_in_open = np.zeros(len(edges) + 1, np.int64)  # busy spans that open less those that close at each edge
        for column, change in ((0, 1), (1, -1)):
            busy_edges = table[table[:, 2] > 0, column]
            np.add.at(change_in_open, np.searchsorted(edges, busy_edges) + 1, change)
        return edges, np.cumsum(change_in_open) == 0

    def _infer_steps(self) -> InferredSteps | None:
        """Renames ranges that repeat once per step to steps, if the file has no step marks. Returns the evidence; None
        if there are no such ranges."""
        names = list(self._names)
        rows = [row for row, span in enumerate(self._host) if span[_KIND] == NOTE]
        if any(names[self._host[row][_NAME]].startswith(self.marks) for row in rows):
            return None
        rows = [row for row in rows if not names[self._host[row][_NAME]].startswith(OWN_RANGES)]
        spans = [self._host[row] for row in rows]
        ranges = [Range(start, stop, names[name], thread) for start, stop, name, thread, *_ in spans]
        steps = find_steps(ranges, self._launch_times())
        if steps is None:
            return None
        for index, label in zip(steps.rows, steps.labels):
            start, stop, _, *rest = self._host[rows[index]]
            self._host[rows[index]] = (start, stop, _number_of(f"{INFERRED_MARK}{label}", self._names), *rest)
        evidence = redact(f"{len(steps.rows):,} ranges {steps.name[:_MAX_NAME]!r}")
        return InferredSteps(source="annotation", confidence=round(steps.confidence, 2), evidence=evidence)

    def _launch_times(self) -> I64:
        """Ascending times at which kernels were launched: by calls, or by ops if the file has no calls for them."""
        kernels = [row for row in self._device if row[_DEVICE_KIND] == KERNEL]
        for kind, host_column, device_column in (
            (CALL, _CORRELATION, _DEVICE_CORRELATION),
            (OP, _EXTERNAL, _DEVICE_EXTERNAL),
        ):
            idents = {row[device_column] for row in kernels} - {-1}
            launches = [span[0] for span in self._host if span[_KIND] == kind and span[host_column] in idents]
            if launches:
                return np.sort(np.array(launches, np.int64))
        return np.empty(0, np.int64)

    def _copy_phases_to_helper_threads(self) -> None:
        """Adds the phases of ranges to threads that launch work but have no ranges: autograd's threads run the backward
        pass inside the range that another thread opens around it."""
        names = list(self._names)
        phases = [span for span in self._host if span[_KIND] == NOTE and names[span[_NAME]].startswith(PHASE)]
        if len({span[_THREAD] for span in phases}) != 1:
            return
        annotated = {span[_THREAD] for span in self._host if span[_KIND] in (OP, NOTE)}
        launching = {span[_THREAD] for span in self._host if span[_KIND] == CALL and span[_CORRELATION] >= 0}
        helpers = sorted(launching - annotated)
        self._host.extend((*span[:_THREAD], helper, *span[_KIND:]) for helper in helpers for span in phases)

    def _describe_losses(self, duplicates: int, without_device: int) -> list[str]:
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


def _number_of(key: Any, numbers: dict[Any, int]) -> int:
    return numbers.setdefault(key, len(numbers))


def _int64_or_unknown(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**63 else -1


def _int32_or_unknown(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**31 else -1


def _split_columns(rows: list[tuple[int, ...]], dtypes: tuple[type, ...]) -> list[Any]:
    table = np.array(rows, np.int64).reshape(len(rows), len(dtypes))
    return [column.astype(dtype) for column, dtype in zip(table.T, dtypes)]
