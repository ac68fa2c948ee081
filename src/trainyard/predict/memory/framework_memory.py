"""Peak bytes allocated by a framework on a rank, by part, as columns.

A stage keeps the activations (`layer_memory.py`) of its in-flight micro-batches (1F1B: Narayanan et al. 2021,
arXiv:2104.04473, section 2.2.1). The allocator reserves `RESERVED` times the allocated bytes. A column has a value per
case (layout), of shape [case]. Layers are dense or routed (with experts).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from trainyard.predict.inputs.cases import Cases, Column, column
from trainyard.predict.inputs.fine_tuning import NF4_BYTES
from trainyard.predict.memory import activation_offload, native_memory
from trainyard.predict.memory.layer_memory import FLOAT32, LayerMemory, measure_layer
from trainyard.predict.memory.memory_parts import MemoryParts, fullest
from trainyard.predict.pipeline import partition
from trainyard.predict.pipeline.in_flight import in_flight
from trainyard.predict.time import data_parallel, offload, orthogonalization, shapes
from trainyard.predict.time.shapes import Weights

RESERVED = 1.2
"""Reserved over allocated bytes; published runs of torchtitan and SimuMax have 1.15 to 1.24."""
USABLE = 0.94
"""Fraction of a device's memory that can be used: the rest is for the driver, the framework and the collectives."""


def memory(cases: Cases) -> MemoryParts:
    """Bytes by part of the first or the last stage, whichever needs more: the first has the embedding and most
    in-flight micro-batches, the last has the head and the logits. For trainyard's own trainer the memory is modelled at
    each moment of a step (`native_memory.py`); such cases cannot be mixed with others."""
    native = np.broadcast_to(cases.native > 0, len(cases))
    if native.any() and not native.all():
        raise ValueError(
            f"{native.sum()} of {len(cases)} cases run on trainyard's own trainer; pass the others separately"
        )
    if native.all():
        return fullest([native_memory.peak(cases, first) for first in (True, False)])
    layer = measure_layer(cases)
    fullest_end = fullest([of_stage(cases, first, layer) for first in (True, False)])
    rows = np.flatnonzero(np.broadcast_to((cases.first_less > 0) & (cases.pp > 2), len(cases)))
    return _with_second_rank(cases, fullest_end, rows) if len(rows) else fullest_end


def _with_second_rank(cases: Cases, fullest_end: MemoryParts, rows: npt.NDArray[np.intp]) -> MemoryParts:
    """Bytes by part of the fullest of three ranks: the first and the last one (`fullest_end`) and, in the cases `rows`,
    in which the first one has fewer layers, the second one. That keeps one micro-batch less in flight with one stage
    per rank, and 2 / v less with v stages, as the first rank of a pipeline of p - 2 / (v + 1) ranks does
    (`in_flight`)."""
    cases = cases.take(rows)
    pp, layers = cases.pp - 2 / (cases.interleave + 1), _rank_layers(cases, 1.0)
    second = replace(
        cases,
        pp=pp,
        layers=pp * layers,
        dense_layers=np.clip(cases.dense_layers - _rank_layers(cases, 0.0), 0.0, layers),
        vocab=column(0),
        first_less=column(0),
        last_less=column(0),
    )
    fullest_parts = [np.array(np.broadcast_to(part, len(fullest_end.total))) for part in fullest_end]
    ends = MemoryParts(*(part[rows] for part in fullest_parts))
    for part, of_rows in zip(fullest_parts, fullest([ends, of_stage(second, first=True)]), strict=True):
        part[rows] = of_rows
    return MemoryParts(*fullest_parts)


def on_host(cases: Cases) -> Column:
    """Bytes of host memory of a rank of the first or the last stage, whichever needs more."""
    activation_bytes = activation_offload.host_bytes(cases)
    if not (cases.offload > 0).any():
        return activation_bytes
    trained = shapes.weights(cases).trained(cases)
    # Trained weights whose optimizer state a rank of the first and of the last stage has.
    first_weights, last_weights = (_count_kept_weights(cases, first)(1, trained) for first in (True, False))
    return np.maximum(first_weights, last_weights) * offload.host_bytes_per_weight(cases) + activation_bytes


