"""The property of all fuzz tests: any bytes are read and measured, or refused with one `BadInput`."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.trace.readers import reader_fixtures as fixtures
from tests.trace_maker import trace
from trainyard import plugins
from trainyard.errors import BadInput
from trainyard.ledger import to_json
from trainyard.trace.measure import measure
from trainyard.trace.memory import snapshot
from trainyard.trace.readers.kineto.native import library

DEVICE = [
    ("gemm", 7, 0, 100, 0),
    ("elementwise_kernel", 7, 120, 200, 90),
    ("ncclDevKernel_AllReduce", 8, 150, 260, 95, {"Collective name": "allreduce", "Process Group Ranks": "[0, 1]"}),
    ("Memcpy HtoD (Pinned -> Device)", 9, 250, 300, 240, {"bytes": 4096}),
]
HOST = [
    ("ProfilerStep#1", 100, 0, 300, "user_annotation"),
    ("aten::mm", 100, 0, 20, "cpu_op", {"External id": 1, "Sequence number": 4, "Input Dims": [[4, 8], [8, 2]]}),
    ("nn.Module: Linear_0", 100, 0, 40, "python_function"),
    ("cudaStreamSynchronize", 100, 250, 320, "cuda_runtime"),
    ("gloo:all_reduce", 101, 40, 90, "user_annotation"),
]


def seeds(folder: Path) -> dict[str, bytes]:
    """A small valid file for each reader, by name."""
    full = trace(device=DEVICE, host=HOST, rank=0, world=2, host_name="one") | {"baseTimeNanoseconds": 10**18}
    header_last = {"traceEvents": full["traceEvents"], **{key: full[key] for key in full if key != "traceEvents"}}
    return {
        "kineto": json.dumps(full).encode(),
        "kineto, header last": json.dumps(header_last).encode(),
        "kineto, pretty": json.dumps(full, indent=1).encode(),
        "kineto, bare": json.dumps(full["traceEvents"]).encode(),
        "kineto, cpu": json.dumps(trace(host=HOST)).encode(),
        "rocprof": fixtures.write_rocprof(folder / "seed.json", fixtures.rocprof_step()).read_bytes(),
        "pftrace": fixtures.pftrace_step(),
        "xplane": fixtures.tpu_step(),
        "neuron": json.dumps(fixtures.neuron_step()).encode(),
        "nsys": fixtures.write_nsys(folder / "seed.sqlite", fixtures.nsys_rows()).read_bytes(),
    }


def check(data: bytes, folder: Path) -> None:
    """Runs the snapshot reader and every reader that accepts `data`. Any error but `BadInput` is a bug, and so is a
    difference between the compiled scanner and the one in Python."""
    path = folder / "t"
    path.write_bytes(data)
    for name, reader in plugins.load_all("readers").items():
        if reader.sniff(path):
            outcome = _outcome(reader, path)
            if name == "kineto" and library() is not None:
                with _pure():
                    assert _outcome(reader, path) == outcome
    with suppress(BadInput):
        snapshot.load(path)


def _outcome(reader: plugins.Reader, path: Path) -> str:
    """The ledgers and notes (ledgers always balance), or the error."""
    try:
        measured = measure(reader.read(path))
    except BadInput as error:
        return f"refused: {error}"
    return to_json(measured.ledgers).decode() + "".join(measured.notes)


@contextmanager
def _pure() -> Iterator[None]:
    os.environ["TRAINYARD_PURE"] = "1"
    try:
        yield
    finally:
        del os.environ["TRAINYARD_PURE"]
