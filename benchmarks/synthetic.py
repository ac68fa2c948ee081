"""A profiler trace of about 40,000 events, always the same, for machines without a public one.

Three steps of a data-parallel training on one rank: operators, launches, kernels on a compute stream, and
all-reduces on a second one, in Kineto's JSON.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

STEPS, KERNELS = 3, 3300
NAMES = (
    ("aten::mm", "ampere_sgemm_128x64_nn"),
    ("aten::add", "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"),
    ("aten::native_layer_norm", "void at::native::vectorized_layer_norm_kernel<float, float>"),
    ("aten::_softmax", "void softmax_warp_forward<float, float, float, 8, false, false>"),
)
LAUNCH_US, GAP_US = 4.0, 1.5


def write(path: Path) -> int:
    """Writes the trace; returns how many events it has."""
    events = _events(random.Random(0))
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_000_000_000}],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},
    }
    path.write_text(json.dumps({**head, "traceEvents": events}), "utf-8")
    return len(events)


def _events(chance: random.Random) -> list[dict[str, object]]:
    events: list[dict[str, object]] = []
    host = device = 1_000_000.0
    correlation = 0

    def add(name: str, cat: str, start: float, length: float, pid: int, tid: int, **args: object) -> None:
        place = {"ts": round(start, 3), "dur": round(length, 3), "pid": pid, "tid": tid}
        events.append({"ph": "X", "cat": cat, "name": name, **place, "args": args})

    for step in range(STEPS):
        begin = host
        for number in range(KERNELS):
            correlation += 1
            collective = number % 50 == 49
            op, kernel = (
                ("c10d::allreduce_", "ncclDevKernel_AllReduce_Sum_f32_RING_LL") if collective else NAMES[number % 4]
            )
            length = chance.uniform(100, 400) if collective else chance.uniform(2, 30)
            add(op, "cpu_op", host, LAUNCH_US + 2, 100, 100, **{"External id": correlation, "Sequence number": number})
            add("cudaLaunchKernel", "cuda_runtime", host + 1, LAUNCH_US, 100, 100, correlation=correlation)
            flow = {"cat": "ac2g", "name": "ac2g", "id": correlation, "pid": 100, "tid": 100}
            events.append({"ph": "s", "ts": round(host + 1, 3), **flow})
            start = max(device, host + LAUNCH_US + 3)
            ids = {
                "External id": correlation,
                "correlation": correlation,
                "stream": 20 if collective else 7,
                "device": 0,
            }
            add(kernel, "kernel", start, length, 0, 20 if collective else 7, **ids)
            device = start + (GAP_US if collective else length + GAP_US)
            host += LAUNCH_US + 3
        add(f"ProfilerStep#{step}", "user_annotation", begin, host - begin, 100, 100)
        host += 50
    return events
