"""Machine files with impossible numbers or without sources are refused with the numbers; those of devices are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.refused import missing_values, refused
from trainyard import machine
from trainyard.errors import BadFile, BadInput
from trainyard.machine import Claim, Device, Link, Machine, RateCurve
from trainyard.machine_checks import check_machine

H100 = machine.known()["h100"].read_text("utf-8")
SUSTAINED = """[device.sustained]
{} = {{ value = {}, unit = "FLOP/s", source = "a matrix product" }}

[device.achieved.matmul]"""
PRICE_SOURCE = 'source = "zhebrak/llm-cluster-simulator@1db1341 src/core/cost/cloud.ts, 1-year reserved, median"'


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        (PRICE_SOURCE, 'source = ""', ["2.5", "source"]),
        (PRICE_SOURCE, 'source = " \\t"', ["2.5", "source"]),
        ("value = 2.5,", "value = 1e6,", ["h100", "price", "1e+06", "1000"]),
        ('value = 2.5, unit = "USD/h"', 'value = 2.5, unit = "EUR/h"', ["2.5", "EUR/h", "USD/h"]),
        ("value = 3.35e12", "value = 1e18", ["H100", "1e+18", "1e+14"]),
        ("value = 3.35e12", "value = 3.35", ["H100", "3.35", "1e+06"]),
        ("value = 84943715697", "value = 1e3", ["H100", "1000", "1e+06"]),
        ("value = 2.5,", "value = 99999,", ["h100", "price", "99999", "1000"]),
        ('date = "2026-02"', 'date = "tomorrow"', ["tomorrow", "$.price", "2026-02"]),
        ('date = "2026-02"', 'date = "2026-13"', ["2026-13", "$.price"]),
        ('date = "2026-02"', 'date = "20260201"', ["20260201", "$.price"]),
        ("per_node = 8", "per_node = 1000000", ["per_node", "1,000,000", "65,536"]),
        ("per_node = 8", "per_node = 1\nnodes = 9999999", ["nodes", "9,999,999", "1,048,576"]),
        ("value = 700,", "value = 0.7,", ["H100", "device.power", "0.7", "10", "30000"]),
        ("value = 700,", "value = 5e6,", ["H100", "device.power", "5e+06", "10", "30000"]),
        ("value = 84943715697", "value = 9e14", ["H100", "device.memory", "9e+14", "1e+13"]),
        ("value = 2e12,", "value = 9e14,", ["host.memory", "9e+14", "2e+14"]),
        ("float8 = { value = 1979e12", "float8 = { value = 500e12", ["9.89e+14", "5e+14", "float16", "float8"]),
        ("value = 1979e12", "value = 1979e18", ["H100", "1.979e+21", "1e+19"]),
        ("tf32 = { value = 494.5e12", "tf32 = { value = 9890e12", ["9.89e+15", "tf32", "9.89e+14"]),
        ("float32 = { value = 67e12", "float32 = { value = 670e12", ["6.7e+14", "float32", "4.945e+14", "tf32"]),
        ("794.5e12]]", "2794.5e12]]", ["2.7945e+15", "matmul", "9.89e+14"]),
        ("794.5e12]]", "1500e12]]", ["1.5e+15", "device.achieved.matmul", "9.89e+14", "16"]),  # below that of float8
        ("[device.achieved.matmul]", SUSTAINED.format("bfloat16", 990e12), ["9.9e+14", "bfloat16", "9.89e+14"]),
        ("[device.achieved.matmul]", SUSTAINED.format("float4", 1e15), ["1e+15", "float4", "bfloat16"]),
        ("[device.achieved.matmul]", SUSTAINED.format("bfloat16", 600), ["600", "1e+06", "FLOP/s"]),
        ("value = 450e9", "value = 3600e9", ["NVLink 4", "3.6e+12", "3.35e+12"]),
        ("value = 50e9", "value = 1e20", ["InfiniBand NDR", "1e+20", "1e+15"]),
        ("value = 3.4e-6", "value = 3.4", ["NVLink 4", "3.4", "latency"]),
    ],
)
def test_impossible_machine_is_refused_with_its_numbers(old: str, new: str, values: list[str], tmp_path: Path) -> None:
    assert H100.count(old) >= 1
    path = tmp_path / "m.toml"
    path.write_text(H100.replace(old, new, 1), "utf-8")
    with pytest.raises(BadFile) as caught:
        machine.load(str(path))
    assert missing_values(str(caught.value), str(path), *values) == []
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("float8 = { value = 1979e12", "float8 = { value = 989e12"),  # as fast as bfloat16
        ('date = "2026-02"', 'date = "2026-02-28"'),
        ("value = 700,", "value = 10,"),
        ("value = 450e9", "value = 3.35e12"),  # as fast as the memory
        ("value = 3.4e-6", "value = 0.0"),
    ],
)
def test_unusual_machine_is_accepted(old: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(H100.replace(old, new, 1), "utf-8")
    assert machine.load(str(path)).name == "h100"


def a_machine(vendor: str, peak: dict[str, Claim], rate: float = 1e11) -> Machine:
    """A machine whose attention runs at `rate` FLOP/s."""
    size, measured = Claim(value=1e10, unit="", source="a test"), Claim(value=rate, unit="", source="a test")
    device = Device(
        name="cores",
        vendor=vendor,
        memory=size,
        bandwidth=size,
        peak=peak,
        achieved={"attention": RateCurve(points=((1e6, rate),), claim=measured)},
    )
    latency = Claim(value=1e-6, unit="s", source="a test")
    return Machine(name="x", device=device, intra_node=Link(name="l", kind="scale_up", bandwidth=size, latency=latency))


def peak(value: float, measured: bool = False) -> Claim:
    return Claim(value=value, unit="FLOP/s", source="a test", measured=measured)


def test_measured_rates_are_not_compared_with_a_measured_peak() -> None:
    """Attention may run faster than the best product that was probed."""
    check_machine(a_machine("cpu", {"float32": peak(1e11, measured=True)}, rate=1.1e11))
    with refused(BadInput, "cores", "1.1e+11", "1e+11"):
        check_machine(a_machine("cpu", {"float32": peak(1e11)}, rate=1.1e11))


def test_only_a_cpu_may_compute_narrower_products_more_slowly() -> None:
    peaks = {"float32": peak(2e11), "tf32": peak(1.5e11)}
    check_machine(a_machine("cpu", peaks))
    with refused(BadInput, "cores", "2e+11", "1.5e+11"):
        check_machine(a_machine("nvidia", peaks))


LEAF = """
[[fabric]]
name = "leaf"
nodes = 16
oversubscription = { value = 2, unit = "ratio", source = "a test" }
latency = { value = 1e-6, unit = "s", source = "a test" }
"""
SPINE = LEAF.replace("leaf", "spine").replace("16", "64")


def test_levels_of_switches_are_read_from_the_leaves_up(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(H100 + LEAF + SPINE, "utf-8")
    assert [(level.name, level.nodes) for level in machine.load(str(path)).fabric] == [("leaf", 16), ("spine", 64)]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (LEAF + SPINE.replace("64", "16"), ["spine", "leaf", "16"]),
        (LEAF + SPINE.replace("64", "40"), ["spine", "40", "16"]),
        (SPINE + LEAF, ["leaf", "16", "spine", "64"]),
        (LEAF + SPINE + 'kind = "rail"\n', ["spine", "leaf", "rail"]),
        (LEAF + "pxn = false\n", ["leaf", "pxn", "rail"]),
        (LEAF + 'kind = "ring"\n', ["ring"]),
        (LEAF.replace("16", "1"), ["leaf", "1", "2"]),
        (LEAF.replace("16", "99999999"), ["leaf", "99,999,999"]),
        (LEAF.replace("value = 2", "value = 0.5"), ["leaf", "0.5", "1"]),
        (LEAF.replace("value = 2", "value = 2e4"), ["leaf", "20000", "1000"]),
        (LEAF.replace('"ratio"', '"%"'), ["leaf", "%", "ratio"]),
        (LEAF.replace("1e-6", "10"), ["leaf", "10", "latency"]),
        (LEAF.replace('source = "a test"', 'source = ""'), ["2", "ratio", "source"]),
        (LEAF.replace("oversubscription", "ratio"), ["ratio"]),
    ],
)
def test_impossible_levels_of_switches_are_refused(text: str, values: list[str], tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(H100 + text, "utf-8")
    with pytest.raises(BadFile) as caught:
        machine.load(str(path))
    assert missing_values(str(caught.value), str(path), *values) == []


def test_switches_need_a_link_between_nodes(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(machine.known()["tpu-v5p"].read_text("utf-8") + LEAF, "utf-8")
    with refused(BadFile, str(path), "tpu-v5p", "1 level", "inter_node") as caught:
        machine.load(str(path))
    assert caught.value.next_step


TORUS = """
[intra_node.torus]
slices = true
cube = 2

