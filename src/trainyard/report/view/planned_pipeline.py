"""The pipeline schedule of a plan as a chart."""

from __future__ import annotations

import numpy as np

from trainyard.job import Job
from trainyard.predict.pipeline import schedules
from trainyard.predict.pipeline.simulation import PipelineTimes, simulate_operations
from trainyard.report.view.charts import MOST_OPERATIONS, PipelineChart

_KINDS = "FBIW"
"""Letters of the kinds of operations, in the order of `schedules.FORWARD` to `schedules.WEIGHTS`."""
_TICKS_PER_FORWARD = 12
"""Length of a forward pass of all stages of a rank; divisible by common numbers of stages."""


def planned_pipeline(job: Job) -> PipelineChart | None:
    """The schedule of a job as papers draw it, with a backward pass of twice the length of a forward pass and without
    transfers; None without pipeline parallelism."""
    pp, interleave, schedule = job.layout.pp, job.layout.interleave, job.recipe.schedule
    if pp < 2 or schedule not in schedules.SCHEDULES:
        return None
    per_rank = 2 if schedule in schedules.V_SHAPED else interleave
    micro_batches = job.accumulate
    operations_per_micro_batch = 3 * pp * per_rank
    fitting = max(pp, MOST_OPERATIONS // operations_per_micro_batch // pp * pp)
    shown = (
        micro_batches
        if micro_batches <= fitting
        else next((count for count in range(fitting, 0, -pp) if schedules.takes(schedule, pp, count)), micro_batches)
    )
    if pp * per_rank * shown > MOST_OPERATIONS:
        return None
    forward = np.full(pp * per_rank, _TICKS_PER_FORWARD / per_rank)
    times = PipelineTimes(
        schedule=schedule, ranks=pp, micro_batches=shown, forward=forward, inputs=forward, weights=forward, hop=0.0
    )
    operations = simulate_operations(times)
    start, stop = np.rint(operations.start).astype(np.int64), np.rint(operations.stop).astype(np.int64)
    cut = f"; {shown} of {micro_batches} micro-batches are drawn" if shown < micro_batches else ""
    return PipelineChart(
        ranks=tuple(f"rank {rank}" for rank in range(pp)),
        rank=tuple(operations.rank.tolist()),
        kinds="".join(_KINDS[kind] for kind in operations.kind.tolist()),
        stage=tuple(operations.stage.tolist()),
        micro=tuple(operations.micro.tolist()),
        start=tuple(start.tolist()),
        length=tuple((stop - start).tolist()),
        unit="forward passes",
        ticks=_TICKS_PER_FORWARD,
        title=f"Pipeline schedule: {schedule}",
        note="order of the operations; drawn with a backward pass of twice the length of a forward pass, and without "
        f"transfers{cut}. Times of the plan are in the ledger",
    )
