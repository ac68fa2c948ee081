"""A published what-if analysis of a 64-rank job, reproduced with our replay: `python -m validation.stragglers`.

The job is ByteDance's sample `AR` (StragglerAnalysis, Apache-2.0): one of 16 workers (of 4 tensor-parallel ranks each)
computes 2.5 times as long as the others, over 44 steps. The paper is Lin et al., "Understanding Stragglers in Large
Model Training Using What-if Analysis", OSDI 2025, arXiv:2505.05713. Its definitions, as used here:

- A computation's time is its length. A communication's is its *transfer*: from the last member's start to its own end.
  An op starts as soon as the ops it needs have ended; gaps that the host caused are left out.
- Ideal: each computation takes the mean over all workers and steps of its type, each transfer the median of its type.
- T is the mean over steps of the replayed step time, T_ideal the same with all ops ideal; slowdown S = T / T_ideal.
- S of a rank of the mesh: all ops ideal but those of that data-parallel rank (or pipeline stage), over T_ideal. A
  worker's score is the smaller of the two that it belongs to.
- M_W, the workers' share: take the 3 % of the workers (at least one) with the highest scores, make their ops ideal and
  no others: M_W = (T - T_without) / (T - T_ideal). M_S is the same for the last pipeline stage.
"""

from __future__ import annotations

import json
import math
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.events import I64
from trainyard.trace.whatif.dependency_graph import Graph, Needs, join_needs, plan_graph, replay_graph

DATA = Path(os.environ.get("TRAINYARD_PUBLIC_DATA", Path(__file__).parents[2] / "shared" / "data")) / "stragglers"
COMPUTE = ("forward-compute", "backward-compute", "optimizer", "gc")
TAIL = (
    "gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-reduce-scatter",
    "optimizer-clip-main-grad", "optimizer",
)  # fmt: skip
"""Ops of a worker after its last computation, in order."""
ALL_WORKERS_MEET = ("optimizer-clip-main-grad",)
REPLICAS_MEET = ("params-all-gather", "grads-reduce-scatter")
PIPELINE_MEETS = {"forward-send": (1, "forward-recv"), "backward-send": (-1, "backward-recv")}
SHARE = 0.03


class Ops(NamedTuple):
    """n rows: the `seq`-th op of its `type` of a worker (`replica`, `stage`) in a `step`; times in ns."""

    step: I64
    replica: I64
    stage: I64
    type: NDArray[np.str_]
    seq: I64
    start: I64
    length: I64


class Answer(NamedTuple):
    """Mean step times in seconds, and the paper's figures."""

    steps: int
    ops: int
    t: float
    t_ideal: float
    slowdown: float
    by_replica: dict[int, float]
    by_stage: dict[int, float]
    workers_share: float
    stage_share: float


def read(path: Path) -> Ops:
    """The job's ops. Needs duckdb (the extra `sql`) to read Parquet."""
    import duckdb

    table = duckdb.read_parquet(str(path)).order("step, rank, start_ts, seq_id, optype").fetchnumpy()
    step, replica, stage, seq = (table[name].astype(np.int64) for name in ("step", "dp_rank", "stage", "seq_id"))
    start, length = (
        np.round(table[name].astype(np.float64) * 1e9).astype(np.int64) for name in ("start_ts", "duration")
    )
    return Ops(step, replica, stage, np.array(table["optype"], np.str_), seq, start, length)


class Model(NamedTuple):
    """Dependency graph: op i of the graph's first n is the start of row i of `ops`; `body[i]` is the op with its
    length."""

    graph: Graph
    body: I64
    ops: Ops


def model(ops: Ops) -> Model:
    """Build the graph. A computation is one op; a communication is an arrival, the meeting of its members, and a
    transfer."""
    n = len(ops.step)
    group = _groups(ops)
    members = np.flatnonzero(group >= 0)
    meetings = int(group.max()) + 1
    body = np.arange(n)
    body[members] = n + meetings + np.arange(len(members))
    last = np.zeros(meetings, np.int64)
    np.maximum.at(last, group[members], ops.start[members])

    length = np.zeros(n + meetings + len(members), np.int64)
    length[:n] = np.where(group < 0, ops.length, 0)
    ends = ops.start[members] + ops.length[members]
    length[body[members]] = np.maximum(ends - last[group[members]], 0)
    to_meeting = Needs(members, n + group[members], np.zeros(len(members), np.int64))
    to_transfer = Needs(n + group[members], body[members], np.zeros(len(members), np.int64))
    need, op = np.array(_orders(ops), np.int64).T
    in_order = Needs(body[need], op, np.zeros(len(op), np.int64))
    return Model(plan_graph(length, join_needs([to_meeting, to_transfer, in_order])), body, ops)


def _groups(ops: Ops) -> I64:
    """The meeting each communication takes part in, -1 for computations."""
    numbers: dict[tuple[object, ...], int] = {}
    group = np.full(len(ops.step), -1, np.int64)
    last_stage = int(ops.stage.max())
    rows = zip(ops.step.tolist(), ops.replica.tolist(), ops.stage.tolist(), ops.type.tolist(), ops.seq.tolist())
    for row, (step, replica, stage, kind, seq) in enumerate(rows):
        receives = {there: (-hop, here) for here, (hop, there) in PIPELINE_MEETS.items()}
        if kind in PIPELINE_MEETS:
            where = (kind, replica, stage, seq)
        elif kind in receives:
            hop, sends = receives[kind]
            where = (sends, replica, stage + hop, seq)
        elif kind in ALL_WORKERS_MEET:
            where = (kind, seq)
        elif kind in REPLICAS_MEET:
            where = (kind, stage, seq)
        elif kind == "embedding-grads-all-reduce" and last_stage:
            where = (kind, replica, seq)
        else:
            continue
        group[row] = numbers.setdefault((step, *where), len(numbers))
    return group


