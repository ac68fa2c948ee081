"""Number formats that devices cannot multiply are refused with both versions."""

from __future__ import annotations

import pytest

from tests.refused import refused
from trainyard import job_file as jobs
from trainyard.errors import BadInput, BadJob, TrainyardError
from trainyard.record import DeviceSeen
from trainyard.train.rules.format_rules import check_format


def gpu(name: str, capability: str) -> DeviceSeen:
    return DeviceSeen(index=0, name=name, vendor="nvidia", facts={"compute_capability": capability})


def instinct(gfx: str) -> DeviceSeen:
    return DeviceSeen(index=0, name="Instinct", vendor="amd", facts={"gfx": gfx})


@pytest.mark.parametrize(
    ("dtype", "device", "needed"),
    [
        ("bfloat16", gpu("Tesla T4", "7.5"), "8.0"),
        ("tf32", gpu("Tesla V100", "7.0"), "8.0"),
        ("float8", gpu("Tesla V100", "7.0"), "8.9"),
        ("float8", gpu("NVIDIA A100", "8.0"), "8.9"),
        ("float8", gpu("NVIDIA RTX A6000", "8.6"), "8.9"),
    ],
)
def test_format_above_the_compute_capability_is_refused(dtype: str, device: DeviceSeen, needed: str) -> None:
    has = device.facts["compute_capability"]
    with refused(BadJob, repr(dtype), "$.recipe", needed, has, device.name) as caught:
        check_format(dtype, device, "$.recipe")
    alternative = caught.value.next_step.split("'")[1]
    check_format(alternative, device, "$.recipe")  # is not refused itself
    with refused(BadInput, "--dtype"):
        check_format(dtype, device, "--dtype")


@pytest.mark.parametrize(
    ("dtype", "device"),
    [
        ("bfloat16", gpu("NVIDIA A100", "8.0")),
        ("float8", gpu("NVIDIA L4", "8.9")),
        ("float8", gpu("NVIDIA B200", "10.0")),
        ("float8", gpu("NVIDIA H100", "")),
        ("float16", gpu("Tesla T4", "7.5")),
        ("float8", instinct("gfx942")),
        ("bfloat16", instinct("gfx90a")),
        ("float8", DeviceSeen(index=0, name="some cores", vendor="cpu")),
    ],
)
def test_format_of_the_device_is_accepted(dtype: str, device: DeviceSeen) -> None:
    check_format(dtype, device, "$.recipe")


def test_float8_on_an_older_gfx_version_is_refused() -> None:
    with refused(BadJob, "'float8'", "gfx90a", "gfx942"):
        check_format("float8", instinct("gfx90a"), "$.recipe")


@pytest.mark.parametrize("dtype", ["mxfp8", "fp8", "int4"])
def test_format_that_no_recipe_has_is_refused_with_the_known_ones(dtype: str) -> None:
    with pytest.raises(TrainyardError) as caught:
        jobs.parse(f"[recipe]\nseq_len = 8\ntokens_per_step = 8\ndtype = '{dtype}'\n", "job")
    assert isinstance(caught.value, BadInput)
    assert dtype in str(caught.value)
    assert "float8" in str(caught.value)
