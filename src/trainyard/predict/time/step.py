"""A step's wall time by account, as columns of seconds: the mean over pipeline stages.

A pipeline is simulated operation by operation (`pipeline/simulation.py`); the time that a rank waits is its bubble. The
work after the last micro-batch, once per step, is the same on all ranks. An account is a category of time of the step
ledger, such as `compute/matmul`; a phase is forward, recompute, backward, optimizer or other. A column has a value per
case (layout), of shape [case].
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.pipeline import simulation, step_bounds
from trainyard.predict.pipeline.step_bounds import LayerKind, Parts
from trainyard.predict.time import data_parallel, offload, orthogonalization
from trainyard.predict.time.data_parallel import Exposed, Sharded
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
    """Seconds after the last micro-batch. `sharded_exchange`: the reduce-scatter of gradients and the all-gather of
    weights; `gradient_copy`, `weight_copy`: to the host and from it, if the optimizer's state is offloaded;
    `orthogonalization_s`: the matrix products of Muon; `host_s`: the host's work outside the update."""

    gradient_all_reduce: Exposed
    sharded_exchange: Exposed
    gradient_copy: Exposed
    weight_copy: Exposed
    update_s: Column
    host_s: Column | float
    orthogonalization_s: Column | float = 0.0

    @property
    def seconds(self) -> Column:
        """All of it: the exposed parts of the communications, the update with its products and the host's work."""
        communication_s = (
            self.gradient_all_reduce.seconds
            + self.sharded_exchange.seconds
            + self.gradient_copy.seconds
            + self.weight_copy.seconds
        )
        return communication_s + self.update_s + self.orthogonalization_s + self.host_s

    @property
    def mean(self) -> Once:
        """The mean over stages, of which each has a column."""
        all_reduce, exchange, gradient_copy, weight_copy = (
            Exposed(*np.mean(part, axis=1, keepdims=True)) for part in self[:4]
        )
        update_s, orthogonalization_s, host_s = (
            np.mean(part, keepdims=True) for part in (self.update_s, self.orthogonalization_s, self.host_s)
        )
        return Once(
            gradient_all_reduce=all_reduce,
            sharded_exchange=exchange,
            gradient_copy=gradient_copy,
            weight_copy=weight_copy,
            update_s=update_s,
            orthogonalization_s=orthogonalization_s,
            host_s=host_s,
        )


