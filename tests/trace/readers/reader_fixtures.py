"""Small files in the documented schema of each profiler. Times are ns.

Each `*_step` is one small step of a rank; the expected ledger is in test_readers.py, computed by hand.
"""

import json
import sqlite3
from pathlib import Path

from trainyard.formats.protobuf import double_field, int_field, message_field

# --- protocol buffers


def field(number: int, value: int | float | str | bytes) -> bytes:
    """A field: an integer as varint, a float as double, text and bytes by length."""
    if isinstance(value, float):
        return double_field(number, value)
    if isinstance(value, int):
        return int_field(number, value)
    return message_field(number, value.encode() if isinstance(value, str) else value)


def message(*fields: tuple[int, int | float | str | bytes]) -> bytes:
    return b"".join(field(number, value) for number, value in fields)


# --- rocprofv3: JSON and pftrace

KINDS = [
    {"kind": "NONE", "operations": []},
    {"kind": "HIP_RUNTIME_API", "operations": ["hipLaunchKernel", "hipMemcpyAsync", "hipDeviceSynchronize"]},
    {"kind": "RCCL_API", "operations": ["ncclAllReduce"]},
    {"kind": "MARKER_CORE_API", "operations": ["roctxRangePushA", "roctxGetThreadId"]},
]
CPU, GPU, GPU_1 = 900, 901, 902


def api(kind, operation, start, stop, correlation, thread=7):
    return {
        "size": 56, "kind": kind, "operation": operation, "start_timestamp": start, "end_timestamp": stop,
        "thread_id": thread, "correlation_id": {"internal": correlation, "external": 0},
    }  # fmt: skip


def dispatch(kernel, start, stop, correlation, agent=GPU, stream=1):
    return {
        **api(4, 0, start, stop, correlation),
        "stream_id": {"handle": stream},
        "dispatch_info": {"size": 64, "agent_id": {"handle": agent}, "queue_id": {"handle": 3}, "kernel_id": kernel},
    }


def copied(start, stop, correlation, source, target, size, stream=2):
    return {
        **api(5, 1, start, stop, correlation), "src_agent_id": {"handle": source}, "dst_agent_id": {"handle": target},
        "bytes": size, "stream_id": {"handle": stream},
    }  # fmt: skip


def rocprof_process(**records):
    return {
        "metadata": {"pid": 7},
        "agents": [
            {"id": {"handle": CPU}, "type": 1, "node_id": 0, "name": "EPYC"},
            {"id": {"handle": GPU}, "type": 2, "node_id": 1, "logical_node_type_id": 0, "name": "gfx942",
             "product_name": "Pretend MI"},
            {"id": {"handle": GPU_1}, "type": 2, "node_id": 2, "logical_node_type_id": 1, "name": "gfx942"},
        ],
        "strings": {
            "buffer_records": KINDS,
            "marker_api": [{"key": 1, "value": "ProfilerStep#3"}, {"key": 2, "value": "aten::mm, seq = 5, op_id = 9"}],
        },
        "kernel_symbols": [
            {"kernel_id": 1, "formatted_kernel_name": "Cijk_Ailk_Bljk_BBS"},
            {"kernel_id": 2, "formatted_kernel_name": "ncclDevKernel_Generic"},
            {"kernel_id": 3, "formatted_kernel_name": "vectorized_elementwise_kernel"},
        ],
        "callback_records": {},
        "buffer_records": records,
    }  # fmt: skip


def rocprof_step():
    """One marked step: a product of 100 ns under `aten::mm`, an all-reduce of 150 ns of which 50 ns overlap with the
    product, an exposed copy, and an idle gap of 40 ns that begins with a host sync."""
    return rocprof_process(
        marker_api=[api(3, 0, 900, 1500, 1), api(3, 0, 910, 930, 2)],
        hip_api=[api(1, 0, 915, 925, 11), api(1, 0, 950, 960, 13), api(1, 1, 961, 965, 14),
                 api(1, 2, 1100, 1300, 15), api(1, 0, 1310, 1320, 16)],
        rccl_api=[api(2, 0, 940, 970, 12)],
        kernel_dispatch=[dispatch(1, 1000, 1100, 11), dispatch(2, 1050, 1200, 13, stream=5),
                         dispatch(3, 1320, 1360, 16)],
        memory_copy=[copied(1200, 1280, 14, CPU, GPU, 4096)],
    )  # fmt: skip


