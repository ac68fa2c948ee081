"""Numbers of devices that few layouts divide: a plan names fewer devices, or a batch, that are faster."""

import re
from typing import Any

import pytest

from trainyard.api.plan_layouts import PlanOptions, plan_layouts
from trainyard.predict.search.device_counts import usual_count
from trainyard.report.plans.plans_file import Plans


def plan(devices: int, batch: int = 256, **options: Any) -> Plans:
    return plan_layouts(
        "llama3-8b", "", PlanOptions(machine="h100", devices=devices, batch=batch, seq_len=8192, **options)
    )


def notes(plans: Plans) -> str:
    return " ".join(note for note in plans.notes if "faster than" in note or "--batch" in note)


@pytest.mark.parametrize(
    ("devices", "usual"), [(1, 1), (2, 2), (3, 2), (7, 4), (8, 8), (9, 8), (15, 8), (16, 16), (24, 24), (67, 64)]
)
def test_usual_counts_are_powers_of_two_or_whole_nodes(devices: int, usual: int) -> None:
    assert usual_count(devices, 8) == usual
    assert usual_count(devices, 1) == devices


@pytest.mark.parametrize(("devices", "fewer", "batch"), [(7, None, 259), (9, 8, 261), (13, None, 260), (17, 16, 272)])
def test_suggested_devices_and_batch_are_faster(devices: int, fewer: int | None, batch: int) -> None:
    plans = plan(devices)
    text, own_ns = notes(plans), plans.fastest.plan.ledger.wall_ns
    suggested = re.search(r"(\d+) devices are faster than \d+.*: ([\d.]+) s a step, in place of ([\d.]+) s", text)
    assert (suggested and int(suggested[1])) == fewer
    if suggested:
        assert float(suggested[2]) == pytest.approx(plan(int(suggested[1])).fastest.plan.ledger.wall_ns / 1e9, rel=1e-3)
        assert float(suggested[2]) < float(suggested[3]) == pytest.approx(own_ns / 1e9, rel=1e-3)
    larger = re.search(r"--batch (\d+), a multiple of the (\d+) devices, .* (\d+) %", text)
    assert larger
    assert (int(larger[1]), int(larger[2])) == (batch, devices)
    gain = batch / plan(devices, batch).fastest.plan.ledger.wall_ns / (256 / own_ns) - 1
    assert float(larger[3]) == pytest.approx(100 * gain, abs=0.6)


@pytest.mark.parametrize(("devices", "batch"), [(4, 256), (8, 256), (8, 260), (24, 256), (6, 256), (7, 259), (17, 272)])
def test_usual_devices_and_batches_have_no_note(devices: int, batch: int) -> None:
    assert not notes(plan(devices, batch))


def test_fixed_axes_that_the_usual_devices_do_not_have_are_no_error() -> None:
    assert "faster than" not in notes(plan(9, fix=("pp=9",)))
