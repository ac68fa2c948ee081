"""Energy, the front of time and memory, and what other numbers of devices come to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refused import refused
from trainyard import machine
from trainyard.cli.main import answer
from trainyard.errors import BadInput, BadJob
from trainyard.job import Job, Layout, Model
from trainyard.machine import Claim
from trainyard.predict.calibrate.machine_file import write
from trainyard.predict.economics import step_cost
from trainyard.predict.economics.step_cost import Bill
from trainyard.predict.inputs.framework_support import FRAMEWORKS, Framework
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.search.device_scaling import PAYS, ScalingPoint, says, scaling
from trainyard.predict.search.points import LayoutPoint
from trainyard.predict.search.search import fastest, search
from trainyard.workloads.ops import transformer_ops

DENSE = Model(layers=4, width=64, ffn=192, heads=8, kv_heads=4, head_dim=8, vocab=512)
EXPERTS = Model(
    layers=4, width=64, ffn=192, heads=8, kv_heads=8, head_dim=8, vocab=512, experts=8, active=2, expert_ffn=96,
    shared_experts=1, dense_layers=1,
)  # fmt: skip
H100 = machine.load("h100")
ASKED = ("plan", "llama3-8b", "--machine", "mi300x", "--devices", "8", "--batch", "64", "--seq-len", "8192")


def without_tp(job: Job) -> None:
    if job.layout.tp > 1:
        raise BadJob("no tensor parallelism here.")


# Energy


@pytest.mark.parametrize(("hours", "mwh"), [(82_432, 36), (135_168, 59), (530_432, 233), (1_022_362, 449)])
def test_energy_is_what_llamas_authors_counted(hours: float, mwh: int) -> None:
    """arXiv:2302.13971, table 15: hours of an A100 at 400 W, times 1.1; whole MWh, cut."""
    theirs = Claim(value=1.1, unit="of the devices' power", source="arXiv:2302.13971")
    found = step_cost.energy(msgspec.structs.replace(machine.load("a100"), overhead=theirs), hours)
    assert found is not None
    assert int(found / 1e3) == mwh


def test_energy_is_known_where_power_is() -> None:
    for name in machine.known():
        known = machine.load(name)
        power = known.device.power
        assert (step_cost.energy(known, 1.0) is None) == (power is None)
        if power:
            assert power.source
            assert power.unit == "W"
            assert 200 < power.value < 2000
    assert machine.load("trn2").device.power is None, "nobody published it"


@given(st.floats(1, 3), st.floats(1e11, 1e14), st.integers(1, 512))
def test_a_bill_goes_with_what_it_is_of(overhead: float, budget: float, devices: int) -> None:
    claim = Claim(value=overhead, unit="", source="a test")
    plain = step_cost.bill([(H100, devices)], 2.0, 1e6, 1e15, 1e15, budget)
    dear = msgspec.structs.replace(H100, overhead=claim, price=Claim(value=5.0, unit="USD/h", source="a test"))
    other = step_cost.bill([(dear, devices)], 2.0, 1e6, 1e15, 1e15, budget)
    assert plain.kwh
    assert plain.dollars
    assert other.kwh == pytest.approx(plain.kwh / step_cost.OVERHEAD.value * overhead)
    assert other.dollars == pytest.approx(plain.dollars * 2)
    slower = step_cost.bill([(H100, devices)], 3.0, 1e6, 1e15, 1e15, budget)
    scaled = plain.slower(1.5)
    for name in ("tokens_per_s", "mfu", "days", "dollars", "kwh"):
        assert getattr(scaled, name) == pytest.approx(getattr(slower, name)), name


def test_a_machines_own_overhead_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kwh = []
    for value in (1.2, 2.4):
        own = msgspec.structs.replace(
            H100, overhead=Claim(value=value, unit="of the devices' power", source="my meter")
        )
        path = tmp_path / f"{value}.toml"
        path.write_text(write(own, "a test"))
        assert machine.load(str(path)) == own
        assert answer(["plan", "tiny", "--machine", str(path), "--devices", "4", "--batch", "8", "--seq-len", "128",
                       "--tokens", "1e9", "--json"]) == 0  # fmt: skip
        kwh.append(json.loads(capsys.readouterr().out)["choices"][0]["bill"]["kwh"])
    assert kwh[1] == pytest.approx(2 * kwh[0])


def test_less_than_the_devices_is_no_overhead() -> None:
    with refused(BadInput, "h100", 0.9, 1):
        msgspec.structs.replace(H100, overhead=Claim(value=0.9, unit="", source="a test"))


# The front


@pytest.mark.parametrize("refuses", [lambda _: None, without_tp], ids=["all", "refused"])
@pytest.mark.parametrize("most", [1, 5, 10**9])
def test_the_whole_front_is_found_however_few_are_shown(most: int, refuses: Any) -> None:
    wanted = PlannerInput(DENSE, 8, 8, 16, 256)
    every = search(wanted, H100, FRAMEWORKS["megatron"], most=10**9, budget=1e9, refuses=refuses)
    found = search(wanted, H100, FRAMEWORKS["megatron"], most=most, budget=1e9, refuses=refuses, front=True)
    best: list[LayoutPoint] = []
    for one in every.choices:  # the fastest first, and of those as fast the smallest
        if not best or one.reserved < best[-1].reserved:
            best.append(one.point)
            assert one.front
        else:
            assert not one.front
    bare = [msgspec.structs.replace(one, bill=Bill(tokens_per_s=1.0, mfu=0.0)) for one in best]
    assert [msgspec.structs.replace(one, bill=Bill(tokens_per_s=1.0, mfu=0.0)) for one in found.front] == bare
    for one, exact in zip(found.front, best, strict=True):
        assert one.bill.days == pytest.approx(exact.bill.days)
        assert one.bill.dollars == pytest.approx(exact.bill.dollars)
        assert one.bill.mfu == pytest.approx(exact.bill.mfu, rel=1e-6)
    assert len(best) > 3


@pytest.mark.parametrize("axis", ["tp", "pp", "microbatch"])
def test_what_is_fixed_is_never_faster(axis: str) -> None:
    free = fastest(PlannerInput(DENSE, 8, 8, 16, 256), H100, FRAMEWORKS["megatron"], 0.0, lambda _: None)
    fixed = fastest(
        PlannerInput(DENSE, 8, 8, 16, 256, fixed={axis: 2}), H100, FRAMEWORKS["megatron"], 0.0, lambda _: None
    )
    assert fixed.plan.ledger.wall_ns >= free.plan.ledger.wall_ns


# Other numbers of devices


def best_of(wanted: PlannerInput, runner: Framework, refuses: Callable[[Job], None]) -> tuple[LayoutPoint | None, str]:
    """By the whole search: the fastest, or why there is none."""
    try:
        return search(wanted, H100, runner, most=1, budget=1e10, refuses=refuses).choices[0].point, ""
    except BadJob as error:
        return None, error.says


@pytest.mark.parametrize("framework", ["megatron", "trainyard"])
@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize(("devices", "samples"), [(8, 16), (12, 24), (2, 6)])
def test_every_point_is_what_a_search_finds_there(model: Model, framework: str, devices: int, samples: int) -> None:
    refuses = transformer_ops.check if framework == "trainyard" else without_tp
    wanted, runner = PlannerInput(model, devices, 8, samples, 256), FRAMEWORKS[framework]
    asked = search(wanted, H100, runner, most=1, budget=1e10, refuses=refuses).choices[0].point
    found = scaling(wanted, H100, runner, 1e10, asked, refuses)
    for reached in (*found.strong, *found.weak):
        there = wanted._replace(devices=reached.devices, samples=reached.samples)
        assert (reached.point, reached.why) == best_of(there, runner, refuses)
    assert all(one.samples == samples for one in found.strong)
    assert all(one.samples * devices == samples * one.devices for one in found.weak)
    for curve in (found.strong, found.weak):
        assert [one.point for one in curve if one.devices == devices] == [asked]
        known = [(one.efficiency, one.point) for one in curve if one.point]
        assert known[0][0] == 1
        for share, point in known:
            assert share == pytest.approx(
                point.bill.tokens_per_s / point.devices / known[0][1].bill.tokens_per_s * known[0][1].devices
            )
    assert all(after.devices == 2 * before.devices for before, after in pairwise(found.strong))


def at(devices: int, rate: float) -> ScalingPoint:
    bill = Bill(tokens_per_s=rate, mfu=0.1, days=1e6 / rate)
    point = LayoutPoint(devices=devices, samples=1, layout=Layout(), microbatch=1, remat="none", wall_ns=1, low=1,
                        high=1, reserved=1, bill=bill)  # fmt: skip
    return ScalingPoint(devices=devices, samples=1, point=point)


@given(st.lists(st.none() | st.floats(1.0, 1e6), min_size=4, max_size=9))
def test_the_sentence_names_the_last_doubling_that_pays(rates: list[float | None]) -> None:
    found = [
        at(2**place, rate) if rate else ScalingPoint(devices=2**place, samples=1, why="it does not fit.")
        for place, rate in enumerate(rates)
    ]
    paying = [
        2 ** (place + 1) for place, (one, two) in enumerate(pairwise(rates)) if one and two and two / one - 1 >= PAYS
    ]
    told = says(found)
    if not paying:
        assert told.startswith("No doubling between 1 and ")
        return
    assert told.startswith(f"More devices pay up to {paying[-1]:,}: doubling {paying[-1] // 2:,} adds ")
    place = paying[-1].bit_length() - 1
    if place + 1 == len(rates):
        assert "; more were not looked at." in told
    elif rates[place + 1] is None:
        assert f"doubling {paying[-1]:,} leads nowhere: it does not fit. " in told
    else:
        assert re.search(rf"doubling {paying[-1]:,} adds -?\d+ %", told)


def test_more_devices_are_looked_at_until_they_stop_paying(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer([*ASKED, "--tokens", "1e12", "--json"]) == 0
    strong = json.loads(capsys.readouterr().out)["scaling"]["strong"]

    def speed(one: dict[str, Any]) -> float:
        return one["point"]["bill"]["tokens_per_s"] * one["point"]["bill"]["goodput"]["share"]

    gains = [speed(after) / speed(before) - 1 for before, after in pairwise(strong)]
    assert gains[-1] < PAYS <= gains[-2]
    assert strong[-1]["devices"] > 64, "eight times as many still pay"


def test_a_budget_is_what_asks_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer([*ASKED, "--tokens", "1e12"]) == 0
    told = capsys.readouterr().out
    for part in (
        "Same batch",
        "Batch grows",
        "More devices pay up to",
        "kWh: devices at their full 750 W",
        "efficiency",
    ):
        assert part in told
    assert answer([*ASKED, "--json"]) == 0
    assert "scaling" not in json.loads(capsys.readouterr().out)