def write_rocprof(path: Path, *processes) -> Path:
    path.write_text(json.dumps({"rocprofiler-sdk-tool": list(processes)}))
    return path


class Pftrace:
    """A Perfetto trace as the SDK writes it: interned names, timestamps as increments of the sequence's own clock."""

    def __init__(self, incremental: bool = True) -> None:
        self.data = b""
        self.incremental = incremental
        self.names: dict[tuple[int, str], int] = {}
        self.last = 500
        if incremental:
            clocks = message((1, message((1, 6), (2, 500))), (1, message((1, 64), (2, 0), (3, 1))))
            self.packet((13, 1), (6, clocks), (59, message((58, 64))))
        else:
            self.packet((13, 1), (59, message((58, 6))))

    def packet(self, *fields) -> None:
        self.data += field(1, message(*fields, (10, 1)))

    def track(self, uuid: int, name: str) -> None:
        self.packet((60, message((1, uuid), (2, name))))

    def slice(self, category: str, name: str, track: int, start: int, stop: int, **facts) -> None:
        interned = b""
        ids = []
        for table, word in ((1, category), (2, name), *((3, key) for key in facts)):
            new = (table, word) not in self.names
            ident = self.names.setdefault((table, word), len(self.names) + 1)
            ids.append(ident)
            interned += field(table, message((1, ident), (2, word))) if new else b""
        annotations = [
            (4, message((1, ident), (3, value) if isinstance(value, int) else (6, value)))
            for ident, value in zip(ids[2:], facts.values())
        ]
        begin = message((9, 1), (3, ids[0]), (10, ids[1]), (11, track), *annotations)
        self.packet(*self.stamp(start), *([(12, interned)] if interned else []), (13, 2), (11, begin))
        self.packet(*self.stamp(stop), (13, 2), (11, message((9, 2), (11, track))))

    def stamp(self, time: int) -> list[tuple[int, int]]:
        """The fields of a timestamp: an increment if time advances, else the time of the trace's clock."""
        if self.incremental and time >= self.last:
            step, self.last = time - self.last, time
            return [(8, step)]
        return [(8, time), (58, 6)]


def pftrace_step(incremental: bool = True) -> bytes:
    """The step of `rocprof_step`."""
    trace = Pftrace(incremental)
    trace.track(7, "THREAD 1 (7)")
    for uuid, name in ((21, "COMPUTE AGENT [1] STREAM [1] (GPU)"), (25, "COMPUTE AGENT [1] STREAM [5] (GPU)"),
                       (32, "COPY to AGENT [1] STREAM [2] (GPU)")):  # fmt: skip
        trace.track(uuid, name)
    calls = (("hipLaunchKernel", 915, 925, 11), ("hipLaunchKernel", 950, 960, 13), ("hipMemcpyAsync", 961, 965, 14),
             ("hipDeviceSynchronize", 1100, 1300, 15), ("hipLaunchKernel", 1310, 1320, 16))  # fmt: skip
    for name, start, stop, correlation in calls:
        trace.slice("hip_api", name, 7, start, stop, tid=7, corr_id=correlation)
    trace.slice("marker_api", "ProfilerStep#3", 7, 900, 1500, tid=7, corr_id=1)
    trace.slice("marker_api", "aten::mm, seq = 5, op_id = 9", 7, 910, 930, tid=7, corr_id=2)
    trace.slice("rccl_api", "ncclAllReduce", 7, 940, 970, tid=7, corr_id=12)
    trace.slice("memory_copy", "MEMORY_COPY_HOST_TO_DEVICE", 32, 1200, 1280, src_agent="Agent 0", dst_agent="Agent 1",
                copy_bytes=4096, corr_id=14)  # fmt: skip
    for name, track, start, stop, correlation in (
        ("Cijk_Ailk_Bljk_BBS", 21, 1000, 1100, 11),
        ("ncclDevKernel_Generic", 25, 1050, 1200, 13),
        ("vectorized_elementwise_kernel", 21, 1320, 1360, 16),
    ):
        trace.slice("kernel_dispatch", name, track, start, stop, agent="Agent 1", corr_id=correlation, queue=3)
    return trace.data


