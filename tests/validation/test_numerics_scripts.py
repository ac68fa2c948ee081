"""Scripts of the numerics suite: planted faults change a float64 training, benign settings do not."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from tests.script_runs import run_script
from validation.numerics.benign import SETUPS, Setup
from validation.numerics.fault import Fault
from validation.numerics.faults import FAULTS
from validation.numerics.loss_curves import read_losses

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

FLOAT64 = ("--dtype", "float64")
ROUNDING = 1e-12
"""Relative rounding of a few steps in float64."""
QUICK_FAULTS = ("wrong_norm_epsilon", "gradient_buffer_race", "zero_tokens")
QUICK_SETUPS = ("layer_norm", "unfold")


def cases(items: Sequence[Fault | Setup], quick: Collection[str], mark: pytest.MarkDecorator) -> list[Any]:
    """One case per item, of which those whose ids are not in `quick` get the mark."""
    assert set(quick) <= {item.id for item in items}
    return [pytest.param(item, id=item.id, marks=[] if item.id in quick else mark) for item in items]


def weights(output: str) -> dict[str, float]:
    """Rank -> the printed combination of its weights."""
    return {rank: float(value) for rank, value in re.findall(r"^rank (\d+) weights (\S+)$", output, re.MULTILINE)}


def differ(left: dict, right: dict, tolerance: float) -> bool:
    """Whether a value differs by more than the relative tolerance; NaN differs from a number."""
    assert left.keys() == right.keys()
    return any(not math.isclose(left[key], right[key], rel_tol=tolerance) for key in left)


def train(fault: Fault, arguments: tuple[str, ...] = (), *, faulty: bool) -> str:
    return run_script(fault.command(sys.executable, faulty=faulty, arguments=arguments), fault.ranks)


@pytest.mark.parametrize("fault", cases(FAULTS, QUICK_FAULTS, pytest.mark.nightly))
def test_fault_changes_the_training_from_its_first_step_on(fault: Fault) -> None:
    arguments = FLOAT64 if fault.changes_float64 else ()
    good, faulty = (train(fault, arguments, faulty=side) for side in (False, True))
    assert len(weights(good)) == fault.ranks
    assert all(math.isfinite(loss) for loss in read_losses(good).values())
    before = {step: loss for step, loss in read_losses(good).items() if step < fault.first_step}
    assert before == {step: loss for step, loss in read_losses(faulty).items() if step < fault.first_step}
    assert differ(weights(good), weights(faulty), 100 * ROUNDING)


@pytest.mark.parametrize("fault", cases(FAULTS, QUICK_FAULTS, pytest.mark.nightly))
def test_good_variant_is_deterministic(fault: Fault) -> None:
    first, second = (train(fault, faulty=False) for _ in range(2))
    assert first == second


def test_skipped_autocast_is_invisible_in_float64() -> None:
    fault = next(fault for fault in FAULTS if fault.id == "autocast_skipped")
    assert train(fault, FLOAT64, faulty=False) == train(fault, FLOAT64, faulty=True)


@pytest.mark.parametrize("setup", cases(SETUPS, QUICK_SETUPS, pytest.mark.nightly))
def test_benign_pair_has_the_same_losses(setup: Setup) -> None:
    """In float64, unless the pair is about another dtype: then within the rounding of bfloat16 or float32."""
    is_about_dtype = "--dtype" in setup.suspect
    tolerance = (2.0**-6 if "bfloat16" in setup.suspect else 1e-6) if is_about_dtype else ROUNDING
    for seed in (0, 7):
        sides = [
            read_losses(run_script([*command, *(() if is_about_dtype else FLOAT64)], ranks))
            for command, ranks in zip(setup.commands(sys.executable, seed), (1, setup.ranks), strict=True)
        ]
        assert not differ(*sides, tolerance), sides


@pytest.mark.slow
def test_script_runs_under_torchrun() -> None:
    fault = next(fault for fault in FAULTS if fault.id == "ddp_hooks_lost")
    command = fault.command(sys.executable, faulty=False)
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    assert sorted(result.stdout.splitlines()) == sorted(train(fault, faulty=False).splitlines())
