"""Reads Perfetto traces of AMD's profilers, and those that `trainyard report` writes.

rocprofv3 (`--output-format pftrace`) and rocprofiler-systems (formerly Omnitrace) differ in the categories of slices,
in the names of tracks that identify devices and streams, and in debug annotations. A file that trainyard wrote contains
the profile's columns (embedded.py); its slices are not read.

A file consists of packets; `PerfettoPackets` decodes them into slices, each an interval on a track (a thread or a
stream) with debug annotations (`facts`, values by name). Rows are collected in a `Gather`: `work` adds a row of device
work, `span` one of the host.
"""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

from trainyard.errors import BadFile
from trainyard.events import COPY, KERNEL, MEMSET, PYTHON, Events
from trainyard.formats.protobuf import LENGTH, as_message, fields
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.trace.readers import embedded, whole_files
from trainyard.trace.readers.annotate import add_call, add_mpi_call, add_range, copy_name
from trainyard.trace.readers.gather import SYSTEM, Gather, note_unvalidated
from trainyard.trace.readers.pftrace_packets import PACKET_FIELD, PerfettoPackets, Slice
from trainyard.trace.readers.recognise import recognise

NOTE = note_unvalidated(
    "Perfetto traces of rocprofv3 and rocprofiler-systems",
    "Unproven: the names of categories, and the track names that identify streams and devices.",
)
_TIME_FIELD, _SEQUENCE_FIELD = 8, 10
_HEAD_BYTES = 16
"""More than the number of a sequence and the tag of the next field take."""
# Categories of rocprofv3, rocprofiler-systems and Omnitrace.
_CALLS = {"hip_api", "hsa_api", "rccl_api", "rocm_hip_api", "rocm_hsa_api", "rocm_rccl_api", "rocm_rccl", "rocm_hip",
          "rocm_hsa", "rccl", "roctracer", "rocdecode_api", "rocjpeg_api", "ompt"}  # fmt: skip
_RANGES = {"marker_api", "rocm_marker_api", "rocm_roctx", "user", "host", "kokkos"}
_KERNELS = {"kernel_dispatch", "rocm_kernel_dispatch", "device_hip", "device_hsa", "rocm_hip_stream"}
_COPIES = {"memory_copy", "rocm_memory_copy"}
_IGNORED = {"memory_allocation", "scratch_memory", "counter_collection", "rocm_scratch_memory", "rocm_memory_allocate",
            "rocm_page_migration", "rocm_counter_collection", "sampling", "timer_sampling", "overflow_sampling",
            "rocm_smi", "amd_smi", "cpu_freq"}  # fmt: skip
_IS_COPY = re.compile(r"MEMORY_COPY|^Copy(Host|Device)To", re.I)
_IS_FILL = re.compile(r"^FillBuffer|MEMORY_FILL", re.I)
_IS_NO_WORK = re.compile(r"SCRATCH_MEMORY|^(Marker|Barrier|ALLOC|FREE)\b")
_FROM_HOST, _TO_HOST = re.compile(r"HOST_?TO", re.I), re.compile(r"TO_?HOST", re.I)
_LANE = re.compile(r"(STREAM|QUEUE) \[?(\d+)\]?", re.I)
_TRACK_DEVICE = re.compile(r"(?:Kernel Dispatch|Activity Device) \[?(\d{1,6})\]?")
_LAST_NUMBER = re.compile(r"(\d+)\D*\Z")


class Pftrace:
    """The `Reader` of Perfetto traces. `ReadOptions.mark` is the prefix of the ranges that are steps."""

    def sniff(self, path: Path) -> bool:
        return recognise(path).reader == "pftrace"

    def read(self, path: Path, options: ReadOptions = AS_WRITTEN) -> tuple[Events, ...]:
        """Returns one `Events` for each process and device with work; of a file that trainyard wrote, one for each
        profile in it. Raises `BadFile`."""
        lost: list[str] = []  # the reason why the file could not be read to its end
        profiles: list[memoryview] = []
        reading = _PftraceRows(path, options.mark)
        for field, wire, value in fields(memoryview(whole_files.contents(path, options.limit)), lost):
            if (field, wire) != (PACKET_FIELD, LENGTH):
                continue
            packet = as_message(value)
            if (profile := _embedded_profile(packet)) is not None:
                profiles.append(profile)
            elif not profiles:  # each rank's profile precedes its slices
                reading.packets.add_packet(packet)
        if profiles:
            cut = [f"The file is cut short: {lost[0]}. Complete ranks were read."] if lost else []
            return tuple(embedded.decode_profile(path, profile, cut) for profile in profiles)
        return reading.build_events(path, lost)


