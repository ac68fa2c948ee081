"""The causes of a pipeline's bubble sum to it, and equal stages have the bubble of the formula."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.predict.pipeline.test_schedules import shapes
from tests.predict.pipeline.test_stages import TUNED, layouts
from tests.predict.test_plan import WHERE
from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.predict.inputs.cases import Cases
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.pipeline import bubble, schedules, simulation, step_bounds
from trainyard.predict.pipeline.bubble import PipelineBubble
from trainyard.predict.pipeline.step_bounds import StageTimes
from trainyard.predict.time import predicted_ledger, step
from trainyard.report.plans import pipeline_tables


def ledger_of(idle_ns: int, wall_ns: int) -> Ledger:
    entries = [
        Entry(account=Account.parse(account), phase="other", ns=ns, how="modelled")
        for account, ns in (("bubble/steady@pp", idle_ns), ("compute/matmul", wall_ns - idle_ns))
    ]
    return Ledger(wall_ns=wall_ns, entries=tuple(entries), basis="predicted", scope=Scope(steps=("predicted",)))


def explained(times: StageTimes) -> PipelineBubble:
    """The causes of a bubble whose ledger is that of the simulation."""
    (simulated,) = simulation.simulate([times.pipeline])
    idle_s = np.mean(simulated.warmup + simulated.steady + simulated.drain)
    return bubble.explain(times, ledger_of(round(idle_s * 1e9), round(simulated.wall * 1e9)))


def equal_stages(
    shape: tuple[str, int, int, int], head: tuple[float, float] = (0.0, 0.0), host_s: float = 0.0, hop: float = 0.0
) -> StageTimes:
    """Stages of two layers each, with a forward pass of 10 ms and a backward pass of 20 ms."""
    name, pp, interleave, count = shape
    layers = np.repeat([[0.01], [0.02], [0.01]], pp * interleave, axis=1)
    return StageTimes(
        name, pp, count, (2,) * (pp * interleave), layers, np.array([*head, head[1] / 2]),
        host_s * np.array([0.5, 0.5, 0.0]), hop,
    )  # fmt: skip


@settings(deadline=None)
@given(layouts(), TUNED)
def test_causes_sum_to_the_bubble_of_the_ledger(drawn: tuple[Cases, str, int], known: Constants) -> None:
    case, _, count = drawn
    ledger = predicted_ledger.ledger(step.step(case, WHERE, known), 0, ranks=int(case.pp[0]), source="test")
    (times,) = step_bounds.stage_times(case, step_bounds.parts(case, WHERE, known))
    result = bubble.explain(times, ledger)
    assert tuple(result.causes) == bubble.CAUSES
    assert result.bubble_ns == ledger.by_kind().get("bubble", 0)
    idle = [rank.warmup_ns + rank.steady_ns + rank.drain_ns for rank in result.ranks]
    if max(ledger.by_account(), key=lambda account: ledger.by_account()[account]).kind != "bubble":
        assert result.bubble_ns == pytest.approx(np.mean(idle), abs=10)
    for rank in result.ranks:
        spent = rank.busy_ns + rank.transfer_ns + rank.warmup_ns + rank.steady_ns + rank.drain_ns
        assert spent == result.pipeline_ns
        assert rank.busy_ns == pytest.approx(count * (rank.forward_ns + rank.backward_ns), rel=1e-6, abs=count * 3)
    assert sum(sum(rank.layers) for rank in result.ranks) == int(case.layers[0])
    assert sorted(stage for rank in result.ranks for stage in rank.stages) == list(range(len(times.layer_counts)))


@settings(deadline=None)
@given(shapes(tuple(name for name in schedules.SCHEDULES if name not in schedules.SPLIT)))
def test_equal_stages_have_the_bubble_of_the_formula(shape: tuple[str, int, int, int]) -> None:
    result = explained(equal_stages(shape))
    assume(result.ideal_share is not None)
    assert result.ideal_share is not None
    assert result.bubble_ns == pytest.approx(result.ideal_share * result.pipeline_ns, abs=2)
    assert {cause for cause, part in result.causes.items() if part} == {"schedule"}


@pytest.mark.parametrize("shape", [("1f1b", 8, 1, 64), ("interleaved", 8, 3, 64)])
def test_published_formula(shape: tuple[str, int, int, int]) -> None:
    """7 / (64 v + 7): arXiv:2104.04473, section 2.2.2, as a share of the whole time."""
    result = explained(equal_stages(shape))
    share = 7 / (64 * shape[2] + 7)
    assert result.bubble_ns / result.pipeline_ns == pytest.approx(share, abs=1e-9)
    assert result.ideal_share == pytest.approx(share)


@given(st.integers(2, 6), st.integers(1, 20), st.integers(0, 20), st.integers(0, 20))
def test_head_makes_all_other_ranks_wait(pp: int, micro_batches: int, forward_ms: int, backward_ms: int) -> None:
    """1F1B: the last rank is never idle between its operations; each other rank waits for its head, but for that of the
    first micro-batch, which is in the warm-up and drain of equal stages too."""
    head = forward_ms / 1e3, backward_ms / 1e3
    result = explained(equal_stages(("1f1b", pp, 1, micro_batches), head=head))
    expected = (pp - 1) / pp * (micro_batches - 1) * sum(head)
    assert result.causes["head"] / 1e9 == pytest.approx(expected, abs=1e-8)
    assert result.causes["layers"] == result.causes["transfers"] == result.causes["host"] == 0


def test_host_time_and_transfers_have_their_parts() -> None:
    result = explained(equal_stages(("interleaved", 4, 2, 8), host_s=1e-3, hop=1e-3))
    assert result.causes["host"] == pytest.approx(3e6)  # (pp - 1) x 1 ms of a stage
    assert result.causes["transfers"] > 0
    assert result.causes["layers"] == result.causes["head"] == 0


def test_uneven_layers_have_a_part_of_their_own() -> None:
    times = equal_stages(("1f1b", 4, 1, 16))
    times.layers[:, 0] *= 1.5
    result = explained(times._replace(layer_counts=(3, 2, 2, 2)))
    assert result.causes["layers"] > result.causes["schedule"] / 2 > 0
    assert result.causes["head"] == 0


def test_split_schedules_and_odd_rounds_have_no_formula() -> None:
    assert bubble.ideal_share("zero_bubble", 4, 1, 8) is None
    assert bubble.ideal_share("interleaved", 4, 2, 9) is None
    assert bubble.ideal_share("1f1b", 4, 1, 9) == 3 / 12


def test_layers_are_written_as_runs() -> None:
    assert pipeline_tables.layers_text((7, *[8] * 14, 7)) == "7, 14 x 8, 7"
    assert pipeline_tables.layers_text((0, 1, 1)) == "0, 2 x 1"
