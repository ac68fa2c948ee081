"""Writes small Kineto files from a few rows, so that a test shows all of its input.

A row of `device` is (name, stream, start, stop, launch start or None, args), where `launch_ns` in args overrides the
length of all launches; of `host` (name, thread, start, stop, cat).
Times are ns; the file holds µs with three decimals, as Kineto's do.
"""

import gzip
import json
from pathlib import Path

MAIN = 100


def stamp(ns: int) -> float:
    return float(f"{'-' * (ns < 0)}{abs(ns) // 1000}.{abs(ns) % 1000:03d}")


def trace(
    device=(),
    host=(),
    marks=(),
    rank=None,
    world=1,
    host_name="",
    launch_ns=1,
    device_index=0,
    devices=None,
    backend="nccl",
) -> dict:
    """A document; `marks` are (label, start, stop) on the main thread."""
    events = []
    for label, start, stop in marks:
        events.append(_span("user_annotation", f"ProfilerStep#{label}", MAIN, start, stop))
    for row in host:
        name, thread, start, stop, cat, *args = row
        events.append(_span(cat, name, thread, start, stop, **(args[0] if args else {})))
    for number, row in enumerate(device, start=1):
        name, stream, start, stop, launch, *args = row
        cat = "gpu_memcpy" if name.startswith("Memcpy") else "gpu_memset" if name.startswith("Memset") else "kernel"
        known = dict(args[0]) if args else {}
        thread = known.pop("thread", MAIN)
        call_ns = known.pop("launch_ns", launch_ns)
        args = {"device": device_index, "stream": stream, "correlation": number, **known}
        events.append(_span(cat, name, stream, start, stop, **args) | {"pid": device_index})
        if launch is not None:
            events.append(
                _span(
                    "cuda_runtime",
                    "cudaLaunchKernel",
                    thread,
                    launch,
                    launch + call_ns,
                    correlation=number,
                )
            )
    document = {"schemaVersion": 1, "traceEvents": events, "displayTimeUnit": "ms"}
    count = devices if devices is not None else (1 if device else 0)
    document["deviceProperties"] = [{"id": i, "name": "Pretend 9000"} for i in range(count)]
    if rank is not None:
        document["distributedInfo"] = {"backend": backend, "rank": rank, "world_size": world}
    if host_name:
        document["host_name"] = host_name
    return document


def _span(cat, name, thread, start, stop, **args):
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": stamp(start), "dur": stamp(stop - start),
        "args": args,
    }  # fmt: skip


def write(folder: Path, document: dict, name: str = "trace.json") -> Path:
    path = folder / name
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path
