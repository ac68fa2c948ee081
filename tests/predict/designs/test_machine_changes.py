"""Changes of a machine: which numbers they change, and which inputs are refused."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from trainyard import machine
from trainyard.errors import BadInput, UnknownName
from trainyard.machine import Claim, Machine, SwitchLevel
from trainyard.predict.designs.machine_changes import CHANGES, check_change, improve_machine, with_own_constants
from trainyard.predict.inputs import constant_sets

H100 = with_own_constants(machine.load("h100"), "fsdp")
MI300X = with_own_constants(machine.load("mi300x"), "fsdp")


def improved(name: str, factor: float = 2.0, on: Machine = H100) -> Machine:
    return improve_machine(on, {name: factor})


def claims(value: object, path: str = "") -> dict[str, Claim]:
    """Path -> claim of everything in a machine."""
    if isinstance(value, Claim):
        return {path: value}
    if isinstance(value, msgspec.Struct):
        value = {field: getattr(value, field) for field in value.__struct_fields__}
    if not isinstance(value, dict):
        return {}
    return {key: claim for name, part in value.items() for key, claim in claims(part, f"{path}.{name}").items()}


def ratios(name: str, on: Machine = H100) -> dict[str, float]:
    """Path -> value with the change over that without, of each claim that differs."""
    before, after = claims(on), claims(improved(name, on=on))
    return {path: after[path].value / claim.value for path, claim in before.items() if after[path] != claim}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("matmul", {f".device.peak.{dtype}" for dtype in H100.device.peak} | {".device.achieved.matmul.claim"}),
        ("memory-bandwidth", {".device.bandwidth"}),
        ("memory-capacity", {".device.memory"}),
        ("intra-node", {".intra_node.bandwidth"}),
        ("inter-node", {".inter_node.bandwidth"}),
        ("node-size", {".host.memory", ".host.bandwidth"}),
    ],
)
def test_change_doubles_its_numbers_only(name: str, expected: set[str]) -> None:
    assert ratios(name) == dict.fromkeys(expected, 2.0)


@pytest.mark.parametrize("name", ["latency", "host-time"])
def test_times_are_divided_by_the_factor(name: str) -> None:
    changed = ratios(name)
    assert set(changed.values()) == {0.5}
    constants = {path.removeprefix(".calibration.") for path in changed if path.startswith(".calibration.")}
    others = {path for path in changed if not path.startswith(".calibration.")}
    if name == "latency":
        assert constants == {"intra_node_s", "inter_node_s"}
        assert others == {".intra_node.latency", ".inter_node.latency"}
    else:
        in_seconds = {field for field in H100.calibration if field.endswith("_s")}
        assert constants == in_seconds - {"intra_node_s", "inter_node_s"}
        assert others == set()


@pytest.mark.parametrize("name", CHANGES)
def test_changed_claims_are_hypothetical_and_the_price_stays(name: str) -> None:
    before, after = claims(H100), claims(improved(name, 3.0))
    changed = [path for path, claim in before.items() if after[path] != claim]
    for path in changed:
        assert after[path].source.startswith("hypothetical: ")
        assert after[path].source.endswith(f" x {before[path].source}")
        assert not after[path].measured
    assert after[".price"] == before[".price"]


def test_latency_of_switches_is_divided_too_and_their_ratio_stays() -> None:
    ratio, latency = (Claim(value=value, unit=unit, source="a test") for value, unit in ((4.0, "ratio"), (1e-6, "s")))
    level = SwitchLevel(name="leaf", nodes=16, oversubscription=ratio, latency=latency)
    (changed,) = improved("latency", on=replace(H100, fabric=(level,))).fabric
    assert changed.latency is not None
    assert changed.latency.value == 0.5e-6
    assert changed.oversubscription == ratio


def test_links_of_a_mesh_are_scaled_too() -> None:
    assert ratios("intra-node", MI300X) == {".intra_node.bandwidth": 2.0, ".intra_node.peer_bandwidth": 2.0}


@pytest.mark.parametrize(("name", "longer"), [("tpu-v5p", (32, 20, 28)), ("trn2", (8, 4, 4)), ("tpu-v6e", (32, 16))])
def test_links_of_a_torus_are_scaled_and_its_first_shortest_axis_gets_longer(
    name: str, longer: tuple[int, ...]
) -> None:
    known = with_own_constants(machine.load(name), "megatron")
    before, faster, larger = (
        each.intra_node.torus for each in (known, improved("intra-node", on=known), improved("node-size", on=known))
    )
    assert before
    assert faster
    assert larger
    assert [axis.bandwidth.value for axis in faster.axes] == [2 * axis.bandwidth.value for axis in before.axes]
    assert tuple(axis.size for axis in larger.axes) == longer
    with pytest.raises(BadInput):
        improved("node-size", 1 / before.axes[0].size, on=known)


def test_measured_rates_scale_with_the_peak_so_that_their_share_stays() -> None:
    h100 = machine.load("h100")
    unknown = replace(h100, device=replace(h100.device, name="unknown"))
    before = constant_sets.choose(unknown, "fsdp")
    changed = improve_machine(unknown, {"matmul": 2.0})
    assert before.constants["matmul"] == pytest.approx(794.5 / 989)
    assert constant_sets.choose(changed, "fsdp").constants == before.constants
    assert changed.device.achieved["matmul"].points == ((111669149696.0, 2 * 794.5e12),)


def test_larger_node_has_a_whole_number_of_devices() -> None:
    assert improved("node-size", 1.5).per_node == 12
    with pytest.raises(BadInput):
        check_change(H100, "node-size", 1.1)


@pytest.mark.parametrize("factor", [0.0, 0.009, 101.0, -2.0, float("nan")])
def test_factor_out_of_range_is_refused(factor: float) -> None:
    with pytest.raises(BadInput):
        check_change(H100, "matmul", factor)


def test_change_without_its_part_or_name_is_refused() -> None:
    with pytest.raises(BadInput):
        check_change(replace(H100, inter_node=None), "inter-node", 2.0)
    with pytest.raises(UnknownName):
        check_change(H100, "hbm", 2.0)
