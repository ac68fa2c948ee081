"""A step's wall time by account, as columns of seconds: the mean over pipeline stages.

A pipeline is simulated operation by operation (`pipeline/simulation.py`); the time that a rank waits is its bubble. The
work after the last micro-batch, once per step, is the same on all ranks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.pipeline import simulation, step_bounds
from trainyard.predict.pipeline.step_bounds import LayerKind, Parts
from trainyard.predict.time import data_parallel, offload
from trainyard.predict.time.data_parallel import Exposed
from trainyard.predict.time.layer import Phase


class AccountSeconds(NamedTuple):
    """Exposed seconds of an account in a phase; `hidden`: seconds overlapped with compute."""

    account: str
    phase: str
    seconds: Column
    hidden: Column | float = 0.0


class StepTime(NamedTuple):
    """`lines` sum to `wall`, up to rounding."""

    wall: Column
    lines: list[AccountSeconds]


class Once(NamedTuple):
    """Seconds after the last micro-batch. `summed`: the all-reduce of gradients; `divided`: the reduce-scatter of
    gradients and the all-gather of weights; `down`, `up`: copies of gradients to the host and of weights from it, if
    the optimizer's state is offloaded."""

    summed: Exposed
    divided: Exposed
    down: Exposed
    up: Exposed
    update: Column
    host: Column | float

    @property
    def seconds(self) -> Column:
        sent = self.summed.seconds + self.divided.seconds + self.down.seconds + self.up.seconds
        return sent + self.update + self.host

    @property
    def mean(self) -> Once:
        """The mean over stages, of which each has a column."""
        summed, divided, down, up = (Exposed(*np.mean(part, axis=1, keepdims=True)) for part in self[:4])
        update, host = (np.mean(part, keepdims=True) for part in (self.update, self.host))
        return Once(summed=summed, divided=divided, down=down, up=up, update=update, host=host)


