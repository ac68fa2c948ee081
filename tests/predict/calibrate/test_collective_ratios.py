"""Corrections of collectives by size: each of a kind's own, used if it predicts left-out sizes better."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.predict.calibrate.test_fit_constants import SEEN, as_probed
from trainyard import machine
from trainyard.machine import Claim, Machine, RateCurve
from trainyard.predict.calibrate import machine_file, probed_machine
from trainyard.predict.calibrate.probed_machine import COLLECTIVES, ProbedTime
from trainyard.predict.inputs import constant_sets, hardware
from trainyard.predict.inputs.cases import column
from trainyard.predict.inputs.ratio_curve import left_out_errors, ratio_curve
from trainyard.predict.time import collective_time
from trainyard.predict.time.collective_time import RankGroup

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
PAIR = RankGroup(ranks=column(2), near=column(2))


def collective_s(kind: str, size: int) -> float:
    """A backend whose reduce-scatter is twice as slow as its all-gather, and whose all-reduce is as fast as that."""
    return (2.0 if kind == "reduce_scatter" else 1.0) * (size / 2 / 0.8e9 + 3e-4)


@pytest.fixture(scope="module")
def probed() -> Machine:
    others = [probe for probe in as_probed() if probe.what not in COLLECTIVES]
    timed = [
        ProbedTime(kind, (size,), collective_s(kind, size), collective_s(kind, size), collective_s(kind, size))
        for kind in COLLECTIVES
        for size in SIZES
    ]
    return probed_machine.machine("here", SEEN, 2, "float32", [*others, *timed])


def test_each_collective_has_its_own_probed_time(probed: Machine) -> None:
    rank, constants = hardware.of_machine(probed, "float32"), constant_sets.choose(probed, "fsdp").values()
    size = column(1 << 22)  # between two probed sizes
    predicted = {
        "all_gather": collective_time.gather(rank, constants, PAIR, size),
        "reduce_scatter": collective_time.gather(rank, constants, PAIR, size, "reduce_scatter"),
        "all_reduce": collective_time.all_reduce(rank, constants, PAIR, size),
        "all_to_all": collective_time.exchange(rank, constants, PAIR, size),
        "send": collective_time.send(rank, constants, size, column(1)),
    }
    for kind, seconds in predicted.items():
        assert seconds[0] == pytest.approx(collective_s(kind, 1 << 22), rel=0.15), kind


def test_sequence_parallelism_takes_a_reduce_scatter_and_an_all_gather(probed: Machine) -> None:
    rank, constants = hardware.of_machine(probed, "float32"), constant_sets.choose(probed, "fsdp").values()
    size = column(1 << 24)
    split_s = collective_time.all_reduce(rank, constants, PAIR, size, is_split=column(1))
    assert split_s[0] == pytest.approx(
        collective_s("reduce_scatter", 1 << 24) + collective_s("all_gather", 1 << 24), rel=0.05
    )
    whole_s = collective_time.all_reduce(rank, constants, PAIR, size, is_split=column(0))
    assert whole_s[0] == pytest.approx(collective_s("all_reduce", 1 << 24), rel=0.05)


def test_probed_ratios_survive_the_machine_file(probed: Machine, tmp_path: Path) -> None:
    assert "reduce_scatter" in probed.intra_node.ratios
    path = tmp_path / "here.toml"
    path.write_text(machine_file.write(probed, "A test."))
    assert machine.load(str(path)) == probed


def test_between_nodes_no_ratio_applies(probed: Machine) -> None:
    rank, constants = hardware.of_machine(probed, "float32"), constant_sets.choose(probed, "fsdp").values()
    plain = hardware.of_machine(machine.load("h100"), "bfloat16")
    two_nodes = RankGroup(ranks=column(4), near=column(2))
    values = {name: getattr(rank, name) for name in plain.__dataclass_fields__}
    uncorrected = hardware.RankHardware(**values)
    for kind in ("all_gather", "reduce_scatter"):
        seconds = collective_time.gather(rank, constants, two_nodes, column(1 << 24), kind)
        assert seconds == collective_time.gather(uncorrected, constants, two_nodes, column(1 << 24), kind)


def test_one_disturbed_size_does_not_reject_a_curve() -> None:
    claim = Claim(value=5, unit="sizes", source="a test")
    points = tuple((float(size), ratio) for size, ratio in zip(SIZES, (1.8, 0.5, 0.5, 0.5, 0.5)))
    curve_error, constants_error = left_out_errors(RateCurve(points=points, claim=claim))
    assert curve_error == pytest.approx(0, abs=1e-9)
    assert constants_error == pytest.approx(np.log(2))
    scattered = tuple((float(size), ratio) for size, ratio in zip(SIZES, (1.5, 0.6, 1.5, 0.6, 1.5)))
    curve_error, constants_error = left_out_errors(RateCurve(points=scattered, claim=claim))
    assert curve_error > constants_error


def test_ratio_is_constant_beyond_the_probed_sizes() -> None:
    claim = Claim(value=2, unit="sizes", source="a test")
    curve = ratio_curve(RateCurve(points=((1e4, 2.0), (1e6, 0.5)), claim=claim))
    assert curve.at(np.array([0.0, 1e3, 1e5, 1e9])) == pytest.approx([2.0, 2.0, 1.0, 0.5])