# --- xplane


class Plane:
    """A builder of an XPlane. Stats of an event are named integers or texts."""

    def __init__(self, name: str, **facts) -> None:
        self.name, self.facts = name, facts
        self.kinds: dict[tuple[str, str, tuple], int] = {}
        self.stats: dict[str, int] = {}
        self.lines: list[bytes] = []

    def line(self, name: str, begin_ns: int, *events, ident: int = 0) -> None:
        """Adds a line of events: (name, offset_ps, duration_ps, stats[, stats of the kind])."""
        events_of_line = []
        for event in events:
            kind = (event[0], "", tuple((event[4] if len(event) > 4 else {}).items()))
            number = self.kinds.setdefault(kind, len(self.kinds) + 1)
            stats = [(4, self.stat(key, value)) for key, value in event[3].items()]
            events_of_line.append((4, message((1, number), (2, event[1]), (3, event[2]), *stats)))
        self.lines.append(message((1, ident or len(self.lines) + 1), (2, name), (3, begin_ns), *events_of_line))

    def stat(self, name: str, value: int | float | str) -> bytes:
        ident = self.stats.setdefault(name, len(self.stats) + 1)
        if isinstance(value, str) and len(value) > 12:  # XLA shares long texts: the value is the number of a name
            return message((1, ident), (7, self.stats.setdefault(value, len(self.stats) + 1)))
        return message((1, ident), (2 if isinstance(value, float) else 4 if isinstance(value, int) else 5, value))

    def encoded(self) -> bytes:
        kinds = []
        for (name, shown, stats), number in self.kinds.items():
            inner = message((1, number), (2, name), (4, shown), *((5, self.stat(*stat)) for stat in stats))
            kinds.append((4, message((1, number), (2, inner))))
        facts = [(6, self.stat(*fact)) for fact in self.facts.items()]
        names = [(5, message((1, n), (2, message((1, n), (2, name))))) for name, n in self.stats.items()]
        lines = [(3, line) for line in self.lines]
        return message((1, 1), (2, self.name), *lines, *kinds, *names, *facts)


def xspace(*planes: Plane, host: str = "node-a") -> bytes:
    return message(*((1, plane.encoded()) for plane in planes), (4, host))


