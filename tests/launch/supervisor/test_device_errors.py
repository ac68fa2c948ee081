"""Errors of devices, as torch prints them, become sizes and advice."""

from __future__ import annotations

import pytest

from tests.refused import missing_values
from trainyard.errors import DeviceUnusable, RankDied
from trainyard.launch import fork_ranks
from trainyard.launch.supervisor.device_errors import DeviceShortage, describe_device_error, parse_shortage

MIB, GIB = 2**20, 2**30
CACHED = (
    "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 3 has a total capacity of 31.50 GiB of which 2.50 GiB is free."
    " Including non-PyTorch memory, this process has 29.00 GiB memory in use. Of the allocated memory 19.00 GiB is "
    "allocated by PyTorch, and 9.50 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
    "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
SHARED = (
    "HIP out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 64.00 GiB of which 0 bytes is free. "
    "Process 4711 has 40.00 GiB memory in use. Including non-PyTorch memory, this process has 24.00 GiB memory in use. "
    "Of the allocated memory 23.00 GiB is allocated by PyTorch, with 34.00 MiB allocated in private pools (e.g., CUDA "
    "Graphs), and 1.00 MiB is reserved by PyTorch but unallocated."
)
OLD = "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 6.00 GiB total capacity; 781.59 MiB already allocated)"


def test_sizes_of_the_allocators_message() -> None:
    assert parse_shortage(CACHED) == DeviceShortage(
        device=3, requested=4 * GIB, capacity=round(31.5 * GIB), free=round(2.5 * GIB), in_use=29 * GIB,
        allocated=19 * GIB, cached=round(9.5 * GIB),
    )  # fmt: skip
    assert parse_shortage(SHARED) == DeviceShortage(
        device=0, requested=20 * MIB, capacity=64 * GIB, free=0, in_use=24 * GIB, allocated=23 * GIB, cached=MIB
    )
    assert parse_shortage(OLD) == DeviceShortage(
        device=-1, requested=2 * GIB, capacity=-1, free=-1, in_use=-1, allocated=-1, cached=-1
    )
    assert parse_shortage("CUDA error: unspecified launch failure") is None


def test_exhausted_memory_names_device_sizes_and_remedies() -> None:
    cached, shared = (describe_device_error(RuntimeError(text)) for text in (CACHED, SHARED))
    assert missing_values(cached, "Device 3", "4.0 GiB", "2.5 GiB", "31.5 GiB", "19.0 GiB", "9.5 GiB") == []
    assert "expandable_segments:True" in cached
    assert "Other processes" not in cached
    assert missing_values(shared, "Device 0", "20.0 MiB", "64.0 GiB", "Other processes use 40.0 GiB") == []
    assert "expandable_segments" not in shared
    for advice in (cached, shared, describe_device_error(RuntimeError(OLD))):
        assert missing_values(advice, "micro_batch_size", "activation_checkpoint = 'full'", "dp_shard") == []
        assert "-1" not in advice


@pytest.mark.torch
def test_exhausted_host_memory_states_the_size() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert missing_values(describe_device_error(caught.value), "1,048,576.0 TiB", "micro_batch_size") == []


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", ("Exclusive_Process", "-c DEFAULT")),
        ("The NVIDIA driver on your system is too old (found version 11040).", ("driver", "build of torch")),
        ("CUDA error: no kernel image is available for execution on the device", ("compute capability",)),
        ("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000", ("MIG", "NCCL")),
        ("CUDA error: uncorrectable ECC error encountered", ("Xid", "CUDA_VISIBLE_DEVICES")),
    ],
)
def test_error_of_a_device_has_advice(text: str, values: tuple[str, ...]) -> None:
    assert missing_values(describe_device_error(RuntimeError(text)), *values) == []


def test_cause_of_an_error_is_considered() -> None:
    error = ValueError("stage 1 failed")
    error.__cause__ = RuntimeError(SHARED)
    assert "64.0 GiB" in describe_device_error(error)


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("memory"), SystemExit(1)])
def test_other_errors_have_no_advice(error: BaseException) -> None:
    assert describe_device_error(error) == ""


def _fail(kind: str, meet: str) -> None:
    raise {
        "device": DeviceUnusable("torch cannot use them.", "Install another build."),
        "memory": RuntimeError(SHARED),
        "bug": ZeroDivisionError("in the program"),
    }[kind]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "values"), [("device", ("Install another build",)), ("memory", ("rank 0", "64.0 GiB")), ("bug", ())]
)
def test_rank_of_a_trial_prints_a_traceback_for_bugs_only(kind: str, values: tuple[str, ...]) -> None:
    from functools import partial

    with pytest.raises(RankDied) as caught:
        fork_ranks.run_ranks(1, partial(_fail, kind), [], 60.0)
    assert missing_values(str(caught.value), *values) == []
    assert ("Traceback" in str(caught.value)) == (kind == "bug")
