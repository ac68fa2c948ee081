"""Reduce the traces of a job on the node that recorded them, so that only their columns are sent to the head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trainyard.run.parts.node_part import reduce_traces
from trainyard.run.parts.part import ClockStamp
from trainyard.run.parts.rank_record import RankRecord
from trainyard.run.session import Reduce
from trainyard.store.run_folder import rank_files


def reduce_rank_traces(
    folder: Path, job_id: str, world_size: int, reduce: Reduce, say: Callable[[str], object]
) -> None:
    """Reduce every trace of the run in `folder` to `profiles/rank<N>.profile`, and replace profiles that exist, which
    are of an earlier attempt. The traces are kept.

    `job_id`, `world_size`: of the job; `reduce`: as in `Session`; `say`: prints a line with the sizes. A trace that
    cannot be read is left as it is.
    """
    records: list[RankRecord] = []
    for trace in rank_files(folder / "traces", ".json", ".json.gz"):
        rank = int(trace.name.removeprefix("rank").partition(".")[0])
        (folder / "profiles" / f"rank{rank}.profile").unlink(missing_ok=True)
        # The trace states its host, and the supervisor's clock is that of all nodes.
        records.append(
            RankRecord(
                job_id=job_id,
                agreed_by="job id",
                rank=rank,
                world_size=world_size,
                node="",
                clock=ClockStamp(wall_ns=0, monotonic_ns=0),
            )
        )
    reduce_traces(folder, records, reduce, say)