def _tpu(number: int = 0, shift: int = 0) -> Plane:
    plane = Plane(f"/device:TPU:{number}", device_type_string="TPU v9 pretend")
    us = 1_000_000  # ps
    plane.line("Steps", 1000 + shift, ("4", 0, 2 * us, {}), ("5", 2 * us, us, {}))
    dot = {"hlo_category": "convolution fusion", "tf_op": "jit(step)/jvp(Dense_0)/dot_general", "flops": 10}
    back = {"hlo_category": "convolution fusion", "tf_op": "jit(step)/transpose(jvp(Dense_0))/dot_general"}
    loop = {"hlo_category": "loop fusion", "tf_op": "jit(step)/mul"}
    plane.line(
        "XLA Ops",
        1000 + shift,
        ("%while.1 = (s32[]) while((s32[]) %tuple)", 0, us, {}),
        ("%fusion.1 = bf16[8]{0:T(8,128)} fusion(bf16[8] %p)", 0, us // 2, {}, dot),
        ("%all-reduce-start.3 = f32[8] all-reduce-start(f32[8] %g)", us // 2, 100_000, {}),
        ("%fusion.2 = bf16[8] fusion(bf16[8] %p)", us // 2 + 100_000, 300_000, {}, back),
        ("%all-reduce-done.9 = f32[8] all-reduce-done(f32[8] %all-reduce-start.3)", us, 200_000, {}),
        ("%fusion.4 = f32[8] fusion(f32[8] %p)", us + 200_999, 300_000, {}, loop),
        ("%copy-start.1 = f32[8] copy-start(f32[8] %p)", us + 600_000, 10_000, {}),
        ("%copy-done.1 = f32[8] copy-done(f32[8] %copy-start.1)", us + 700_000, 50_000, {}),
        ("%fusion.1 = bf16[8]{0:T(8,128)} fusion(bf16[8] %p)", 2 * us, us // 2, {}, dot),
    )
    return plane


def tpu_step() -> bytes:
    """Steps 4 and 5 of a TPU: an all-reduce from 500 ns to 1200 ns, of which 300 ns overlap with compute."""
    host = Plane("/host:CPU")
    host.line("python", 900, ("$train.py:12 step", 0, 5_000_000, {}), ("train", 0, 9_000_000, {"step_num": 4}))
    return xspace(_tpu(), host)


def tpu_pair() -> bytes:
    return xspace(_tpu(0), _tpu(1, shift=50))


def gpu_step() -> bytes:
    """Step 7 of a GPU: two kernels, one with a stated operation, a copy, and 100 ns of NCCL, 60 of them overlapped."""
    plane = Plane("/device:GPU:0", gpu_device_name="Pretend H")
    plane.line(
        "Stream #13(Compute)",
        2000,
        ("fusion_7", 0, 100_000, {"correlation_id": 1, "hlo_op": "fusion.7", "tf_op": "jit(step)/jvp(A)/dot_general"}),
        ("loop_add_fusion", 150_000, 50_000, {"correlation_id": 2, "hlo_op": "loop_add_fusion"}),
    )
    nccl = ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 40_000, 100_000, {"correlation_id": 3})
    plane.line("Stream #14(Communicate)", 2000, nccl)
    copy = ("MemcpyH2D", 200_000, 30_000, {"correlation_id": 4, "memcpy_details": "kind_src:pinned size:512 dest:0"})
    plane.line("Stream #15(MemcpyH2D)", 2000, copy)
    plane.line("XLA Ops", 2000, ("fusion.7", 0, 100_000, {}))
    host = Plane("/host:CPU")
    host.line(
        "main", 1900, ("train", 0, 200_000, {"step_num": 7}), ("PjitFunction(step)", 10_000, 100_000, {}), ident=5
    )
    calls = Plane("/host:CUPTI")
    calls.line(
        "main",
        1900,
        *(("cuLaunchKernel", 20_000 + 10_000 * n, 5_000, {"correlation_id": n}) for n in (1, 2, 3)),
        ("cuMemcpyHtoDAsync_v2", 60_000, 5_000, {"correlation_id": 4}),
        ident=5,
    )
    return xspace(plane, host, calls)


# --- Nsight Systems

PID = 4321


def global_id(pid: int = PID, thread: int = 0) -> int:
    return 1 << 48 | pid << 24 | thread


NSYS_TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT NOT NULL",
    "TARGET_INFO_GPU": "id INTEGER, name TEXT",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INT, cudaId INT, pid INT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INT",
    "TARGET_INFO_SYSTEM_ENV": "name TEXT, value TEXT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INT, end INT, globalTid INT, correlationId INT, nameId INT",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INT, end INT, deviceId INT, streamId INT, correlationId INT, globalPid INT, "
    "demangledName INT, shortName INT",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INT, end INT, deviceId INT, streamId INT, correlationId INT, globalPid INT, "
    "bytes INT, copyKind INT",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start INT, end INT, deviceId INT, streamId INT, correlationId INT, globalPid INT, "
    "bytes INT",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "streamId INT, correlationId INT, globalPid INT, eventId INT",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "deviceId INT, streamId INT, correlationId INT, globalPid INT, "
    "syncType INT, eventId INT",
    "NVTX_EVENTS": "start INT, end INT, eventType INT, text TEXT, textId INT, globalTid INT",
}
NSYS_NAMES = ("cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cudaStreamSynchronize_v3020", "cudaEventRecord_v3020",
              "cudaStreamWaitEvent_v3020", "sm90_xmma_gemm_bf16", "ncclDevKernel_AllGather_RING_LL",
              "vectorized_elementwise_kernel", "ProfilerStep#8")  # fmt: skip
LAUNCH, MEMCPY, SYNC, RECORD, WAIT, GEMM, NCCL, POINTWISE, STEP = range(1, 10)


def nsys_rows(pid: int = PID, device: int = 0):
    """Step 8 of a process: a product that hides half of an all-gather, a copy, a memset and a stream wait."""
    thread, process = global_id(pid, pid), global_id(pid)
    calls = ((900, 910, LAUNCH, 1), (911, 915, RECORD, 2), (916, 920, WAIT, 3), (921, 930, LAUNCH, 4),
             (931, 935, MEMCPY, 5), (936, 940, LAUNCH, 6), (1100, 1240, SYNC, 7), (1250, 1260, LAUNCH, 8))  # fmt: skip
    return {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [(a, b, thread, number, name) for a, b, name, number in calls],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            (1000, 1100, device, 7, 1, process, GEMM, GEMM),
            (1050, 1150, device, 9, 4, process, NCCL, NCCL),
            (1300, 1340, device, 7, 8, process, POINTWISE, POINTWISE),
        ],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [(1140, 1200, device, 11, 5, process, 1 << 20, 1)],
        "CUPTI_ACTIVITY_KIND_MEMSET": [(1200, 1210, device, 7, 6, process, 64)],
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT": [(7, 2, process, 77)],
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [(device, 9, 3, process, 2, 77)],
        "NVTX_EVENTS": [
            (890, 1400, 59, None, STEP, thread),
            (895, 912, 59, "aten::mm, seq = 3, op_id = 1", None, thread),
            (920, 930, 59, "ncclAllGather", None, thread),
            (950, None, 34, "a mark", None, thread),
        ],
    }


def write_nsys(path: Path, *processes, tables=NSYS_TABLES, **facts) -> Path:
    """Writes a database of `tables` (name -> columns), the rows of each process, and rows of other tables (`facts`)."""
    with sqlite3.connect(path) as connection:
        for name, columns in tables.items():
            connection.execute(f"CREATE TABLE {name} ({columns})")
        rows = {"StringIds": list(enumerate(NSYS_NAMES, 1)), **facts}
        for table, values in (item for group in (rows, *processes) for item in group.items()):
            if table in tables:
                connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values[0]))})", values)  # noqa: S608
    connection.close()
    return path


# --- Neuron


def neuron_step():
    """Ten documented fields: two engines, a product half overlapped by the vector engine's addition, a reduction."""
    instructions = (
        (100, 50, "TensorMatrix", "MATMUL", "%dot.1 = f32[8] dot(%a, %b)"),
        (125, 50, "Vector", "TENSOR_TENSOR", "%add.1 = add(%dot, %custom-call.44)"),
        (200, 20, "Vector", "TENSOR_REDUCE", "%reduce.2 = f32[] reduce(%add.1)"),
        (230, 10, "Scalar", "ACTIVATE", None),
    )
    names = ("timestamp", "duration", "label", "opcode", "hlo_name")
    return {
        "summary": [{"total_time": 1.4e-07, "event_count": 4, "nc_idx": 1, "nd_idx": 0}],
        "instruction": [dict(zip(names, row)) for row in instructions],
    }
