"""The compiled and the Python scanner read the same from any file, however odd, and drop nothing silently."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trace_maker import trace
from trainyard.errors import BadFile
from trainyard.events import DeviceWork, HostSpans, MemoryEvents
from trainyard.trace.readers.kineto import native
from trainyard.trace.readers.kineto.native.build import build
from trainyard.trace.readers.kineto.reader import Kineto

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"the compiled scanner is not built: {build()}")

TIMES = st.one_of(
    st.integers(-5, 10**7),
    st.integers(0, 10**7).map(lambda ns: float(f"{ns // 1000}.{ns % 1000:03d}")),
    st.floats(),
    st.sampled_from(["12.5", "-3", "1e3", "x", "", None, True, 10**30, 4458676416788.067, [1], 9007199254740993]),
)
INTS = st.one_of(st.integers(-3, 9), st.sampled_from([2**31, 2**63, -(2**70), 1.0, "7", None, "stream 7", [], {}]))
PIDS = st.one_of(st.integers(0, 3), st.sampled_from(["[TP00] 1", "[TP01] 1", 'a"b\\ 2', "é 3"]), INTS)
NAMES = st.one_of(
    st.sampled_from(
        [
            "gemm", "aten::mm", "ProfilerStep#1", "Optimizer.step#SGD.step", "gloo:all_reduce", "nccl:", "",
            "cudaLaunchKernel", "Stream Wait Event", "ncclDevKernel_AllReduce_Sum", "enumerate(DataLoader)#x",
            "a\"b\\c/d\n\t", "é漢😀", "process_name", "process_labels", "[memory]", "[memory]",
        ]
    ),
    st.text(max_size=6), st.integers(), st.none(),
)  # fmt: skip
CATS = st.sampled_from(
    ["kernel", "Kernel", "gpu_memcpy", "Memset", "cpu_op", "Operator", "user_annotation", "cuda_runtime", "Runtime",
     "python_function", "cuda_sync", "ac2g", "", None, 5, "KERNEL", "gpu_op", "mtia_ccp_events", "XPU_runtime",
     "mlu_memcpy", "_runtime", "overhead", "xpu_sync", "hpu_op", "caf\u00e9", "a\"b/c"]
)  # fmt: skip
ARGS = st.dictionaries(
    st.sampled_from(
        ["correlation", "External id", "external id", "device", "stream", "Sequence number", "Fwd thread id", "bytes",
         "est. achieved occupancy %", "wait_on_stream", "Collective name", "Input Dims", "Input type",
         "Concrete Inputs", "Seq", "Process Group Name", "other", "rank", "name", "labels", "Bytes", "Addr",
         "Total Allocated", "Device Id", "Device Type"]
    ),
    st.one_of(
        INTS,
        st.lists(st.lists(st.integers(0, 5), max_size=2), max_size=2),
        st.sampled_from(["broadcast", "0", "rank 1", "GPU 3"]),
    ),
    max_size=6,
)  # fmt: skip
EVENTS = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "X", "X", "i", "M", 5]), "cat": CATS, "name": NAMES, "ts": TIMES},
    optional={
        "dur": TIMES, "pid": PIDS, "tid": INTS, "args": st.one_of(ARGS, ARGS, ARGS, st.sampled_from([None, [], "a"])),
        "id": st.floats(),
    },
)  # fmt: skip
ENTRIES = st.lists(st.one_of(EVENTS, EVENTS, EVENTS, st.sampled_from([None, 5, "x", [], {}, [{}]])), max_size=12)
SEED = json.dumps(
    trace(
        device=[("gemm", 7, 0, 100, 0), ("ncclDevKernel_AllGather_RING", 8, 50, 150, 40)],
        host=[("aten::mm", 100, 0, 50, "cpu_op", {"External id": 3, "Input Dims": [[2, 3], []]})],
        marks=[("1", 0, 200)],
    )
).encode()


def read_with(path, monkeypatch, pure):
    """The decoded events or the error message of the Python scanner (`pure`) or the compiled one."""
    if pure:
        monkeypatch.setenv("TRAINYARD_PURE", "1")
    else:
        monkeypatch.delenv("TRAINYARD_PURE", raising=False)
    try:
        return [_flat(events) for events in Kineto().read(path)]
    except BadFile as error:
        return str(error)


def _flat(struct):
    flat = {}
    for field in struct.__struct_fields__:
        value = getattr(struct, field)
        if isinstance(value, np.ndarray):
            flat[field] = (value.dtype.str, value.tolist())
        else:
            flat[field] = _flat(value) if isinstance(value, DeviceWork | HostSpans | MemoryEvents) else value
    return flat


def check_same(folder, monkeypatch, data):
    path = folder / "t.json"
    path.write_bytes(data)
    pure = read_with(path, monkeypatch, True)
    assert read_with(path, monkeypatch, False) == pure
    return pure


quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None)


@quick
@given(ENTRIES, st.sampled_from([None, 1, 2]), st.booleans())
def test_odd_events_are_read_identically(tmp_path, monkeypatch, entries, indent, bare):
    document = entries if bare else {"traceEvents": entries, "deviceProperties": [{"id": 0, "name": "x"}]}
    check_same(tmp_path, monkeypatch, json.dumps(document, indent=indent).encode())


@quick
@given(st.data())
def test_damaged_bytes_are_read_identically(tmp_path, monkeypatch, data):
    mended = bytearray(SEED)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(mended) - 1))
        how = data.draw(st.sampled_from(["put", "cut", "insert", "end"]))
        if how == "put":
            mended[position] = data.draw(st.integers(0, 255))
        elif how == "cut":
            del mended[position : position + data.draw(st.integers(1, 20))]
        elif how == "insert":
            mended[position:position] = data.draw(
                st.sampled_from([b"NaN", b"\xff", b"\x00", b"]", b"}", b",", b'"', b"\\u00e9"])
            )
        else:
            del mended[max(position, 1) :]
        mended = mended or bytearray(b"{")
    check_same(tmp_path, monkeypatch, bytes(mended))


@pytest.mark.parametrize("reach", [16, 64, 300])
def test_chunk_size_does_not_matter(tmp_path, monkeypatch, reach):
    path = tmp_path / "t.json"
    path.write_bytes(SEED)
    whole = read_with(path, monkeypatch, False)
    monkeypatch.setattr("trainyard.trace.readers.kineto.unpack.CHUNK_BYTES", reach)
    assert read_with(path, monkeypatch, False) == read_with(path, monkeypatch, True) == whole


@pytest.mark.parametrize("depth", range(1, 12))
@pytest.mark.parametrize("reach", [16, 1 << 20])
def test_deeply_nested_odd_events_are_read(tmp_path, monkeypatch, depth, reach):
    """Brackets and quotes inside strings do not count; the events around it keep their order."""
    odd = '[{"a]\\\\\\"[": ' * depth + "NaN" + "}]" * depth
    times = '"ph": "X", "cat": "kernel", "ts": 1, "dur": 2'
    entries = [f'{{"name": "{name}", {times}, "args": {args}}}' for name, args in zip("abc", ("{}", odd, "{}"))]
    monkeypatch.setattr("trainyard.trace.readers.kineto.unpack.CHUNK_BYTES", reach)
    (events,) = check_same(tmp_path, monkeypatch, f'{{"traceEvents": [{",".join(entries)}], "x": {odd}}}'.encode())
    assert events["names"] == ("a", "b", "c")
    assert not events["cut_short"]


def test_public_traces_are_read_identically(monkeypatch, public_trace):
    for name in ("a100_ddp_resnet.json.gz", "h100_qwen_0.5b.json.gz", "mi300_resnet_ac.json.gz", "cpu_gloo_3ranks"):
        path = public_trace(name)
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            assert read_with(file, monkeypatch, False) == read_with(file, monkeypatch, True)


UNDER_SANITIZERS = """
import random, sys
from pathlib import Path
from trainyard.errors import BadFile
from trainyard.trace.readers.kineto import native, unpack
native.LIBRARY, unpack.CHUNK_BYTES = Path(sys.argv[1]), 512
assert native.library() is not None
from trainyard.trace.readers.kineto.reader import Kineto
seed, path = bytes.fromhex(sys.argv[2]), Path(sys.argv[3])
for number in range(400):
    chance, data = random.Random(number), bytearray(seed)
    for _ in range(chance.randint(0, 3)):
        odd = b'{}[]",:\\\\0 9-.ntf\\xc3\\xff' + bytes([chance.randrange(256)])
        data[chance.randrange(len(data))] = chance.choice(odd)
    path.write_bytes(data[: chance.choice([len(data), chance.randrange(1, len(data))])])
    try:
        Kineto().read(path)
    except BadFile:
        pass
print("in peace")
"""


def test_compiled_scanner_passes_sanitizers(tmp_path):
    """Built with the address and undefined-behaviour sanitizers, it reads damaged files without a report."""
    library = tmp_path / "native.so"
    why = build(
        ("-O1", "-g", "-std=c11", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined",
         "-fno-sanitize-recover=all"),
        library,
    )  # fmt: skip
    query = ["cc", "-print-file-name=libasan.so"]
    preload = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    if why or not Path(preload).is_file():
        pytest.skip(f"no sanitizers here: {why or preload}")
    done = subprocess.run(
        [sys.executable, "-c", UNDER_SANITIZERS, str(library), SEED.hex(), str(tmp_path / "t.json")],
        env=os.environ | {"LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout.strip(), done.returncode) == ("in peace", 0), done.stderr[-3000:]
