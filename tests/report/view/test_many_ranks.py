"""Many ranks in a report: groups of similar ranks, a summary lane for each rank, full lanes for a few."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.trace_maker import trace, write
from trainyard.ledger import Account, Entry, Ledger, Scope, mean
from trainyard.report.view.build_analysis import analyse_measured
from trainyard.report.view.build_view import view_of
from trainyard.report.view.rank_groups import group_ranks
from trainyard.report.view.rank_summary import LEDGER_LABEL
from trainyard.report.view.timeline import timeline
from trainyard.trace import measure as measuring
from trainyard.trace.booking.summarise_rank import RankSummary, Stretches
from trainyard.trace.measure import measure_files
from trainyard.trace.measured_trace import MeasuredTrace

MATMUL, IDLE = Account("compute", "matmul"), Account("launch_gap", "launch")
LATE, RANKS = 5, 12


def ledgers(matmul_ns: list[int]) -> dict[int, Ledger]:
    """Rank -> a ledger of 1000 ns, the rest of which is idle time."""
    return {
        rank: Ledger(
            wall_ns=1000,
            entries=(Entry(account=MATMUL, ns=ns), Entry(account=IDLE, ns=1000 - ns)),
            scope=Scope(steps=("1",), ranks=(rank,)),
        )
        for rank, ns in enumerate(matmul_ns)
    }


def summary(rank: int, host: str = "", stage: int = -1) -> RankSummary:
    return RankSummary(rank, host, stage, 1, Stretches(np.array([0, 1]), np.array([0], np.int32), (MATMUL,)))


def test_ranks_with_similar_steps_form_a_group() -> None:
    ranks = ledgers([600, 601, 599, 600, 900, 905, 600])
    groups = group_ranks(ranks, mean(list(ranks.values())))
    assert [group.ranks for group in groups.similar] == [(4, 5), (0, 1, 2, 3, 6)]
    assert groups.similar[1].label == "typical"
    assert MATMUL.label in groups.similar[0].label
    assert groups.similar[0].typical in (4, 5)
    assert (groups.hosts, groups.stages, groups.latest) == ((), (), ())


def test_every_rank_is_in_one_of_few_groups() -> None:
    ns = np.random.default_rng(1).integers(0, 1000, 200).tolist()
    ranks = ledgers(ns)
    groups = group_ranks(ranks, mean(list(ranks.values())))
    assert 1 < len(groups.similar) <= 12
    assert Counter(rank for group in groups.similar for rank in group.ranks) == Counter(range(200))
    for group in groups.similar:
        own = [ns[rank] for rank in group.ranks]
        assert min(own) <= ns[group.typical] <= max(own)


def test_groups_by_host_and_stage_and_order_of_lateness() -> None:
    ranks = ledgers([600] * 4)
    late = msgspec.structs.replace(mean(list(ranks.values())), late={1: 5, 3: 9})
    groups = group_ranks(ranks, late, [summary(rank, f"node {rank % 2}", rank // 2) for rank in range(4)])
    assert [(group.label, group.ranks) for group in groups.hosts] == [("node 0", (0, 2)), ("node 1", (1, 3))]
    assert [(group.label, group.ranks) for group in groups.stages] == [("stage 0", (0, 1)), ("stage 1", (2, 3))]
    assert groups.latest == (3, 1)
    unknown = group_ranks(ranks, late, [summary(rank) for rank in range(4)])
    assert (unknown.hosts, unknown.stages) == ((), ())


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MeasuredTrace:
    """Twelve ranks on three hosts, which count as many; rank `LATE` computes three times as long before each of four
    all-reduces."""
    for module in ("trace.measure", "report.view.rank_summary", "report.view.build_view"):
        monkeypatch.setattr(f"trainyard.{module}.MAX_RANKS_IN_DETAIL", 8)
    for rank in range(RANKS):
        device, clock = [], 1_000
        for step in range(4):
            own = 3_000 if rank == LATE else 1_000
            device += [("gemm", 0, clock + at, clock + at + 90, clock + at - 5) for at in range(0, own, 100)]
            arrived, clock = clock + own, clock + 3_500
            reduced = {
                "Collective name": "allreduce",
                "Process Group Name": "0",
                "Process Group Ranks": str(list(range(RANKS))),
                "Group size": RANKS,
                "In msg nelems": 1024,
                "Out msg nelems": 1024,
                "dtype": "Float",
                "Seq": step,
            }
            device.append(("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1, arrived, clock, arrived - 5, reduced))
        document = trace(device=device, rank=rank, world=RANKS, host_name="node", device_index=rank % 4, devices=4)
        write(tmp_path, document, f"rank{rank}.json")
    return measure_files([tmp_path], "all", engine="serial")


def test_many_ranks_have_a_summary_and_few_have_full_lanes(many: MeasuredTrace) -> None:
    assert [own.rank for own in many.summaries] == list(range(RANKS))
    drawn = timeline(many)
    assert drawn.groups is not None
    firsts = {lane.rank: lane.label for lane in reversed(drawn.lanes)}
    assert firsts == dict.fromkeys(range(RANKS), LEDGER_LABEL), "the first lane of each rank is its summary"
    in_detail = {lane.rank for lane in drawn.lanes if lane.label != LEDGER_LABEL}
    assert LATE in in_detail
    assert in_detail == {*drawn.groups.latest[:3], *(group.typical for group in drawn.groups.similar)}
    assert drawn.events == sum(len(rank.classified.start) for rank in many.ranks)
    assert (LATE,) in [group.ranks for group in drawn.groups.similar]


def test_lanes_of_many_ranks_meet_the_budget_and_are_disjoint(many: MeasuredTrace) -> None:
    for most in (10, 60, 200):
        drawn = timeline(many, most)
        lanes = len(drawn.lanes)
        assert sum(len(lane.starts) for lane in drawn.lanes) <= max(most, 3 * lanes)
        for lane in drawn.lanes:
            stops = [start + length for start, length in zip(lane.starts, lane.lengths)]
            assert all(stop <= start for stop, start in zip(stops, lane.starts[1:]))
            assert stops[-1] <= drawn.length_ns
            if lane.label == LEDGER_LABEL:
                assert sum(lane.lengths) == drawn.length_ns - lane.starts[0]


def test_ranks_are_loaded_for_full_lanes_only(many: MeasuredTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[int] = []
    load = measuring.spill.load
    monkeypatch.setattr(
        measuring.spill, "load", lambda path, kind: loaded.append(int(path.name.split("-")[0])) or load(path, kind)
    )
    drawn = timeline(many)
    assert drawn.groups is not None
    assert len(loaded) <= len({lane.rank for lane in drawn.lanes if lane.label != LEDGER_LABEL})


def test_view_of_many_ranks_has_groups_without_a_timeline(many: MeasuredTrace) -> None:
    analysis = analyse_measured(many)
    view = view_of(analysis)
    assert view.groups is not None
    assert view.groups.hosts == ()
    assert view.heat is not None
    assert view.heat.blamed == LATE
    assert view_of(analysis, timeline(many)).groups == timeline(many).groups
