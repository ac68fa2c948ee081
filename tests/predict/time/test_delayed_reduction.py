"""FSDP that sums the gradients of micro-batches unsharded and reduces them once per step."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard import machine as machines
from trainyard.model import Model
from trainyard.models import presets
from trainyard.predict.inputs import cases, hardware
from trainyard.predict.inputs.cases import PLAIN, Cases, of_model
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.memory import framework_memory
from trainyard.predict.time import shapes, step

HARDWARE = hardware.of_machine(machines.load("h200"), "bfloat16")
MODEL = of_model(msgspec.convert(presets.load("llama3-8b").model, Model))


def build(ranks: int, micro_batches: int, tp: int = 1) -> Cases:
    """Llama 3 8B with one sequence of 4,096 tokens per micro-batch."""
    shards = ranks // tp
    return cases.build(
        **PLAIN | MODEL | {
            "dp_replicate": 1, "dp_shard": shards, "tp": tp, "cp": 1, "pp": 1, "ep": 1, "interleave": 1, "schedule": 0,
            "is_sharded": 1, "zero": 3, "loss_parallel": 1, "sequence_parallel": 1, "first_less": 0, "last_less": 0,
            "seq_len": 4096, "micro_batch_size": 1, "samples": shards * micro_batches, "activation_checkpoint": 0,
            "activation_checkpoint_every": 1, "recomputed_share": 0, "flash": 1, "low_precision": 0, "offload": 0,
            "width_bytes": 2, "weight_bytes": 4, "gradient_bytes": 2, "state_bytes": 8, "reduce_bytes": 4, "native": 0,
        }
    )  # fmt: skip


def delayed(case: Cases) -> Cases:
    return replace(case, delays_reduction=np.ones(1))


def seconds(case: Cases, account: str) -> float:
    """Seconds of an account, exposed and hidden."""
    lines = step.step(case, HARDWARE, Constants()).lines
    return sum(float(np.ravel(line.seconds + line.hidden)[0]) for line in lines if line.account == account)


def exposed_gather(case: Cases) -> float:
    """Exposed seconds of the gathers of the backward pass."""
    lines = step.step(case, HARDWARE, Constants()).lines
    return sum(
        float(np.ravel(line.seconds)[0])
        for line in lines
        if (line.account, line.phase) == ("comm/all_gather@dp_shard", "backward")
    )


@given(ranks=st.sampled_from([8, 64, 512]), micro_batches=st.integers(1, 16), tp=st.sampled_from([1, 4]))
def test_a_delayed_reduction_is_one_per_step_and_never_slower(ranks: int, micro_batches: int, tp: int) -> None:
    case = build(ranks, micro_batches, tp)
    scatter, gather = "comm/reduce_scatter@dp_shard", "comm/all_gather@dp_shard"
    assert seconds(delayed(case), scatter) == pytest.approx(seconds(case, scatter) / micro_batches)
    assert seconds(delayed(case), gather) == pytest.approx(seconds(case, gather))
    walls = [float(step.step(each, HARDWARE, Constants()).wall[0]) for each in (delayed(case), case)]
    assert walls[0] <= walls[1] * (1 + 1e-9)


def test_gathers_without_a_scatter_have_all_compute_to_hide_in() -> None:
    """Between 512 ranks, gathers take longer than a layer computes. They hide in all of its time, in the last
    micro-batch with the scatter."""
    case = build(512, 4)
    nothing_to_scatter = replace(case, reduce_bytes=np.full(1, 1e-9))
    last, usual, alone = (exposed_gather(each) for each in (delayed(case), case, nothing_to_scatter))
    assert alone < usual
    assert last == pytest.approx(usual / 4 + 3 * alone / 4, rel=1e-6)


@pytest.mark.parametrize("changed", [{"zero": 1}, {"is_sharded": 0}, {"pp": 4, "dp_shard": 16}, {"samples": 64}])
def test_only_fsdp_with_several_micro_batches_delays(changed: dict[str, float]) -> None:
    columns = {name: np.full(1, float(value)) for name, value in changed.items()}
    case = replace(build(64, 4), **columns)
    assert step.step(delayed(case), HARDWARE, Constants()).wall == step.step(case, HARDWARE, Constants()).wall
    assert framework_memory.memory(delayed(case)).total == framework_memory.memory(case).total


@pytest.mark.parametrize("tp", [1, 4])
def test_gradients_are_summed_unsharded_until_then(tp: int) -> None:
    """All gradients of a rank of tp in the format of the reduction; one micro-batch needs none of that."""
    case = build(64, 4, tp)
    parameters = sum(float(value[0]) for value in _parameters(case))
    assert framework_memory.memory(delayed(case)).gradients == pytest.approx(4 * parameters)
    assert framework_memory.memory(case).gradients == pytest.approx(2 * parameters * tp / 64)
    once = build(64, 1, tp)
    assert framework_memory.memory(delayed(once)).gradients == framework_memory.memory(once).gradients


def _parameters(case: Cases) -> tuple[np.ndarray, np.ndarray]:
    """Parameters of a rank of tp: (of the layers, of the embedding and the head)."""
    weights = shapes.weights(case)
    return case.layers * (weights.shared + weights.dense), 2 * weights.table + case.tail_parameters