[[intra_node.torus.axes]]
size = 4
bandwidth = { value = 150e9, unit = "bytes/s", source = "a test" }

[[intra_node.torus.axes]]
size = 2
bandwidth = { value = 150e9, unit = "bytes/s", source = "a test" }
"""


def test_torus_is_read_with_its_axes(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(H100 + TORUS, "utf-8")
    torus = machine.load(str(path)).intra_node.torus
    assert torus
    assert (torus.shape, torus.devices, torus.slices, torus.cube) == ("4x2", 8, True, 2)
    assert [axis.links for axis in torus.axes] == [2, 1]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (TORUS.replace("size = 4", "size = 3"), ["3x2", "cube", "2"]),
        (TORUS.replace("size = 4", "size = 6"), ["6x2", "12", "8"]),
        (TORUS.replace("size = 4", "size = 1"), ["size = 1", "2"]),
        (TORUS.replace("150e9", "50e9"), ["4.5e+11", "1.5e+11"]),
        (TORUS.replace("150e9", "0"), ["torus", "zero"]),
        (TORUS.replace("cube = 2", "cube = -1"), ["cube", "-1"]),
        (TORUS.replace("cube = 2", "slice_devices = [1, 16]"), ["4x2", "slice_devices", "16", "8"]),
        (TORUS.replace("slices = true", "slice_devices = [4]"), ["slice_devices", "slices = true"]),
        (TORUS.replace('"bytes/s"', '"bit/s"'), ["bit/s", "bytes/s"]),
        ("\n[intra_node.torus]\naxes = []\n", ["0 axes", "6"]),
        (TORUS.replace("intra_node", "inter_node"), ["torus", "between nodes"]),
    ],
)
def test_impossible_torus_is_refused(text: str, values: list[str], tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(H100 + text, "utf-8")
    with refused(BadFile, *values):
        machine.load(str(path))