def _embedded_profile(packet: memoryview) -> memoryview | None:
    """The encoded profile that a packet holds, in its second field, after the number of its sequence; None if the
    packet holds none."""
    if embedded.TAG not in bytes(packet[:_HEAD_BYTES]):  # most packets are slices
        return None
    for field, wire, value in islice(fields(packet, []), 2):
        if (field, wire) == (embedded.FIELD, LENGTH):
            return as_message(value)
    return None


class _PftraceRows:
    """The rows of one file. Counts: `slices` read, `unknown_slices` of other categories.

    `processes`: id -> its rows; `flows`: id of a flow in the file -> the number that stands for it; `copies`: (process,
    slice, source, target) of copies whose agents (CPUs and GPUs) are numbered like the nodes of the machine, until
    kernels show the devices; source and target are `host` or `device`. `devices`: numbers of the devices with kernels.
    """

    def __init__(self, path: Path, marks: str) -> None:
        """`marks`: prefix of the slices that mark steps."""
        self.path, self.marks = path, marks
        self.packets = PerfettoPackets(self.add_slice)
        self.slices = self.unknown_slices = 0
        self.processes: dict[int, Gather] = {}
        self.flows: dict[int, int] = {}
        self.copies: list[tuple[int, Slice, str, str]] = []
        self.devices: set[int] = set()

    def build_events(self, path: Path, lost: list[str]) -> tuple[Events, ...]:
        """One `Events` per process and device, after all packets have been added. `lost`: why the end of the file could
        not be read, if so. Raises `BadFile` if no process has device work."""
        if not self.slices:
            reason = f" ({lost[0]})" if lost else ""
            raise BadFile(
                f"{path}: this Perfetto trace holds no slice of rocprofv3 or rocprofiler-systems, and no profile of "
                f"trainyard{reason}.",
                "Pass the profile that it was made from.",
            )
        self._add_numbered_copies()
        working = [rows for _, rows in sorted(self.processes.items()) if len(rows)]
        if not working:
            raise BadFile(f"{path}: the file holds no kernel and no copy.", "Was kernel tracing on?")
        notes = [NOTE, *self._describe_losses(lost)]
        if idle := len(self.processes) - len(working):
            notes.append(f"{idle:,} processes without device work were left out.")
        return tuple(events for rows in working for events in rows.events(notes))

    def _describe_losses(self, lost: list[str]) -> list[str]:
        """Notes for the user on the slices and packets that were left out. `lost`: as for `build_events`."""
        losses = (
            (self.packets.damaged, "damaged packets were left out"),
            (self.packets.compressed, "compressed packets were left out: this reader does not unpack them"),
            (self.unknown_slices, "slices of other categories than those of AMD's profilers were left out"),
            (self.packets.incomplete, "slices without a beginning or an end were left out"),
        )
        cut = [f"The file is cut short: {lost[0]}. The part before that was read."] if lost else []
        return [*cut, *(f"{count:,} {message}." for count, message in losses if count)]

    def add_slice(self, slice_: Slice) -> None:
        """Adds a complete slice as a call, an annotation, a Python frame, a kernel or a copy, by its category; counts
        it in `slices`, or in `unknown_slices` if its category is not known."""
        category = slice_.category
        self.slices += category not in _IGNORED
        process = self.packets.process_of(slice_.track)
        rows = self.processes.setdefault(process, Gather(self.path.name, self.marks))
        thread, correlation = slice_.facts.get("tid", slice_.track), self.correlation(slice_)
        times = (slice_.start, slice_.stop)
        if category in _CALLS:
            add_call(rows, slice_.name, thread, *times, correlation)
        elif category in _RANGES:
            add_range(rows, slice_.name, thread, *times)
        elif category == "mpi":
            add_mpi_call(rows, slice_.name, thread, *times)
        elif category == "pthread":
            add_range(rows, f"{SYSTEM}{slice_.name}", thread, *times)
        elif category == "python":
            rows.span(slice_.name, PYTHON, thread, *times)
        elif category in _COPIES or (category in _KERNELS and _IS_COPY.search(slice_.name)):
            self.add_copy(process, rows, slice_, correlation)
        elif category in _KERNELS and not _IS_NO_WORK.search(slice_.name):
            kind = MEMSET if _IS_FILL.search(slice_.name) else KERNEL
            device = self.device_of_kernel(slice_)
            self.devices.add(device)
            rows.work(slice_.name, kind, self.lane(slice_), device, *times, correlation=correlation)
        elif category not in _IGNORED:
            self.slices -= 1
            self.unknown_slices += 1

    def correlation(self, slice_: Slice) -> int:
        """The id that a launch and its work share: an annotation, or else a number for their flow; -1 if the slice has
        neither."""
        stated_id = slice_.facts.get("corr_id", -1)
        if isinstance(stated_id, int) and stated_id > 0:
            return stated_id
        if slice_.flow < 0:
            return -1
        # Flows are numbered down from 2**62 - 2, so that they do not coincide with stated ids.
        return self.flows.setdefault(slice_.flow, 2**62 - 2 - len(self.flows))

    def device_of_kernel(self, slice_: Slice) -> int:
        """The number of a kernel's device, in its annotations or its track's name; -1 if neither has one."""
        if "agent" in slice_.facts:
            return _device_number(slice_.facts["agent"])
        match = _TRACK_DEVICE.search(
            self.packets.tracks[slice_.track].name if slice_.track in self.packets.tracks else ""
        )
        return int(match[1]) if match else -1

    def add_copy(self, process: int, rows: Gather, slice_: Slice, correlation: int) -> None:
        """Adds a copy to `rows`, those of the process with the id `process`. rocprofv3 names its agents;
        rocprofiler-systems numbers them like the nodes of the machine, CPUs included: those copies are kept in
        `self.copies`, and their devices are determined at the end."""
        source, target = ("host" if pattern.search(slice_.name) else "device" for pattern in (_FROM_HOST, _TO_HOST))
        if "src_agent_id" in slice_.facts or "dst_agent_id" in slice_.facts:
            self.copies.append((process, slice_, source, target))
            return
        agent = slice_.facts.get("dst_agent" if target == "device" else "src_agent")
        device = self.device_of_kernel(slice_) if agent is None else _device_number(agent)
        self._add_copy_row(rows, slice_, source, target, device, correlation)

    def _add_numbered_copies(self) -> None:
        """Adds the copies of rocprofiler-systems: the nodes with copies are the devices with kernels, in order. If
        their numbers differ, the only device with kernels, else -1 for unknown."""
        nodes = sorted({self._node(slice_, target) for _, slice_, _, target in self.copies})
        devices = sorted(self.devices)
        device_of_node = dict(zip(nodes, devices)) if len(nodes) == len(devices) else {}
        default_device = devices[0] if len(devices) == 1 else -1
        for process, slice_, source, target in self.copies:
            device = device_of_node.get(self._node(slice_, target), default_device)
            self._add_copy_row(self.processes[process], slice_, source, target, device, self.correlation(slice_))

    def _node(self, slice_: Slice, target: str) -> int:
        """The number of the node of the copy's device: the target's if it is a device, else the source's; -1 if it is
        not stated."""
        node = slice_.facts.get("dst_agent_id" if target == "device" else "src_agent_id", -1)
        return node if isinstance(node, int) else -1

    def _add_copy_row(
        self, rows: Gather, slice_: Slice, source: str, target: str, device: int, correlation: int
    ) -> None:
        """Adds a copy from `source` to `target` (`host` or `device`) to `rows`, with its size in bytes if it is
        stated."""
        sizes = (slice_.facts.get(key, -1) for key in ("copy_bytes", "bytes"))
        size = next((size for size in sizes if isinstance(size, int) and size >= 0), -1)
        rows.work(
            copy_name(source, target), COPY, self.lane(slice_), device, slice_.start, slice_.stop,
            correlation=correlation, size=size,
        )  # fmt: skip

    def lane(self, slice_: Slice) -> str:
        """The name of a slice's stream: `stream 3` from its annotations, as the copies and the kernels of a stream are
        on separate tracks; else the stream or queue in the track's name, the name itself, or the track's id."""
        stream = slice_.facts.get("stream_id", 0)
        if isinstance(stream, int) and stream > 0:
            return f"stream {stream}"
        name = self.packets.tracks[slice_.track].name if slice_.track in self.packets.tracks else ""
        match = _LANE.search(name)
        return f"{match[1].lower()} {match[2]}" if match else name or f"track {slice_.track}"


def _device_number(agent: int | str | None) -> int:
    """The device number in `Agent 4`, `GPU-0` or a bare number; -1 if there is none."""
    if isinstance(agent, int):
        return agent
    match = _LAST_NUMBER.search(agent or "")
    return int(match[1]) if match and len(match[1]) < 9 else -1