def _orders(ops: Ops) -> list[tuple[int, int]]:
    """(need, row): pairs of rows of the same worker and step, where `row` waits for `need`."""
    pairs: list[tuple[int, int]] = []
    worker = np.lexsort((np.arange(len(ops.step)), ops.stage, ops.replica, ops.step))
    ident = np.stack([ops.step, ops.replica, ops.stage])[:, worker]
    bounds = np.flatnonzero((ident[:, 1:] != ident[:, :-1]).any(axis=0)) + 1
    for rows in np.split(worker, bounds):
        pairs += _of_one_worker(rows.tolist(), ops)
    return pairs


def _of_one_worker(rows: list[int], ops: Ops) -> list[tuple[int, int]]:
    """Pairs (need, row) of one worker's rows, which are sorted by start. Computations are sequential, and so are sends
    and receives of one kind; the i-th receive is for the i-th computation, which the i-th send follows; the tail
    follows the last computation."""
    by_type: dict[str, list[int]] = {}
    for row in rows:
        by_type.setdefault(str(ops.type[row]), []).append(row)
    forward, backward = by_type["forward-compute"], by_type["backward-compute"]
    computes = [row for row in rows if ops.type[row] in ("forward-compute", "backward-compute")]
    tail = [row for kind in TAIL for row in by_type.get(kind, [])]
    pairs = [*pairwise(computes), (computes[-1], tail[0]), *pairwise(tail)]
    pairs += [(row, forward[0]) for row in by_type.get("params-all-gather", [])]
    for kind, its in (("forward", forward), ("backward", backward)):
        sends, receives = by_type.get(f"{kind}-send", []), by_type.get(f"{kind}-recv", [])
        pairs += [*pairwise(sends), *pairwise(receives)]
        pairs += [*zip(its, sends), *zip(receives, its), *zip(its, receives[1:])]
    # The first backward transfers are posted during warm-up, before its last forward pass.
    before = computes.index(backward[0]) - 2
    if before >= 0:
        pairs += [
            (computes[before], by_type[kind][0]) for kind in ("backward-send", "backward-recv") if kind in by_type
        ]
    return pairs


def analyse(model: Model) -> Answer:
    """The paper's figures, each from one replay."""
    graph, body, ops = model
    own = graph.length[body]
    ideal = own.copy()
    for kind in np.unique(ops.type):
        rows = ops.type == kind
        ideal[rows] = round(float((np.mean if kind in COMPUTE else np.median)(own[rows])))
    everyone = np.ones(len(own), bool)

    def seconds(straggling: NDArray[np.bool_]) -> float:
        """Mean step time with these rows' own times and all others ideal."""
        length = graph.length.copy()
        length[body] = np.where(straggling, own, ideal)
        stop = replay_graph(graph, length)[1][body]
        return float(np.mean([stop[ops.step == step].max() for step in np.unique(ops.step)])) / 1e9

    t, t_ideal = seconds(everyone), seconds(~everyone)
    by_replica = {int(at): seconds(ops.replica == at) / t_ideal for at in np.unique(ops.replica)}
    by_stage = {int(at): seconds(ops.stage == at) / t_ideal for at in np.unique(ops.stage)}
    workers = sorted(
        ((replica, stage) for replica in by_replica for stage in by_stage),
        key=lambda worker: -min(by_replica[worker[0]], by_stage[worker[1]]),
    )
    worst = np.zeros(len(own), bool)
    for replica, stage in workers[: math.ceil(len(workers) * SHARE)]:
        worst |= (ops.replica == replica) & (ops.stage == stage)
    last = ops.stage == ops.stage.max()
    shares = [(t - seconds(~rows)) / (t - t_ideal) for rows in (worst, last)]
    return Answer(
        len(np.unique(ops.step)), len(own), t, t_ideal, t / t_ideal, by_replica, by_stage, shares[0], shares[1]
    )


def rows(answer: Answer, folder: Path) -> list[tuple[str, float, float]]:
    """(figure, published, ours)."""
    published = json.loads((folder / "result-AR.json").read_text("utf-8"))
    workers = json.loads((folder / "mw-AR.json").read_text("utf-8"))
    stages = json.loads((folder / "ms-AR.json").read_text("utf-8"))
    return [
        ("T, s", workers["tori"], answer.t),
        ("T ideal, s", workers["tideal"], answer.t_ideal),
        ("slowdown S", published["blocking_slowdown"], answer.slowdown),
        ("workers' share M_W", workers["Mw"], answer.workers_share),
        ("last stage's share M_S", stages["Ms"], answer.stage_share),
        *(
            (f"S of data-parallel rank {at}", published["blocking_decompose_by_dp_rank"][str(at)], ours)
            for at, ours in answer.by_replica.items()
        ),
        *(
            (f"S of stage {at}", published["blocking_decompose_by_stage"][str(at)], ours)
            for at, ours in answer.by_stage.items()
        ),
    ]


def main() -> int:
    path = DATA / "trace-AR.parquet"
    if not path.exists():
        print(f"{path} does not exist: nothing to validate.")
        return 0
    answer = analyse(model(read(path)))
    print(f"{answer.ops:,} ops of {answer.steps} steps, 16 workers, 64 ranks\n")
    print(f"{'':<26}{'published':>12}{'ours':>12}{'error':>10}")
    for figure, published, ours in rows(answer, DATA):
        print(f"{figure:<26}{published:>12.4f}{ours:>12.4f}{ours - published:>+10.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
