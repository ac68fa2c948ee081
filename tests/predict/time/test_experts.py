"""Mechanisms of mixtures of experts: routing to groups, the format of dispatch, its overlap, and imbalance."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.predict.time.test_plan_rates import MODEL
from trainyard import machine
from trainyard.predict.inputs import cases, hardware
from trainyard.predict.inputs.cases import Cases, of_model
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.pipeline import step_bounds
from trainyard.predict.time import collective_time, dispatch_overlap, expert_routing, step
from trainyard.predict.time.collective_time import RankGroup

H100 = hardware.of_machine(machine.load("h100"), "bfloat16", "float8")
EXPERTS = {"experts": 64.0, "active_experts": 8.0, "moe_ffn_hidden_size": 1024.0}


def routed(**columns: float) -> Cases:
    """A model of 64 experts on 64 ranks of ep and 4 stages, 32 micro-batches, with these columns."""
    plain = cases.PLAIN | of_model(MODEL) | {
        "width": 4096.0, "ffn": 8192.0, "heads": 32.0, "kv_heads": 8.0, "head_dim": 128.0, "layers": 8.0,
        **EXPERTS, "dense_layers": 0.0, "dp_replicate": 1.0, "dp_shard": 64.0, "tp": 1.0, "cp": 1.0, "pp": 4.0,
        "ep": 64.0, "interleave": 1.0, "schedule": 0.0, "first_less": 0.0, "last_less": 0.0,
        "is_sharded": 1.0, "zero": 1.0,
        "sequence_parallel": 0.0, "loss_parallel": 0.0, "seq_len": 4096.0, "samples": 2048.0, "micro_batch_size": 1.0,
        "activation_checkpoint": 0.0, "activation_checkpoint_every": 1.0, "recomputed_share": 0.0, "offload": 0.0,
        "flash": 1.0, "low_precision": 0.0, "width_bytes": 2.0, "weight_bytes": 2.0, "gradient_bytes": 4.0,
        "state_bytes": 12.0, "reduce_bytes": 4.0, "native": 0.0, "shared_experts": 0.0,
    }  # fmt: skip
    return cases.build(**plain | columns)


def seconds(**columns: float) -> float:
    return float(step.step(routed(**columns), H100, Constants()).wall[0])


def account(name: str, **columns: float) -> tuple[float, float]:
    """(exposed, hidden) seconds of an account in a step."""
    lines = [line for line in step.step(routed(**columns), H100, Constants()).lines if line.account == name]
    return float(sum(np.sum(line.seconds) for line in lines)), float(sum(np.sum(line.hidden) for line in lines))


def mean_targets(targets: int, experts: int, active: int, groups: int = 1, active_groups: int = 1) -> float:
    """Mean number of targets with at least one expert of a token, by enumeration of groups and experts, which are drawn
    with replacement."""
    per_group, counts = experts // groups, []
    for chosen in combinations(range(groups), active_groups):
        eligible = [group * per_group + index for group in chosen for index in range(per_group)]
        counts += [len({expert * targets // experts for expert in draw}) for draw in product(eligible, repeat=active)]
    return sum(counts) / len(counts)


def reach(targets: int, experts: int, active: int, groups: int = 1, active_groups: int = 1) -> float:
    """Predicted mean number of other ranks, if each has `experts / targets` experts."""
    case = routed(
        experts=float(experts), active_experts=float(active), n_group=float(groups), topk_group=float(active_groups)
    )
    members = RankGroup(cases.column(targets), cases.column(targets))
    return float(expert_routing.reach(case, members).ranks[0])


@pytest.mark.parametrize(("targets", "experts", "active"), [(2, 4, 1), (2, 4, 2), (4, 8, 3), (4, 4, 4), (8, 8, 2)])
def test_a_token_reaches_the_enumerated_number_of_ranks(targets: int, experts: int, active: int) -> None:
    expected = mean_targets(targets, experts, active) * (targets - 1) / targets
    assert reach(targets, experts, active) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("targets", "experts", "active", "groups", "active_groups", "tolerance"),
    [
        (4, 8, 4, 4, 2, 1e-9), (4, 8, 2, 4, 1, 1e-9), (8, 8, 3, 4, 2, 1e-9), (8, 8, 4, 2, 1, 1e-9),
        (2, 8, 3, 4, 2, 0.05), (2, 8, 4, 4, 1, 0.05), (2, 12, 3, 6, 3, 0.05),
    ],
)  # fmt: skip
def test_limited_routing_reaches_the_enumerated_number_of_ranks(
    targets: int, experts: int, active: int, groups: int, active_groups: int, tolerance: float
) -> None:
    """Exact if targets hold one group or a part of one; with several groups each, the mean number of groups is used."""
    expected = mean_targets(targets, experts, active, groups, active_groups) * (targets - 1) / targets
    assert reach(targets, experts, active, groups, active_groups) == pytest.approx(expected, rel=tolerance)


@given(st.sampled_from([2, 4, 8, 16, 64]), st.integers(1, 16))
def test_deduplicated_dispatch_is_never_slower(ranks: int, active: int) -> None:
    group = collective_time.group(H100, cases.column(ranks), np.ones(1), cases.column(ranks))
    to = expert_routing.reach(routed(active_experts=float(active)), group)
    once = collective_time.dispatch(H100, Constants(), group, cases.column(1e9), *to)
    each = collective_time.exchange(H100, Constants(), group, cases.column(1e9 * active))
    # Within a node no token is sent twice; over nodes it is forwarded inside, which the plain all-to-all does not need.
    inside = collective_time.gather(H100, Constants(), group, cases.column(1e9 * active))
    assert float(once[0]) <= max(float(each[0]), float(inside[0])) * (1 + 1e-9) + 1e-4


@given(st.integers(1, 8), st.sampled_from([8, 16, 32, 64]))
def test_fewer_groups_and_smaller_formats_are_never_slower(active_groups: int, ep: int) -> None:
    limited = {"n_group": 8.0, "topk_group": float(active_groups), "ep": float(ep)}
    assert seconds(**limited) <= seconds(ep=float(ep)) * (1 + 1e-9)
    assert seconds(**limited, dispatch_bytes=1.0) <= seconds(**limited) * (1 + 1e-9)


def test_dispatch_in_a_byte_takes_three_quarters() -> None:
    half, whole = account("comm/all_to_all@ep", dispatch_bytes=1.0), account("comm/all_to_all@ep")
    assert half[0] == pytest.approx(0.75 * whole[0], rel=0.02)


@given(st.floats(1.0, 3.0))
def test_imbalance_takes_time_in_proportion(imbalance: float) -> None:
    exposed = account("comm/all_to_all@ep", expert_imbalance=imbalance)[0]
    assert exposed == pytest.approx(imbalance * account("comm/all_to_all@ep")[0], rel=0.02)
    assert seconds(expert_imbalance=imbalance) >= seconds() * (1 - 1e-9)


def test_imbalance_is_at_most_the_number_of_ranks_that_divide_experts() -> None:
    for ep, most in ((1.0, 1.0), (2.0, 2.0), (8.0, 8.0)):
        at_most = seconds(ep=ep, expert_imbalance=most)
        assert seconds(ep=ep, expert_imbalance=100.0) == pytest.approx(at_most, rel=1e-9)
    assert seconds(ep=1.0, expert_imbalance=100.0) == pytest.approx(seconds(ep=1.0), rel=1e-9)


@given(st.sampled_from([1.0, 2.0]), st.sampled_from([8.0, 64.0]), st.sampled_from([64.0, 2048.0, 16384.0]))
def test_overlapped_dispatch_is_booked_once(dispatch_bytes: float, ep: float, samples: float) -> None:
    columns = {"dispatch_bytes": dispatch_bytes, "ep": ep, "samples": samples}
    exposed, hidden = account("comm/all_to_all@ep", **columns, overlaps_dispatch=1.0)
    assert exposed + hidden == pytest.approx(account("comm/all_to_all@ep", **columns)[0])
    assert (hidden > 0) == (samples > 64)
    assert seconds(**columns, overlaps_dispatch=1.0) <= seconds(**columns)
    lines = step.step(routed(**columns, overlaps_dispatch=1.0), H100, Constants())
    assert sum(float(np.sum(line.seconds)) for line in lines.lines) == pytest.approx(float(lines.wall[0]))


def test_overlap_takes_compute_units() -> None:
    """With dispatch as long as compute or shorter, compute loses the units while dispatch runs."""
    case, units = routed(overlaps_dispatch=1.0, samples=64.0 * 10**6), 0.25
    plain = replace(case, overlaps_dispatch=cases.column(0.0))
    paired, apart = (
        step_bounds.parts(kind, H100, Constants()._replace(dispatch_units=units, inter_node_s=1e-9)).kinds[0]
        for kind in (case, plain)
    )
    dispatch_s = float(apart.forward.dispatch[0] + apart.backward.dispatch[0])
    compute_s = [float(kind.forward.compute[0] + kind.backward.compute[0]) for kind in (paired, apart)]
    covered_s = min(dispatch_s, compute_s[1] / (1 - units))
    assert compute_s[0] - compute_s[1] == pytest.approx(units * covered_s, rel=1e-4)


@pytest.mark.parametrize(("pp", "interleave", "samples", "share"), [
    (1, 1, 64 * 8, 7 / 8), (4, 1, 64 * 10, 1 - 2.5 / 10), (4, 2, 64 * 8, 1 - 4.5 / 8), (4, 1, 64, 0.0),
])  # fmt: skip
def test_paired_share(pp: int, interleave: int, samples: int, share: float) -> None:
    case = routed(pp=float(pp), interleave=float(interleave), samples=float(samples))
    assert float(dispatch_overlap.paired_share(case)[0]) == pytest.approx(share)