def _count_kept_weights(cases: Cases, first: bool) -> Callable[[int | None, Weights], Column]:
    """Returns a function (ZeRO stage, weights by kind) -> number of weights that a rank of the first or last stage
    keeps, [case], if data parallelism shards them from this ZeRO stage on: 1 for the optimizer state, 2 for gradients,
    3 for weights."""
    is_only_stage, layer_count = cases.pp == 1, _stage_layers(cases, first)
    dense, routed = shapes.stage_layer_kinds(cases, layer_count, first)
    # Matrices of the size of the embedding: both ends of the model are on a single stage, and may be one matrix.
    tables = np.where(
        is_only_stage & (cases.lead_parameters == 0), np.where(cases.tie_word_embeddings > 0, 1.0, 2.0), 1.0
    )
    shard = np.where(cases.is_sharded > 0, cases.dp_shard * cases.cp, 1.0)
    owners = np.where(cases.is_sharded > 0, _expert_ranks(cases), 1.0)

    def count_kept(stage: int | None, layer_weights: Weights) -> Column:
        """Weights on a rank; expert weights are sharded over the ranks that have the same experts. `stage`: None if
        none are sharded."""
        ends = layer_weights.table * tables + cases.lead_parameters + cases.tail_parameters
        common = layer_count * layer_weights.shared + dense * layer_weights.dense + routed * layer_weights.routed + ends
        expert, divided = routed * layer_weights.expert, cases.zero >= (np.inf if stage is None else stage)
        return common / np.where(divided, shard, 1.0) + expert / np.where(divided, owners, 1.0)

    return count_kept


def of_stage(cases: Cases, first: bool, layer: LayerMemory | None = None) -> MemoryParts:
    """Bytes by part of the first or the last stage (`first`), with a published framework. `layer`: of these cases, if
    it is known."""
    layer = layer or measure_layer(cases)
    is_alone, stage_layers = cases.pp == 1, _stage_layers(cases, first)
    count_kept = _count_kept_weights(cases, first)  # (ZeRO stage, weights) -> those on a rank
    dense, routed = shapes.stage_layer_kinds(cases, stage_layers, first)
    state_offloaded, all_offloaded = cases.offload > 0, cases.offload == offload.ALL
    # From ZeRO-2 on, two layers are gathered as they are kept, and the gradients of one wait for their reduction. In a
    # pipeline, torch's FSDP keeps the weights and the gradients of a whole stage gathered until the end of the step.
    unsharded = np.where((cases.is_sharded > 0) & (cases.zero >= 2), 1.0, 0.0)
    gathered_layers, reduced_layers = (np.where(is_alone, count, stage_layers) for count in (2.0, 1.0))
    weight_bytes = _weight_bytes(cases, layer.weights, count_kept)
    return MemoryParts(
        parameters=np.where(all_offloaded, 0.0, weight_bytes),
        gradients=np.where(all_offloaded, 0.0, _gradient_bytes(cases, layer.trained, count_kept)),
        optimizer=np.where(state_offloaded, 0.0, _state_bytes(cases, layer.trained, count_kept)),
        activations=_activations(cases, layer, (stage_layers, dense, routed), first),
        logits=np.zeros(1)
        if first and not is_alone.any()
        else np.where(is_alone | (not first), _logit_bytes(cases, layer.trained), 0.0),
        gathered=unsharded * (gathered_layers * layer.gathered + reduced_layers * layer.reduced)
        + np.where(all_offloaded, weight_bytes / stage_layers, 0.0)
        + cases.quantised * cases.width * cases.ffn / cases.tp * cases.width_bytes,  # one dequantised matrix
    )


def _gradient_bytes(cases: Cases, trained: Weights, count_kept: Callable[[int | None, Weights], Column]) -> Column:
    """Bytes of the gradients on a rank. Those that are reduced once per step are summed unsharded, in the format of the
    reduction. `count_kept`: (ZeRO stage, weights) -> those on a rank."""
    kept_bytes = _kept_gradients(cases, trained, count_kept) * cases.gradient_bytes
    are_summed = data_parallel.sums_unsharded(cases)
    if not are_summed.any():
        return kept_bytes
    return np.where(are_summed, count_kept(None, trained) * cases.reduce_bytes, kept_bytes)


def _kept_gradients(cases: Cases, trained: Weights, count_kept: Callable[[int | None, Weights], Column]) -> Column:
    """Gradients that a rank keeps: those of the `trained` weights, or if the backward pass updates these, of the
    largest unit that FSDP reduces at once: a layer, the embedding, or the head. `count_kept`: (ZeRO stage, weights) ->
    those on a rank."""
    kept = count_kept(2, trained)
    if not (cases.updates_in_backward > 0).any():
        return kept
    shard = np.where((cases.is_sharded > 0) & (cases.zero >= 2), cases.dp_shard * cases.cp, 1.0)
    owners = np.where((cases.is_sharded > 0) & (cases.zero >= 2), _expert_ranks(cases), 1.0)
    dense_layer = (trained.shared + trained.dense) / shard
    routed_layer = (trained.shared + trained.routed) / shard + trained.expert / owners
    dense_layers, routed_layers = shapes.layer_kinds(cases)
    largest_layer = np.maximum(
        np.where(dense_layers > 0, dense_layer, 0.0), np.where(routed_layers > 0, routed_layer, 0.0)
    )
    end = (trained.table + cases.lead_parameters + cases.tail_parameters) / shard
    largest = np.minimum(np.maximum(largest_layer, end), kept)
    return np.where(cases.updates_in_backward > 0, largest, kept)