def bound(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """Lower bound of a step's seconds; exact without a pipeline."""
    parts = step_bounds.parts(cases, hardware, tuned)
    return step_bounds.bound(cases, parts) + once(cases, hardware, tuned, _stage_backward_seconds(cases, parts)).seconds


def step(cases: Cases, hardware: RankHardware, tuned: Constants) -> StepTime:
    """The step time of each case by account."""
    parts = step_bounds.parts(cases, hardware, tuned)
    after_last = once(cases, hardware, tuned, _stage_backward_seconds(cases, parts))
    means = _simulate_pipelines(cases, parts)
    micro_batches = cases.accumulate
    lines = [line for kind in parts.kinds for line in layer_accounts(kind, micro_batches * kind.count / cases.pp)]
    lines += outside_layers(parts, micro_batches / cases.pp, after_last, means, micro_batches * parts.beside)
    return StepTime(means.wall + after_last.seconds, lines)


class Means(NamedTuple):
    """Seconds of a pipeline, mean over its ranks. `moved`: transfers to a rank, exposed or not."""

    wall: Column
    exchange: Column
    moved: Column
    warmup: Column
    steady: Column
    drain: Column


def _simulate_pipelines(cases: Cases, parts: Parts) -> Means:
    """Simulates the cases with a pipeline; the time of the others is the sum of their parts."""
    count = len(cases)
    means = Means(np.array(np.broadcast_to(step_bounds.alone(cases, parts), count)), *np.zeros((5, count)))
    piped = np.flatnonzero(np.broadcast_to(cases.pp > 1, count))
    if len(piped):
        pipelines = step_bounds.pipelines(cases, parts)
        ran = simulation.simulate([pipelines[case] for case in piped])
        for column, field in zip(means, Means._fields, strict=True):
            column[piped] = [np.mean(getattr(pipeline, field)) for pipeline in ran]
    return means


def outside_layers(parts: Parts, heads: Column, once: Once, ran: Means, host: Column) -> list[AccountSeconds]:
    """Time outside the layers. `heads`: micro-batches per rank whose head it computes, mean over ranks; `host`: seconds
    of the host."""
    return [
        AccountSeconds("compute/matmul", "forward", heads * parts.ahead),
        AccountSeconds("compute/matmul", "backward", heads * parts.back),
        AccountSeconds("compute/softmax", "forward", heads * parts.loss),
        AccountSeconds(
            account="comm/send_recv@pp", phase="other", seconds=ran.exchange, hidden=ran.moved - ran.exchange
        ),
        _communication_account("comm/all_reduce@dp_replicate", "backward", once.summed),
        _communication_account("comm/reduce_scatter@dp_shard", "optimizer", once.divided),
        _communication_account("copy/d2h", "optimizer", once.down),
        AccountSeconds("compute/optimizer", "optimizer", once.update),
        _communication_account("copy/h2d", "optimizer", once.up),
        AccountSeconds("bubble/warmup@pp", "other", ran.warmup),
        AccountSeconds("bubble/steady@pp", "other", ran.steady),
        AccountSeconds("bubble/drain@pp", "other", ran.drain),
        AccountSeconds("launch_gap/python", "other", host + once.host),
    ]


def layer_accounts(kind: LayerKind, times: Column) -> list[AccountSeconds]:
    """The accounts of the layers of one kind. `times`: number of layers of this kind times micro-batches, per rank."""
    return [
        *_phase_accounts("forward", kind.forward, times),
        AccountSeconds("launch_gap/launch", "forward", times * kind.forward.gap),
        *_phase_accounts("recompute", kind.again, times),
        *_phase_accounts("backward", kind.backward, times),
        AccountSeconds("launch_gap/launch", "backward", times * kind.through.gap),
        _communication_account("comm/all_gather@dp_shard", "forward", kind.sharded.forward.times(times)),
        _communication_account("comm/all_gather@dp_shard", "backward", kind.sharded.again.times(times)),
        _communication_account("comm/reduce_scatter@dp_shard", "backward", kind.sharded.scattered.times(times)),
        _communication_account("copy/h2d", "forward", kind.sharded.up.times(times)),
        _communication_account("copy/h2d", "backward", kind.sharded.again_up.times(times)),
        _communication_account("copy/d2h", "backward", kind.sharded.down.times(times)),
    ]


def _phase_accounts(name: str, phase: Phase, times: Column) -> list[AccountSeconds]:
    """The accounts of `times` layers in the phase `name`."""
    accounts = {
        "compute/matmul": phase.matmul,
        "compute/attention": phase.attention,
        "compute/elementwise": phase.elementwise,
        "compute/moe_route": phase.route,
        "compute/reduction": phase.scan,
        "comm/all_reduce@tp": phase.parallel,
        "comm/all_gather@cp": phase.context,
        "comm/all_to_all@ep": phase.dispatch,
    }
    return [AccountSeconds(account, name, seconds * times) for account, seconds in accounts.items()]


def _communication_account(account: str, phase: str, part: Exposed) -> AccountSeconds:
    return AccountSeconds(account=account, phase=phase, seconds=part.seconds, hidden=part.hidden)


def once(cases: Cases, hardware: RankHardware, tuned: Constants, back: Column) -> Once:
    """Work after the last micro-batch. `back`: seconds of a micro-batch's backward pass through a stage's layers."""
    summed, divided = data_parallel.once(cases, hardware, tuned, back)
    layer, tables = data_parallel.count_owned_parameters(cases, hardware)
    owned = cases.layers / cases.pp * layer + tables
    update = owned * tuned.optimizer / (hardware.bandwidth * tuned.bandwidth)
    if not (cases.offload > 0).any():
        return Once(
            summed=summed,
            divided=divided,
            down=Exposed(*np.zeros((2, 1))),
            up=Exposed(*np.zeros((2, 1))),
            update=update,
            host=tuned.step_s,
        )
    update = np.where(cases.offload > 0, offload.update_seconds(cases, hardware, tuned, owned), update)
    # If everything is offloaded, the tables are still copied, once per micro-batch: they stay gathered.
    moved = np.where(cases.offload > 1, cases.accumulate * tables, owned) * (cases.offload > 0)
    sizes = (moved * cases.gradient_bytes, moved * cases.weight_bytes)
    copies = (np.where(moved > 0, offload.copy_seconds(hardware, tuned, size), 0.0) for size in sizes)
    down, up = data_parallel.overlap_in_sequence(tuned, tuple(copies), update)
    return Once(summed=summed, divided=divided, down=down, up=up, update=update, host=tuned.step_s)


def _stage_backward_seconds(cases: Cases, parts: Parts) -> Column:
    """Seconds of a micro-batch's backward pass, mean over stages."""
    return sum((kind.count * kind.through.seconds for kind in parts.kinds), np.zeros(1)) / cases.pp
