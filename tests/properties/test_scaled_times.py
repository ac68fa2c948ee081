"""Times in another unit change figures, and never end in an internal error."""

import gzip
import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trainyard
from tests.trace_maker import MAIN, trace, write
from trainyard.errors import BadFile

DEMO = Path(trainyard.__file__).parent / "data" / "demo"
FACTORS = [1e-6, 1e-3, 1e3, 1e6]


def scaled(document: dict, factor: float) -> dict:
    """The document with every time multiplied by `factor`, in whole ns."""
    events = [
        event | {key: round(event[key] * factor, 3) for key in ("ts", "dur") if key in event}
        for event in document["traceEvents"]
    ]
    return document | {"traceEvents": events}


def steps_of_tiny_kernels(count: int, seed: int) -> dict:
    """Two steps of `count` small kernels each, with gaps, copies, syncs and an optimizer."""
    chance = random.Random(seed)  # noqa: S311
    device, host, marks, at = [], [], [], 0
    for step in range(2):
        begin = at
        for index in range(count):
            launch, length = at, chance.choice([1000, 3000, 8000, 200_000])
            name = chance.choice(["elementwise_kernel", "ampere_sgemm", "Memcpy DtoH (Device -> Pageable)"])
            device.append((name, chance.choice([7, 7, 20]), launch + 5000, launch + 5000 + length, launch))
            host.append((f"aten::op{index % 5}", MAIN, launch - 200, launch + 900, "cpu_op", {"External id": at + 1}))
            at = launch + 5000 + length + chance.choice([0, 500, 30_000])
        host.append(("cudaStreamSynchronize", MAIN, at, at + 4000, "cuda_runtime"))
        host.append(("Optimizer.step#SGD.step", MAIN, begin + (at - begin) // 2, at, "user_annotation"))
        at += 5000
        marks.append((str(step + 1), begin, at))
    return trace(device, host, marks, rank=0, world=1)


def check(paths: list[Path]) -> None:
    """The analysis is made, and its ledgers balance, or the file is refused with a reason."""
    try:
        analysis = trainyard.analyse(paths)
    except BadFile:
        return
    for ledger in analysis.ledgers:
        assert sum(entry.ns for entry in ledger.entries) == ledger.wall_ns


@pytest.mark.parametrize("factor", FACTORS)
def test_scaled_demo_is_analysed(tmp_path, factor):
    documents = [json.loads(gzip.decompress(file.read_bytes())) for file in sorted(DEMO.glob("*.json.gz"))]
    assert documents
    check([write(tmp_path, scaled(document, factor), f"{rank}.json") for rank, document in enumerate(documents)])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
@given(st.sampled_from([3, 40, 700]), st.integers(0, 10**6), st.sampled_from([*FACTORS, 1.0]))
def test_scaled_tiny_kernels_are_analysed(tmp_path, count, seed, factor):
    check([write(tmp_path, scaled(steps_of_tiny_kernels(count, seed), factor))])


@pytest.mark.parametrize("factor", [1e-3, 1e3])
@pytest.mark.parametrize("name", ["a100_ddp_resnet.json.gz", "h100_qwen_0.5b.json.gz"])
def test_scaled_public_traces_are_analysed(public_trace, tmp_path, name, factor):
    document = json.loads(gzip.decompress(public_trace(name).read_bytes()))
    document["traceEvents"] = document["traceEvents"][:15_000]
    check([write(tmp_path, scaled(document, factor))])
