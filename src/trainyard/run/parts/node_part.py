"""Builds a node's part of a run, from what its ranks recorded, after its command has ended."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from trainyard.errors import BadFile
from trainyard.record import NodeShare, Run
from trainyard.run.parts.part import ClockStamp, Part, ranks_by_node
from trainyard.run.parts.rank_record import FOLDER as RECORDS
from trainyard.run.parts.rank_record import RankRecord, read_records
from trainyard.run.session import Reduce
from trainyard.store.run_folder import rank_files
from trainyard.units import counted, show_size, show_time


def build_part(run: Run, records: list[RankRecord]) -> Part | None:
    """The part that the ranks of `records` recorded in one run folder; None if the job ran on one node alone.

    `run`: the run with its samples. The ranks may be of several nodes, if these share the folder. Ranks of another job
    in the same folder are left out.
    """
    if not records:
        return None
    first = records[0]
    own = [record for record in records if record.job_id == first.job_id]
    ranks = tuple(sorted({record.rank for record in own}))
    if len(ranks) >= first.world_size and len({record.node for record in own}) == 1:
        return None
    hosts = {rank: host for record in own for rank, host in record.hosts.items()}
    return Part(
        job_id=first.job_id,
        node=first.node,
        ranks=ranks,
        world_size=first.world_size,
        started=run.started,
        code=run.provenance.code,
        run=run.id,
        agreed_by=first.agreed_by,
        hosts={**hosts, **{record.rank: record.node for record in own}},
        clocks={record.rank: record.clock for record in own},
    )


def shares(parts: list[Part]) -> tuple[NodeShare, ...]:
    """The ranks of a job by node: those in `parts` (at least one), then those that are missing. Nodes that no part
    knows have an empty name."""
    hosts = {rank: host for part in parts for rank, host in part.hosts.items()}
    present: list[NodeShare] = []
    for part in sorted(parts, key=lambda part: part.ranks):
        own_hosts = {rank: part.hosts.get(rank, part.node) for rank in part.ranks}
        for node, ranks in ranks_by_node(own_hosts, part.ranks).items():
            present.append(NodeShare(node=node, ranks=ranks, run=part.run, trainyard=part.trainyard, code=part.code))
    here = {rank for part in parts for rank in part.ranks}
    absent = [rank for rank in range(parts[0].world_size) if rank not in here]
    missing = [NodeShare(node=node, ranks=ranks, missing=True) for node, ranks in ranks_by_node(hosts, absent).items()]
    return (*present, *missing)


def as_part(run: Run, part: Part) -> Run:
    """The node's run with the ranks of its job by node."""
    return replace(run, job_id=part.job_id, nodes=shares([part]))


def reduce_traces(folder: Path, records: list[RankRecord], reduce: Reduce, say: Callable[[str], object]) -> None:
    """Reduce the traces of the ranks in `records`, from `traces/` to `profiles/` of the run's folder.

    `reduce`: as in `Session`. Traces that are reduced already are left out. A trace that cannot be read stays as it is.
    Says how many bytes it took and how long.
    """
    record_by_rank = {record.rank: record for record in records}
    start, sizes = time.perf_counter_ns(), [0, 0]
    reduced = 0
    for trace in rank_files(folder / "traces", ".json", ".json.gz"):
        rank = int(trace.name.removeprefix("rank").partition(".")[0])
        profile = folder / "profiles" / f"rank{rank}.profile"
        if rank not in record_by_rank or profile.exists():
            continue
        try:
            reduce(trace, profile, record_by_rank[rank])
        except BadFile as error:
            say(f"{error} It is kept as it is.")
            continue
        reduced += 1
        sizes = [size + path.stat().st_size for size, path in zip(sizes, (trace, profile)) if path.exists()]
    if reduced:
        shown = " to ".join(show_size(size) for size in sizes)
        say(f"reduced {counted(reduced, 'trace')} from {shown} in {show_time(time.perf_counter_ns() - start)}")


def record_of(part: Part, rank: int) -> RankRecord:
    """A record of a rank of a part, for reducing a trace elsewhere than on its node."""
    return RankRecord(
        job_id=part.job_id,
        agreed_by=part.agreed_by,
        rank=rank,
        world_size=part.world_size,
        node=part.hosts.get(rank, part.node),
        clock=part.clocks.get(rank) or ClockStamp(wall_ns=0, monotonic_ns=0),
    )


def read_node(folder: Path, run: Run) -> tuple[Part | None, list[RankRecord]]:
    """(part of the node, records of its ranks), of a run whose command has ended; None for a job on this node alone.

    Removes the records from the folder, since they contain the collector's token. Raises `BadFile` for records that
    cannot be read.
    """
    records = read_records(folder)
    shutil.rmtree(folder / RECORDS, ignore_errors=True)
    return build_part(run, records), records