def bound(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """Lower bound of a step's seconds; exact without a pipeline."""
    parts = step_bounds.parts(cases, hardware, tuned)
    return step_bounds.bound(cases, parts) + once(cases, hardware, tuned, _stage_backward_seconds(cases, parts)).seconds


def bound_partitions(
    cases: Cases,
    rows: npt.NDArray[np.intp],
    first_less: Column,
    last_less: Column,
    hardware: RankHardware,
    tuned: Constants,
) -> Column:
    """Lower bound of a step's seconds for partitions of the layers of `cases`: one for each item of `rows`, the numbers
    of the cases, with as many layers fewer on the first and the last stage. The times of a layer and of the work after
    the last micro-batch are those of the case."""
    parts = step_bounds.parts(cases, hardware, tuned)
    after_last = once(cases, hardware, tuned, _stage_backward_seconds(cases, parts)).seconds
    partitions = replace(cases.take(rows), first_less=first_less, last_less=last_less)
    bounds = step_bounds.bound(partitions, step_bounds.bound_parts(parts, rows, len(cases)))
    return bounds + np.broadcast_to(after_last, len(cases))[rows]


def step(cases: Cases, hardware: RankHardware, tuned: Constants) -> StepTime:
    """The step time of each case by account."""
    parts = step_bounds.parts(cases, hardware, tuned)
    after_last = once(cases, hardware, tuned, _stage_backward_seconds(cases, parts))
    means = _simulate_pipelines(cases, parts)
    micro_batches = cases.accumulate
    lines = [line for kind in parts.kinds for line in layer_accounts(kind, micro_batches * kind.count / cases.pp)]
    lines += outside_layers(parts, micro_batches / cases.pp, after_last, means, micro_batches * parts.host_s)
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
    pipeline_cases = np.flatnonzero(np.broadcast_to(cases.pp > 1, count))
    if len(pipeline_cases):
        pipelines = step_bounds.pipelines(cases, parts)
        simulated = simulation.simulate([pipelines[case] for case in pipeline_cases])
        for column, field in zip(means, Means._fields, strict=True):
            column[pipeline_cases] = [np.mean(getattr(pipeline, field)) for pipeline in simulated]
    return means


def outside_layers(
    parts: Parts, head_micro_batches: Column, once: Once, means: Means, host_s: Column
) -> list[AccountSeconds]:
    """Time of a step outside the layers, mean over ranks. `head_micro_batches`: micro-batches per rank whose head it
    computes, mean over ranks; `means`: seconds in the pipeline; `host_s`: seconds of the host for all micro-batches."""
    return [
        AccountSeconds("compute/matmul", "forward", head_micro_batches * parts.head_forward_s),
        AccountSeconds("compute/matmul", "backward", head_micro_batches * parts.head_backward_s),
        AccountSeconds("compute/softmax", "forward", head_micro_batches * parts.loss_s),
        *_sharded_accounts(parts.ends, head_micro_batches),
        AccountSeconds(
            account="comm/send_recv@pp", phase="other", seconds=means.exchange, hidden=means.moved - means.exchange
        ),
        _communication_account("comm/all_reduce@dp_replicate", "backward", once.gradient_all_reduce),
        _communication_account("comm/reduce_scatter@dp_shard", "optimizer", once.sharded_exchange),
        _communication_account("copy/d2h", "optimizer", once.gradient_copy),
        AccountSeconds("compute/optimizer", "optimizer", once.update_s),
        AccountSeconds("compute/matmul", "optimizer", np.atleast_1d(once.orthogonalization_s)),
        _communication_account("copy/h2d", "optimizer", once.weight_copy),
        AccountSeconds("bubble/warmup@pp", "other", means.warmup),
        AccountSeconds("bubble/steady@pp", "other", means.steady),
        AccountSeconds("bubble/drain@pp", "other", means.drain),
        AccountSeconds("launch_gap/python", "other", host_s + once.host_s),
    ]


def layer_accounts(kind: LayerKind, layer_passes: Column) -> list[AccountSeconds]:
    """The accounts of the layers of one kind. `layer_passes`: number of layers of this kind times micro-batches, per
    rank."""
    return [
        *_phase_accounts("forward", kind.forward, layer_passes),
        AccountSeconds("launch_gap/launch", "forward", layer_passes * kind.forward.gap),
        *_phase_accounts("recompute", kind.recomputation, layer_passes),
        *_phase_accounts("backward", kind.backward, layer_passes),
        AccountSeconds("launch_gap/launch", "backward", layer_passes * kind.recompute_and_backward.gap),
        *_sharded_accounts(kind.sharded, layer_passes),
        _communication_account("copy/d2h", "forward", kind.activations_out.times(layer_passes)),
        _communication_account("copy/h2d", "backward", kind.activations_back.times(layer_passes)),
    ]


def _sharded_accounts(sharded: Sharded, passes: Column) -> list[AccountSeconds]:
    """The accounts of weights that are gathered and gradients that are scattered, `passes` times per rank."""
    return [
        _communication_account("comm/all_gather@dp_shard", "forward", sharded.forward_gather.times(passes)),
        _communication_account("comm/all_gather@dp_shard", "backward", sharded.backward_gather.times(passes)),
        _communication_account("comm/reduce_scatter@dp_shard", "backward", sharded.gradient_scatter.times(passes)),
        _communication_account("copy/h2d", "forward", sharded.forward_copy.times(passes)),
        _communication_account("copy/h2d", "backward", sharded.backward_copy.times(passes)),
        _communication_account("copy/d2h", "backward", sharded.gradient_copy.times(passes)),
    ]


def _phase_accounts(phase_name: str, phase: Phase, layer_passes: Column) -> list[AccountSeconds]:
    """The accounts of `layer_passes` passes through a layer in the phase `phase_name`, whose times per pass are
    `phase`."""
    accounts = {
        "compute/matmul": phase.matmul,
        "compute/attention": phase.attention,
        "compute/elementwise": phase.elementwise,
        "compute/moe_route": phase.route,
        "compute/reduction": phase.scan,
        "comm/all_reduce@tp": phase.parallel,
        "comm/all_gather@cp": phase.context,
    }
    lines = [AccountSeconds(account, phase_name, seconds * layer_passes) for account, seconds in accounts.items()]
    dispatch, hidden = phase.dispatch * layer_passes, phase.hidden_dispatch * layer_passes
    return [*lines, AccountSeconds("comm/all_to_all@ep", phase_name, dispatch, hidden)]


def _communication_account(account: str, phase: str, part: Exposed) -> AccountSeconds:
    return AccountSeconds(account=account, phase=phase, seconds=part.seconds, hidden=part.hidden)


def once(cases: Cases, hardware: RankHardware, tuned: Constants, backward_s: Column) -> Once:
    """Seconds of the work after the last micro-batch: communication of gradients and weights, the optimizer update,
    copies if the optimizer is offloaded, and the host's work. `backward_s`: of a micro-batch's backward pass through a
    stage's layers, under which the communication can be hidden."""
    all_reduce, exchange = data_parallel.once(cases, hardware, tuned, backward_s)
    layer_parameters, table_parameters = data_parallel.count_owned_parameters(cases, hardware)
    owned_parameters = cases.layers / cases.pp * layer_parameters + table_parameters
    update_s = owned_parameters * tuned.optimizer / (hardware.bandwidth * tuned.bandwidth)
    orthogonalization_s = orthogonalization.orthogonalization_seconds(cases, hardware, tuned)
    if not (cases.offload > 0).any():
        return Once(
            gradient_all_reduce=all_reduce,
            sharded_exchange=exchange,
            gradient_copy=Exposed(*np.zeros((2, 1))),
            weight_copy=Exposed(*np.zeros((2, 1))),
            update_s=update_s,
            host_s=tuned.step_s,
            orthogonalization_s=orthogonalization_s,
        )
    update_s = np.where(cases.offload > 0, offload.update_seconds(cases, hardware, tuned, owned_parameters), update_s)
    # If everything is offloaded, the tables are still copied, once per micro-batch: they stay gathered.
    copied_parameters = np.where(
        cases.offload == offload.ALL, cases.accumulate * table_parameters, owned_parameters
    ) * (cases.offload > 0)
    sizes_bytes = (copied_parameters * cases.gradient_bytes, copied_parameters * cases.weight_bytes)
    copies_s = (
        np.where(copied_parameters > 0, offload.copy_seconds(hardware, tuned, size), 0.0) for size in sizes_bytes
    )
    gradient_copy, weight_copy = data_parallel.overlap_in_sequence(tuned, tuple(copies_s), update_s)
    return Once(
        gradient_all_reduce=all_reduce,
        sharded_exchange=exchange,
        gradient_copy=gradient_copy,
        weight_copy=weight_copy,
        update_s=update_s,
        host_s=tuned.step_s,
        orthogonalization_s=orthogonalization_s,
    )


def _stage_backward_seconds(cases: Cases, parts: Parts) -> Column:
    """Seconds of a micro-batch's backward pass through the layers of a stage, with recomputation, mean over stages."""
    return sum((kind.count * kind.recompute_and_backward.seconds for kind in parts.kinds), np.zeros(1)) / cases.pp
