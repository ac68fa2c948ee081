"""The fastest generation of a step's responses on a number of ranks: tensor parallelism x replicas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np

from trainyard.errors import BadJob
from trainyard.model import Model
from trainyard.predict.inputs.machine_model import MachineModel
from trainyard.predict.post_training import decode_cost
from trainyard.predict.post_training.continuous_batching import SimulatedGeneration, simulate
from trainyard.predict.post_training.rollout_defaults import MAX_NUM_SEQS, MEMORY_SHARE
from trainyard.predict.post_training.rollout_workload import Lengths, RolloutWorkload
from trainyard.units import show_gigabytes

MOST_SIMULATED = 4096
"""Most requests of a replica that are simulated; the steady part of the time is scaled for more."""
_GOLDEN_RATIO = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Settings of the inference engine. `max_num_seqs`: most requests that a replica runs at a time; `memory_share`: of
    the device's memory for weights and KV cache; `tp`: fixed degree of tensor parallelism, 0: the fastest."""

    max_num_seqs: int = MAX_NUM_SEQS
    memory_share: float = MEMORY_SHARE
    tp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Generation of all responses of a step. `seconds`: of the replica with the longest responses, `requests` in
    number; `prefill_s`: of these, prefill; `tail_s`: at the end, with at most a quarter of the most concurrent
    requests. `weight_bytes`, `cache_bytes`: of a rank, the cache at its fullest; `capacity`: tokens that the cache of a
    replica holds. `scale`: requests per simulated one."""

    tp: int
    replicas: int
    requests: int
    seconds: float
    prefill_s: float
    tail_s: float
    weight_bytes: float
    cache_bytes: float
    capacity: int
    simulated: SimulatedGeneration
    scale: float = 1.0


def fastest_generation(
    model: Model, machine: MachineModel, ranks: int, workload: RolloutWorkload, engine: EngineOptions,
    resident_bytes: float = 0.0,
) -> Generation:  # fmt: skip
    """The fastest generation on `ranks` ranks. `resident_bytes`: of the training's tensors that stay on each rank.
    Raises `BadJob` if the model, with the cache of one longest sequence, does not fit at any degree of tensor
    parallelism."""
    generations = [
        generate(model, machine, tp, ranks // tp, workload, engine, resident_bytes)
        for tp in tensor_parallel_sizes(model, machine, ranks)
        if engine.tp in (0, tp)
    ]
    fitting = [each for each in generations if each is not None]
    if not fitting:
        raise BadJob(*_explain_too_large(model, machine, ranks, workload, engine, resident_bytes))
    return min(fitting, key=lambda each: each.seconds)


def check_engine(
    model: Model, machine: MachineModel, ranks: int, workload: RolloutWorkload, engine: EngineOptions
) -> None:
    """Raises `BadJob`, as `fastest_generation`, if the engine's settings alone prevent generation on `ranks` ranks: a
    degree that does not divide the model, or a share of the memory that is too small."""
    tried = [tp for tp in tensor_parallel_sizes(model, machine, ranks) if engine.tp in (0, tp)]
    least_share = min((_needed_share(model, machine, tp, workload, 0.0) for tp in tried), default=0.0)
    if not tried or engine.memory_share < least_share <= 1:
        raise BadJob(*_explain_too_large(model, machine, ranks, workload, engine, 0.0))


def tensor_parallel_sizes(model: Model, machine: MachineModel, ranks: int) -> Iterator[int]:
    """Degrees of tensor parallelism that divide the heads and MLPs, within a node or over whole nodes."""
    per_node = machine.machine.ranks_per_node
    widths = [model.heads, *(width for width in (model.moe_ffn_hidden_size, model.ffn_hidden_size) if width)]
    if model.experts and not model.dense_layers:
        widths.remove(model.ffn_hidden_size)
    for tp in range(1, min(model.heads, ranks) + 1):
        if all(width % tp == 0 for width in widths) and (per_node % tp == 0 or tp % per_node == 0):
            yield tp


def generate(
    model: Model, machine: MachineModel, tp: int, replicas: int, workload: RolloutWorkload, engine: EngineOptions,
    resident_bytes: float = 0.0,
) -> Generation | None:  # fmt: skip
    """Generation with this layout; None if it does not fit."""
    capacity = decode_cost.capacity_tokens(model, machine.machine, tp, engine.memory_share, resident_bytes)
    if capacity < workload.longest:
        return None
    lengths, requests = slowest_replica(workload, replicas)
    cost = decode_cost.replica_cost(
        model, machine, tp, most_running=min(engine.max_num_seqs, len(lengths)), prompt_tokens=workload.prompt_tokens,
        shared_by=workload.samples, capacity=capacity,
    )  # fmt: skip
    simulated = simulate(lengths, workload.prompt_tokens, cost)
    scale, tail_s = requests / len(lengths), simulated.tail_s
    return Generation(
        tp=tp, replicas=min(replicas, workload.sequences), requests=requests,
        seconds=simulated.seconds + (scale - 1) * (simulated.seconds - tail_s), prefill_s=scale * simulated.prefill_s,
        tail_s=tail_s, weight_bytes=decode_cost.count_weights(model, tp) * decode_cost.VALUE_BYTES,
        cache_bytes=float(simulated.cached.max()) * decode_cost.cache_bytes_per_token(model, tp), capacity=capacity,
        simulated=simulated, scale=scale,
    )  # fmt: skip


def slowest_replica(workload: RolloutWorkload, replicas: int) -> tuple[Lengths, int]:
    """(response lengths in the order of the queue, number of requests) of the replica with the longest responses, if
    each of `replicas` replicas gets every n-th length of the sorted ones. At most `MOST_SIMULATED` lengths, evenly
    spaced among its own; they are quantiles of the distribution, in a fixed order that mixes short and long ones."""
    requests = -(-workload.sequences // replicas)
    ranks_from_top = np.rint(np.linspace(0, requests - 1, min(requests, MOST_SIMULATED)))
    probabilities = 1 - (ranks_from_top * replicas + 0.5) / workload.sequences
    order = np.argsort(np.mod(np.arange(len(probabilities)) * _GOLDEN_RATIO, 1), kind="stable")
    return workload.lengths_at(probabilities[order]), requests


def _explain_too_large(
    model: Model, machine: MachineModel, ranks: int, workload: RolloutWorkload, engine: EngineOptions, resident: float
) -> tuple[str, str]:
    """(message, next step) if no layout fits, with the arithmetic of the largest tp."""
    sizes = list(tensor_parallel_sizes(model, machine, ranks))
    tried = [tp for tp in sizes if engine.tp in (0, tp)]
    if not tried:
        known = ", ".join(map(str, sizes))
        return (
            f"{model.name} with {model.heads} heads cannot be divided over tp {engine.tp} for generation; {known} can "
            f"be used.",
            "Pass --generation-tp with one of these, or leave it out for the fastest.",
        )
    tp = tried[-1]
    weights = decode_cost.count_weights(model, tp) * decode_cost.VALUE_BYTES
    cache = decode_cost.cache_bytes_per_token(model, tp) * workload.longest
    usable = machine.machine.rank_memory * engine.memory_share
    least_share = min(_needed_share(model, machine, each, workload, resident) for each in tried)
    larger_share = (
        f"a larger --memory-share ({ceil(100 * least_share) / 100:.2f} or more), " if least_share <= 1 else ""
    )
    kept = f", {show_gigabytes(resident)} of the training" if resident else ""
    return (
        f"{model.name} does not fit for generation at any tp up to {tp}: a rank has {show_gigabytes(weights)} of "
        f"weights, {show_gigabytes(cache)} of KV cache for one sequence of {workload.longest:,} tokens{kept}, but "
        f"{show_gigabytes(usable)} can be used.",
        f"Pass {larger_share}more --devices, a machine with more memory, or a smaller --max-response-tokens.",
    )


def _needed_share(model: Model, machine: MachineModel, tp: int, workload: RolloutWorkload, resident: float) -> float:
    """The least share of the device memory in which the weights and the cache of one longest sequence fit. `resident`:
    bytes of the training's tensors on each rank."""
    weights = decode_cost.count_weights(model, tp) * decode_cost.VALUE_BYTES
    cache = decode_cost.cache_bytes_per_token(model, tp) * workload.longest
    return (weights + cache + resident) / machine.machine.rank_memory