def _state_bytes(cases: Cases, trained: Weights, count_kept: Callable[[int | None, Weights], Column]) -> Column:
    """Bytes of the optimizer's state on a rank. With Muon, data parallelism divides whole matrices: a rank has at least
    the largest one. `count_kept`: (ZeRO stage, weights) -> those on a rank."""
    even_bytes = count_kept(1, trained) * cases.state_bytes
    if not (cases.muon_iterations > 0).any():
        return even_bytes
    nothing = np.zeros(1)
    tables = Weights(shared=nothing, dense=nothing, routed=nothing, expert=nothing, table=trained.table)
    muon_bytes = even_bytes + count_kept(1, tables) * cases.extra_table_state_bytes
    largest_bytes = np.maximum(
        orthogonalization.largest_matrix(cases) * cases.state_bytes,
        trained.table * (cases.state_bytes + cases.extra_table_state_bytes),
    )
    return np.where(cases.muon_iterations > 0, np.maximum(muon_bytes, largest_bytes), even_bytes)


def _weight_bytes(cases: Cases, weights: Weights, count_kept: Callable[[int | None, Weights], Column]) -> Column:
    """Bytes of the weights that a rank keeps: `weights` with their adapters, of which matrices may be in NF4. Data
    parallelism shards the quantisation constants like the matrices."""
    if not shapes.have_adapters(cases):
        return count_kept(3, weights) * cases.weight_bytes
    quantised, is_quantised = count_kept(3, shapes.quantised_weights(cases)), cases.quantised > 0
    kept = count_kept(3, weights) + count_kept(3, shapes.adapter_weights(cases)) * (1 - shapes.all_trained(cases))
    return kept * cases.weight_bytes - np.where(is_quantised, quantised * (cases.weight_bytes - NF4_BYTES), 0.0)


def _stage_layers(cases: Cases, first: bool) -> Column:
    """Layers of the first or last rank of the pipeline, on all its stages; one if it has none."""
    return np.maximum(_rank_layers(cases, np.zeros(1) if first else cases.pp - 1), 1.0)


def _rank_layers(cases: Cases, rank: Column | float) -> Column:
    """Layers of a rank of the pipeline."""
    stages = cases.pp * cases.interleave
    return partition.divided(cases.layers, stages, cases.first_less, cases.last_less).on_rank(rank, cases.pp)


def _expert_ranks(cases: Cases) -> Column:
    """Ranks that have the same experts, over which data parallelism can shard them. Experts are divided over ep, or
    over tp without it."""
    spread = np.where(cases.ep > 1, cases.ep, cases.tp)
    return np.maximum(cases.dp_shard * cases.cp * cases.tp / spread, 1.0)


def _activations(cases: Cases, layer: LayerMemory, kinds: tuple[Column, Column, Column], first: bool) -> Column:
    """Bytes of activations of the first or last stage at its peak, with activation checkpointing: what its in-flight
    micro-batches keep, and one layer as a whole while it is recomputed. `kinds`: its layers, those without and those
    with experts."""
    recomputed = np.where(cases.activation_checkpoint > 0, layer.whole.of_layers(*kinds) / kinds[0], 0.0)
    kept = activation_offload.device_bytes(cases, layer.kept.of_layers(*kinds))
    return kept * in_flight(cases, first) + recomputed


def _logit_bytes(cases: Cases, trained: Weights) -> Column:
    """Bytes at the larger of two peaks: the logits with a float32 copy, or their gradient with that of the head, if it
    is trained, which is accumulated in float32. With a chunked loss, the logits of a chunk, which has as many values
    as its share of all tokens' activations (Hsu et al. 2024, arXiv:2410.10989, section 3.3), the gradients of these
    activations, and that of the head, to which each chunk adds."""
    rows, vocab = shapes.head_rows(cases), cases.vocab / cases.tp
    logit_count = rows * vocab
    loss_bytes = logit_count * (cases.width_bytes + FLOAT32)
    table_bytes = trained.table * (cases.width_bytes + FLOAT32)
    whole_bytes = np.maximum(loss_bytes, logit_count * cases.width_bytes + table_bytes)
    if not (cases.chunked_loss > 0).any():
        return whole_bytes
    chunk_bytes = rows * np.minimum(cases.width, vocab) * (cases.width_bytes + FLOAT32)
    chunked_bytes = chunk_bytes + rows * cases.width * cases.width_bytes + table_bytes
    return np.where(cases.chunked_loss > 0, np.minimum(chunked_bytes, whole_bytes), whole_bytes)
