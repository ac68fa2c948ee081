"""The load of experts: from the samples of a run to its chart and table, against counts made up here."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stored import JOB, LEDGER
from trainyard.record import Run, Sample
from trainyard.report.view import expert_load as expert_loads
from trainyard.report.view.build_analysis import analyse_run
from trainyard.report.view.expert_load import expert_load, expert_table


def sample(step, rank, experts, **fields):
    return Sample(step=step, rank=rank, repeat=0, wall_ns=1, tokens=8, memory_bytes=1, experts=experts, **fields)


def run(*samples):
    return Run(
        id="3f9c", job=JOB, started="2026-01-01T00:00:00.000+00:00", state="complete", samples=samples,
        ledgers=(LEDGER,),
    )  # fmt: skip


def test_stages_are_joined_and_layers_sorted_by_number():
    load = expert_load(
        run(
            sample(0, 0, {"layers.9": (1, 3), "layers.2": (2, 2)}),
            sample(0, 4, {"layers.10": (4, 0)}),
            sample(1, 0, {}),
            sample(5, 0, {"layers.2": (9, 9), "layers.9": (9, 9)}, attempt=0),
            sample(5, 0, {"layers.2": (0, 4), "layers.9": (3, 1)}, attempt=1),
            sample(5, 4, {"layers.10": (4, 0)}, attempt=1),
        )
    )
    assert (load.layers, load.experts, load.steps) == (("layers.2", "layers.9", "layers.10"), 2, (1, 6))
    assert load.tokens == (((2, 2), (1, 3), (4, 0)), ((0, 4), (3, 1), (4, 0)))
    rows = {row[0]: row[1:] for row in expert_table(load).rows}
    assert rows["layers.2"] == (1.5, 2.0, 6, 1, 75.0, 0, 25.0, 0)
    assert rows["layers.9"] == (1.5, 1.5, 1, 0, 50.0, 0, 50.0, 0)
    assert rows["layers.10"] == (2.0, 2.0, 1, 0, 100.0, 1, 0.0, 1)


@pytest.mark.parametrize(
    "samples",
    [
        (),
        (sample(0, 0, {}),),
        (sample(0, 0, {"layers.0": ()}),),
        (sample(0, 0, {"layers.0": (0, 0)}),),
        (sample(0, 0, {"layers.0": (-1, 4)}),),
        (sample(0, 0, {"layers.0": (2**62, 2**62)}),),
    ],
    ids=["no samples", "not recorded", "no experts", "no tokens", "negative", "too many"],
)
def test_without_usable_counts_there_is_no_chart(samples):
    assert expert_load(run(*samples)) is None
    analysis = analyse_run(run(*samples))
    assert analysis.charts.experts is None
    assert not [table for table in analysis.tables if table.title.startswith("Expert")]


def test_steps_and_layers_that_do_not_match_are_left_out():
    load = expert_load(
        run(
            sample(0, 0, {"layers.0": (1, 3), "layers.1": (1, 2, 3)}),
            sample(1, 0, {"layers.0": (1, 3, 4)}),
            sample(2, 0, {"layers.0": (5, 3)}),
        )
    )
    assert (load.layers, load.steps, load.tokens) == (("layers.0",), (1, 3), (((1, 3),), ((5, 3),)))


def test_many_steps_are_thinned_to_the_first_the_last_and_some_between(monkeypatch):
    monkeypatch.setattr(expert_loads, "_MOST_COUNTS", 10)
    load = expert_load(run(*(sample(step, 0, {"layers.0": (step + 1, 1)}) for step in range(40))))
    assert (load.steps[0], load.steps[-1], len(load.steps)) == (1, 40, 5)
    assert [counts[0][0] for counts in load.tokens] == list(load.steps)


COUNTS = st.lists(st.lists(st.integers(0, 1000), min_size=3, max_size=3).filter(any), min_size=1, max_size=5)


@given(COUNTS)
def test_the_table_agrees_with_the_counts(steps):
    load = expert_load(run(*(sample(step, 0, {"layers.0": tuple(counts)}) for step, counts in enumerate(steps))))
    ((_, mean, worst, worst_step, busiest, busiest_share, idlest, idlest_share, unused),) = expert_table(load).rows
    imbalances = [3 * max(counts) / sum(counts) for counts in steps]
    totals = [sum(column) for column in zip(*steps)]
    assert mean == pytest.approx(sum(imbalances) / len(steps))
    assert worst == pytest.approx(max(imbalances))
    assert imbalances[worst_step - 1] == pytest.approx(worst)
    assert (totals[busiest], totals[idlest]) == (max(totals), min(totals))
    assert busiest_share == pytest.approx(100 * max(totals) / sum(totals))
    assert idlest_share == pytest.approx(100 * min(totals) / sum(totals))
    assert unused == totals.count(0)


def test_samples_without_counts_are_stored_as_before():
    assert b"experts" not in msgspec.json.encode(sample(0, 0, {}))
