"""The fastest layout on a changed machine, with known layouts."""

from __future__ import annotations

from msgspec.structs import replace

from trainyard import machine
from trainyard.api.plan_request import read_request
from trainyard.machine import Machine
from trainyard.predict.designs.fastest_step import fastest_step
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.search.layout_cost import LayoutCost

H100 = machine.load("h100")


def search(on: Machine, *known: LayoutCost, **fixed: int) -> LayoutCost:
    """The fastest layout of an 8 B model on 16 devices."""
    model = read_request("llama3-8b", None, None, None).model
    wanted = PlannerInput(model=model, devices=16, per_node=8, samples=64, seq_len=2048, fixed=fixed)
    return fastest_step(wanted, on, FRAMEWORKS["megatron"], lambda _: None, [cost.plan.job for cost in known])


def test_known_layout_replaces_a_slower_one() -> None:
    free = search(H100)
    searched = search(H100, tp=8)
    assert searched.plan.ledger.wall_ns > free.plan.ledger.wall_ns
    assert search(H100, free, tp=8).plan == free.plan
    assert search(H100, searched).plan == free.plan


def test_known_layout_that_does_not_fit_is_ignored() -> None:
    free = search(H100)
    memory = replace(H100.device.memory, value=0.9 * free.reserved)
    smaller = replace(H100, device=replace(H100.device, memory=memory))
    limited = search(smaller, free)
    assert limited.reserved < memory.value
    assert limited.plan.ledger.wall_ns > free.plan.ledger.wall_ns
