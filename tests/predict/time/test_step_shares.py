"""The shares of a step that its host and attention bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from trainyard import machine as machines
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.inputs import cases, constant_sets, hardware
from trainyard.predict.inputs.constants import HOST_S, Constants
from trainyard.predict.time import step
from trainyard.predict.time.step_shares import step_shares
from trainyard.recipe import Recipe

HARDWARE = hardware.of_machine(machines.load("h100"), "bfloat16")


def decoder(width: int, layers: int = 24, sequences: int = 8) -> Job:
    """A dense decoder on eight devices, with one sequence per micro-batch."""
    model = Model(
        layers=layers, hidden_size=width, ffn_hidden_size=4 * width, heads=width // 128, kv_heads=width // 128,
        head_dim=128, vocab=32000,
    )  # fmt: skip
    recipe = Recipe(seq_len=2048, tokens_per_step=2048 * sequences, micro_batch_size=1, dtype="bfloat16")
    return Job(model=model, layout=Layout(dp_replicate=8), recipe=recipe)


@given(width=st.sampled_from([256, 1024, 4096, 12288]), layers=st.integers(1, 96), sequences=st.sampled_from([8, 64]))
def test_a_host_bounds_between_none_and_all_of_a_step(width: int, layers: int, sequences: int) -> None:
    shares = step_shares(cases.of_jobs([decoder(width, layers, sequences)]), HARDWARE, Constants())
    assert 0 <= shares.host[0] <= 1
    assert 0 <= shares.attention[0] <= 1


def test_a_step_of_the_host_alone_doubles_with_its_time() -> None:
    slow = Constants()._replace(**{name: 100 * getattr(Constants(), name) for name in HOST_S})
    assert step_shares(cases.of_jobs([decoder(256)]), HARDWARE, slow).host[0] == pytest.approx(1, abs=0.05)


def test_small_layers_wait_for_the_host_and_large_ones_do_not() -> None:
    small, large = (
        step_shares(cases.of_jobs([decoder(width)]), HARDWARE, Constants()).host[0] for width in (512, 8192)
    )
    assert small > 0.5
    assert large < 0.05


def test_attention_bounds_long_sequences_only() -> None:
    """More of the gradients' all-reduce is hidden under slower attention: the share is at most that of its account."""
    job, shares = decoder(4096), []
    for seq_len in (2048, 131072):
        recipe = structs.replace(job.recipe, seq_len=seq_len, tokens_per_step=8 * seq_len)
        case = cases.of_jobs([structs.replace(job, recipe=recipe)])
        shares.append(float(step_shares(case, HARDWARE, Constants()).attention[0]))
        predicted = step.step(case, HARDWARE, Constants())
        seconds = [float(np.ravel(line.seconds)[0]) for line in predicted.lines if line.account == "compute/attention"]
        assert 0 < shares[-1] <= np.log2(1 + sum(seconds) / float(predicted.wall[0]))
    assert shares[0] < 0.2
    assert shares[1] > 0.75


def test_the_share_is_that_of_the_simulated_step_without_a_pipeline() -> None:
    case = cases.of_jobs([decoder(1024)])
    slower = Constants()._replace(**{name: 2 * getattr(Constants(), name) for name in HOST_S})
    walls = [step.step(case, HARDWARE, constants).wall for constants in (slower, Constants())]
    assert step_shares(case, HARDWARE, Constants()).host == pytest.approx(np.log2(walls[0] / walls[1]))


@pytest.mark.parametrize("name", machines.known())
def test_only_hosts_of_compiled_steps_launch_no_layers(name: str) -> None:
    here = machines.load(name)
    is_compiled = here.device.vendor in ("aws", "google")
    constants = constant_sets.choose(here, "fsdp").values()
    assert (constants.host_forward_s < 1e-6) == is_compiled
    assert (constants.host_backward_s < 1e-6) == is_compiled
