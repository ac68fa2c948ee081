"""Pipeline charts: every pass once, no two at a time on a rank, in the order that the dependencies allow."""

import json
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stored import JOB
from tests.trace_maker import trace
from trainyard.layout import Layout
from trainyard.predict.pipeline import schedules
from trainyard.predict.pipeline.simulation import PipelineTimes, simulate, simulate_operations
from trainyard.recipe import Recipe
from trainyard.report.view.planned_pipeline import planned_pipeline
from trainyard.report.view.recorded_pipeline import recorded_pipeline
from trainyard.trace.measure import measure_files


def boxes(chart):
    """(rank, kind, stage, micro-batch) -> (start, stop)."""
    columns = zip(chart.rank, chart.kinds, chart.stage, chart.micro, chart.start, chart.length, strict=True)
    return {(rank, kind, stage, micro): (start, start + length) for rank, kind, stage, micro, start, length in columns}


def job(schedule: str, pp: int, micro_batches: int, interleave: int = 1):
    recipe = Recipe(seq_len=8, tokens_per_step=8 * micro_batches, micro_batch_size=1, schedule=schedule)
    model = msgspec.structs.replace(JOB.model, layers=pp * max(2, interleave))
    layout = Layout(pp=pp, interleave=interleave)
    return msgspec.structs.replace(JOB, model=model, layout=layout, recipe=recipe)


@pytest.mark.parametrize(
    ("schedule", "interleave"),
    [
        ("gpipe", 1),
        ("1f1b", 1),
        ("interleaved", 2),
        ("looped_bfs", 2),
        ("zero_bubble", 1),
        ("zbv", 2),
        ("dualpipev", 2),
    ],
)
def test_planned_schedules_have_every_pass_once(schedule, interleave):
    pp, micro_batches = 4, 8
    chart = planned_pipeline(job(schedule, pp, micro_batches, interleave))
    drawn = boxes(chart)
    stages = pp * interleave
    assert len(drawn) == len(chart.rank)
    back = "IW" if schedule in schedules.SPLIT else "B"
    for stage in range(stages):
        for micro in range(micro_batches):
            kinds = "".join(sorted(kind for _, kind, own, number in drawn if (own, number) == (stage, micro)))
            assert kinds in ("BF", "FIW") if schedule == "dualpipev" else kinds == "".join(sorted("F" + back))
    for rank in range(pp):
        spans = sorted(span for key, span in drawn.items() if key[0] == rank)
        assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
    ends = {(kind, stage, micro): span for (_, kind, stage, micro), span in drawn.items()}
    for (kind, stage, micro), (start, _) in ends.items():
        if kind == "F" and stage:
            assert ends["F", stage - 1, micro][1] <= start
        if kind in "BI":
            assert ends["F", stage, micro][1] <= start


@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(2, 6), st.integers(1, 12))
def test_the_simulated_operations_end_with_the_simulated_step(schedule, pp, micro_batches):
    rng = np.random.default_rng(pp * 100 + micro_batches)
    forward, inputs, weights = rng.uniform(0.5, 2, (3, pp))
    times = PipelineTimes(schedule, pp, micro_batches, forward, inputs, weights, 0.1)
    operations = simulate_operations(times)
    (step,) = simulate([times])
    assert operations.stop.max() == pytest.approx(step.wall)
    busy = np.bincount(operations.rank, operations.stop - operations.start)
    assert busy == pytest.approx(step.busy)


def test_large_schedules_are_cut_and_say_so():
    chart = planned_pipeline(job("1f1b", 8, 4096))
    assert len(chart.rank) <= 4096
    assert "of 4096 micro-batches" in chart.note
    assert planned_pipeline(job("none", 1, 4)) is None


def written(tmp_path, documents):
    for number, document in enumerate(documents):
        (tmp_path / f"rank{number}.json").write_text(json.dumps(document))
    return measure_files([tmp_path])


def test_recorded_passes_last_from_their_first_to_their_last_kernel(tmp_path):
    # The backward pass is launched by another thread (101) than the annotation (100).
    device = [
        ("gemm", 7, 1000, 1500, 110), ("gemm", 7, 1600, 2000, 150), ("gemm", 7, 2100, 2900, 230),
        ("gemm", 7, 3000, 4500, 330, {"thread": 101}), ("ncclDevKernel_SendRecv", 8, 2000, 2050, 190),
    ]  # fmt: skip
    host = [
        ("Forward 0", 100, 100, 200, "user_annotation"), ("PP:3F1", 100, 220, 300, "user_annotation"),
        ("Backward 0", 100, 320, 400, "user_annotation"), ("Forward <b>", 100, 410, 420, "user_annotation"),
    ]  # fmt: skip
    chart = recorded_pipeline(written(tmp_path, [trace(device=device, host=host, marks=[("1", 90, 5000)])]))
    assert boxes(chart) == {
        (0, "F", -1, 0): (0, 1000),
        (0, "F", 3, 1): (1100, 1900),
        (0, "B", -1, 0): (2000, 3500),
    }
    assert chart.unit == "ns"


def test_traces_without_annotations_have_no_schedule(tmp_path):
    document = trace(device=[("gemm", 7, 10, 20, 5)], host=[("aten::mm", 100, 4, 7, "cpu_op")])
    assert recorded_pipeline(written(tmp_path, [document])) is None
