"""Energy, the Pareto front of time and memory, and scaling over device counts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refused import missing_values, refused
from trainyard import machine
from trainyard.api.plan_request import read_request
from trainyard.cli.main import answer
from trainyard.errors import BadInput, BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.machine import Claim, Machine
from trainyard.model import Model
from trainyard.predict.calibrate.machine_file import write
from trainyard.predict.economics import step_cost
from trainyard.predict.economics.failures import Goodput
from trainyard.predict.economics.step_cost import Bill
from trainyard.predict.economics.training_budget import NO_BUDGET, TrainingBudget
from trainyard.predict.inputs.framework_support import FRAMEWORKS, Framework
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.inputs.machine_model import ReferencePeak
from trainyard.predict.search.device_scaling import MIN_GAIN_PER_DOUBLING, ScalingPoint, scaling, summarize
from trainyard.predict.search.points import LayoutPoint
from trainyard.predict.search.search import fastest, search
from trainyard.predict.search.search_space import enumerate_layouts, of_layouts
from trainyard.workloads.ops import transformer_ops

DENSE = Model(layers=4, hidden_size=64, ffn_hidden_size=192, heads=8, kv_heads=4, head_dim=8, vocab=512)
EXPERTS = Model(
    layers=4, hidden_size=64, ffn_hidden_size=192, heads=8, kv_heads=8, head_dim=8, vocab=512, experts=8, top_k=2,
    moe_ffn_hidden_size=96,
    shared_experts=1, dense_layers=1,
)  # fmt: skip
H100 = machine.load("h100")
ASKED = ("plan", "llama3-8b", "--machine", "mi300x", "--devices", "8", "--batch", "64", "--seq-len", "8192")


def without_tp(job: Job) -> None:
    if job.layout.tp > 1:
        raise BadJob("no tensor parallelism here.")


# Energy


@pytest.mark.parametrize(("hours", "mwh"), [(82_432, 36), (135_168, 59), (530_432, 233), (1_022_362, 449)])
def test_energy_matches_the_llama_paper(hours: float, mwh: int) -> None:
    """arXiv:2302.13971, table 15: hours of an A100 at 400 W, times 1.1; whole MWh, cut."""
    overhead = Claim(value=1.1, unit="of the devices' power", source="arXiv:2302.13971")
    energy = step_cost.energy(msgspec.structs.replace(machine.load("a100"), power_overhead=overhead), hours)
    assert energy is not None
    assert int(energy / 1e3) == mwh


def test_energy_is_known_iff_power_is_known() -> None:
    for name in machine.known():
        known = machine.load(name)
        power = known.device.power
        assert (step_cost.energy(known, 1.0) is None) == (power is None)
        if power:
            assert power.source
            assert power.unit == "W"
            assert 200 < power.value < 2000
    assert machine.load("trn2").device.power is None, "it is unpublished"


def bill_of(machine: Machine, devices: int, wall_s: float, tokens: float) -> Bill:
    peak, budget = ReferencePeak(1e15, "bfloat16"), TrainingBudget(tokens=tokens)
    return step_cost.bill([(machine, devices)], wall_s, tokens=1e6, flops=1e15, peak=peak, budget=budget)


@given(st.floats(1, 3), st.floats(1e11, 1e14), st.integers(1, 512))
def test_bill_scales_with_overhead_price_and_time(overhead: float, budget: float, devices: int) -> None:
    claim = Claim(value=overhead, unit="", source="a test")
    plain = bill_of(H100, devices, 2.0, budget)
    expensive = msgspec.structs.replace(
        H100, power_overhead=claim, price=Claim(value=5.0, unit="USD/h", source="a test")
    )
    expensive_bill = bill_of(expensive, devices, 2.0, budget)
    assert plain.kwh
    assert plain.dollars
    assert expensive_bill.kwh == pytest.approx(plain.kwh / step_cost.OVERHEAD.value * overhead)
    assert expensive_bill.dollars == pytest.approx(plain.dollars * 2)
    slower = bill_of(H100, devices, 3.0, budget)
    scaled = plain.slower(1.5)
    for name in ("tokens_per_s", "mfu", "days", "dollars", "kwh"):
        assert getattr(scaled, name) == pytest.approx(getattr(slower, name)), name


def test_overhead_of_a_machine_file_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kwh = []
    for value in (1.2, 2.4):
        custom = msgspec.structs.replace(
            H100, power_overhead=Claim(value=value, unit="of the devices' power", source="my meter")
        )
        path = tmp_path / f"{value}.toml"
        path.write_text(write(custom, "a test"))
        assert machine.load(str(path)) == custom
        assert answer(["plan", "tiny", "--machine", str(path), "--devices", "4", "--batch", "8", "--seq-len", "128",
                       "--tokens", "1e9", "--json"]) == 0  # fmt: skip
        kwh.append(json.loads(capsys.readouterr().out)["choices"][0]["bill"]["kwh"])
    assert kwh[1] == pytest.approx(2 * kwh[0])


def test_overhead_below_one_is_refused() -> None:
    with refused(BadInput, "h100", 0.9, 1):
        msgspec.structs.replace(H100, power_overhead=Claim(value=0.9, unit="", source="a test"))


# The Pareto front


SMALL = PlannerInput(DENSE, 8, 8, 16, 256)


@cache
def every_choice(refuses: Any) -> Any:
    """The search that returns all layouts."""
    return search(SMALL, H100, FRAMEWORKS["megatron"], most=10**9, budget=TrainingBudget(tokens=1e9), refuses=refuses)


@pytest.mark.parametrize("refuses", [lambda _: None, without_tp], ids=["all", "refused"])
@pytest.mark.parametrize("most", [1, 5, 10**9])
def test_front_is_complete_for_any_number_of_choices(most: int, refuses: Any) -> None:
    everything = every_choice(refuses)
    result = search(
        SMALL, H100, FRAMEWORKS["megatron"], most=most, budget=TrainingBudget(tokens=1e9), refuses=refuses, front=True
    )
    front: list[LayoutPoint] = []
    for choice in everything.choices:  # the fastest first, ties by memory
        if not front or choice.reserved < front[-1].reserved:
            front.append(choice.point)
            assert choice.front
        else:
            assert not choice.front
    expected = [msgspec.structs.replace(choice, bill=Bill(tokens_per_s=1.0, mfu=0.0)) for choice in front]
    assert [
        msgspec.structs.replace(choice, bill=Bill(tokens_per_s=1.0, mfu=0.0)) for choice in result.front
    ] == expected
    for choice, exact in zip(result.front, front, strict=True):
        assert choice.bill.days == pytest.approx(exact.bill.days)
        assert choice.bill.dollars == pytest.approx(exact.bill.dollars)
        assert choice.bill.mfu == pytest.approx(exact.bill.mfu, rel=1e-6)
    assert len(front) > 3


@pytest.mark.parametrize("axis", ["tp", "pp", "micro_batch_size"])
def test_fixing_an_axis_is_never_faster(axis: str) -> None:
    free = fastest(PlannerInput(DENSE, 8, 8, 16, 256), H100, FRAMEWORKS["megatron"], NO_BUDGET, lambda _: None)
    fixed = fastest(
        PlannerInput(DENSE, 8, 8, 16, 256, fixed={axis: 2}), H100, FRAMEWORKS["megatron"], NO_BUDGET, lambda _: None
    )
    assert fixed.plan.ledger.wall_ns >= free.plan.ledger.wall_ns


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "deepspeed"])
@pytest.mark.parametrize(("name", "devices"), [("llama3-70b", 32), ("llama3-70b", 256), ("mixtral-8x7b", 16)])
def test_the_fastest_of_all_layouts_recomputes_least(framework: str, name: str, devices: int) -> None:
    model = read_request(name, None, None, None).model
    wanted = PlannerInput(model, devices, 8, 64, 4096)
    layouts = enumerate_layouts(wanted, H100, FRAMEWORKS[framework])
    every, least = (
        of_layouts(wanted, layouts, H100, FRAMEWORKS[framework], only_fastest=only_fastest)
        for only_fastest in (False, True)
    )
    assert 0 < len(least.fits) <= len(every.fits)
    fastest_of_all, fastest_of_least = (next(iter(space.by_time())) for space in (every, least))
    assert fastest_of_least.wall_seconds == fastest_of_all.wall_seconds


# Other device counts


def best_of(wanted: PlannerInput, runner: Framework, refuses: Callable[[Job], None]) -> tuple[LayoutPoint | None, str]:
    """The fastest layout by a full search, or the reason why there is none."""
    try:
        return search(wanted, H100, runner, most=1, budget=TrainingBudget(tokens=1e10), refuses=refuses).choices[
            0
        ].point, ""
    except BadJob as error:
        return None, error.message


@pytest.mark.parametrize("framework", ["megatron", "trainyard"])
@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize(("devices", "samples"), [(8, 16), (12, 24), (2, 6)])
def test_each_scaling_point_equals_a_search(model: Model, framework: str, devices: int, samples: int) -> None:
    refuses = transformer_ops.check if framework == "trainyard" else without_tp
    wanted, runner = PlannerInput(model, devices, 8, samples, 256), FRAMEWORKS[framework]
    best = search(wanted, H100, runner, most=1, budget=TrainingBudget(tokens=1e10), refuses=refuses).choices[0].point
    result = scaling(wanted, H100, runner, TrainingBudget(tokens=1e10), best, refuses)
    for reached in (*result.strong, *result.weak):
        wanted_there = wanted._replace(devices=reached.devices, samples=reached.samples)
        assert (reached.point, reached.reason) == best_of(wanted_there, runner, refuses)
    assert all(point.samples == samples for point in result.strong)
    assert all(point.samples * devices == samples * point.devices for point in result.weak)
    for curve in (result.strong, result.weak):
        assert [point.point for point in curve if point.devices == devices] == [best]
        known = [(point.efficiency, point.point) for point in curve if point.point]
        assert known[0][0] == 1
        for efficiency, point in known:
            assert efficiency == pytest.approx(
                point.bill.tokens_per_s / point.devices / known[0][1].bill.tokens_per_s * known[0][1].devices
            )
    assert all(after.devices == 2 * before.devices for before, after in pairwise(result.strong))


def scaling_point(devices: int, tokens_per_s: float, share: float = 1.0) -> ScalingPoint:
    goodput = Goodput(share=share, low=share, high=share, every_s=1.0, mtbf_s=1.0)
    bill = Bill(tokens_per_s=tokens_per_s, mfu=0.1, days=1e6 / tokens_per_s / share, dollars=1.5, goodput=goodput)
    point = LayoutPoint(devices=devices, samples=1, layout=Layout(), micro_batch_size=1, activation_checkpoint="none",
                        wall_ns=1, low=1,
                        high=1, reserved=1, bill=bill)  # fmt: skip
    return ScalingPoint(devices=devices, samples=1, point=point)


@given(st.lists(st.none() | st.floats(1.0, 1e6), min_size=4, max_size=9))
def test_summary_names_the_last_doubling_that_pays(rates: list[float | None]) -> None:
    points = [
        scaling_point(2**index, rate) if rate else ScalingPoint(devices=2**index, samples=1, reason="it does not fit.")
        for index, rate in enumerate(rates)
    ]
    paying = [
        2 ** (index + 1)
        for index, (before, after) in enumerate(pairwise(rates))
        if before and after and after / before - 1 >= MIN_GAIN_PER_DOUBLING
    ]
    sentence = summarize(points)
    if not paying:
        assert sentence.startswith("No doubling between 1 and ")
        return
    assert sentence.startswith(f"More devices pay up to {paying[-1]:,}: doubling {paying[-1] // 2:,} adds ")
    index = paying[-1].bit_length() - 1
    if index + 1 == len(rates):
        assert "; more were not searched." in sentence
    elif rates[index + 1] is None:
        assert f"doubling {paying[-1]:,} is infeasible: it does not fit. " in sentence
    else:
        assert re.search(rf"doubling {paying[-1]:,} adds -?\d+ %", sentence)


def test_summary_explains_gains_that_failures_take() -> None:
    sentence = summarize([scaling_point(8, 1e5, 0.9), scaling_point(16, 1.9e5, 0.8)])
    assert missing_values(sentence, "adds 69 %", "90 % without failures", "10.0", "20.0 %") == []
    assert "failures" not in summarize([scaling_point(8, 1e5, 0.995), scaling_point(16, 1.9e5, 0.994)])


def test_summary_shows_short_trainings_in_their_unit() -> None:
    sentence = summarize([scaling_point(8, 1e9), scaling_point(16, 1.9e9)])
    assert missing_values(sentence, "86.4 s become 45.5", "$1.50 become $1.50") == []


def test_doublings_continue_until_they_stop_paying(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer([*ASKED, "--tokens", "1e12", "--json"]) == 0
    strong = json.loads(capsys.readouterr().out)["scaling"]["strong"]

    def speed(entry: dict[str, Any]) -> float:
        return entry["point"]["bill"]["tokens_per_s"] * entry["point"]["bill"]["goodput"]["share"]

    gains = [speed(after) / speed(before) - 1 for before, after in pairwise(strong)]
    assert gains[-1] < MIN_GAIN_PER_DOUBLING <= gains[-2]
    assert strong[-1]["devices"] > 64, "eight times the devices still pay"


def test_scaling_requires_a_token_budget(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer([*ASKED, "--tokens", "1e12", "--full"]) == 0
    printed = capsys.readouterr().out
    for part in (
        "Devices, same batch",
        "Devices, batch grows",
        "More devices pay up to",
        "devices at their full 750 W",
        "efficiency",
    ):
        assert part in printed
    assert answer([*ASKED, "--json"]) == 0
    assert "scaling" not in json.loads(capsys.readouterr().out)
