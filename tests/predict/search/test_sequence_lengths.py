"""Lengths of sequences that all degrees of parallelism divide: if one fits in memory, so does each shorter one."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard import machine as machines
from trainyard.machine import Machine
from trainyard.model import Model
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.search import remedies, sequence_lengths

DENSE = Model(layers=4, hidden_size=64, ffn_hidden_size=192, heads=8, kv_heads=4, head_dim=8, vocab=512)
RANKS = 4
UNIT = 2 * RANKS


def one_node(memory_bytes: float) -> Machine:
    """Devices with little memory, without a host's memory and without other nodes, so that the only remedy is a shorter
    sequence."""
    machine = machines.load("h100")
    memory = msgspec.structs.replace(machine.device.memory, value=memory_bytes)
    device = msgspec.structs.replace(machine.device, memory=memory)
    return msgspec.structs.replace(machine, per_node=RANKS, device=device, host=None, inter_node=None)


@pytest.mark.parametrize("framework", ["trainyard", "megatron"])
def test_no_length_beyond_the_suggested_limit_fits(framework: str) -> None:
    runner, machine = FRAMEWORKS[framework], one_node(3e6)
    wanted = PlannerInput(DENSE, RANKS, RANKS, RANKS, 1 << 20)
    shortest, longest = 760, 880
    fitting = [
        seq_len
        for seq_len in range(shortest, longest)
        if remedies.count_fitting(wanted._replace(seq_len=seq_len), runner, machine)
    ]
    multiples = [seq_len for seq_len in fitting if seq_len % UNIT == 0]
    assert shortest < multiples[-1] < longest - UNIT
    assert multiples == list(range(shortest, multiples[-1] + UNIT, UNIT))  # all shorter ones fit
    assert fitting != list(range(shortest, fitting[-1] + 1))  # not all shorter ones fit
    assert fitting[-1] < multiples[-1] + UNIT

    step = remedies.suggest(wanted, runner, machine, too_large=True)
    fits, too_long, unit = (int(number.replace(",", "")) for number in re.findall(r"of ([\d,]*\d)", step))
    assert (fits % UNIT, too_long % UNIT, unit) == (0, 0, UNIT)
    assert fits <= multiples[-1] < too_long <= fits * 17 / 16


@given(st.integers(1, 1 << 32), st.integers(1, 1 << 14))
def test_padding_adds_little_and_is_minimal(seq_len: int, ranks: int) -> None:
    padded, unit = sequence_lengths.pad(seq_len, ranks), sequence_lengths.unit(seq_len, ranks)
    assert 2 * ranks % unit == 0 or unit == 1
    assert padded % unit == 0
    assert 0 <= padded - seq_len < unit <= max(1, seq_len // 16)
    assert sequence_lengths.cut(padded, ranks) % sequence_lengths.unit(padded, ranks) == 0
    if 16 * 2 * ranks <= seq_len and ranks > 1:
        assert unit == 2 * ranks
