"""Cost of generation on one replica: decode steps, prefill, and the memory of weights and KV cache.

The products and elementwise operations of a decode step are those of a forward pass over one token of each running
request (`time/layer.py`); they read all weights, of which experts only those that some token uses. Attention reads the
KV cache. CUDA graphs are assumed, so that the host's time per layer does not matter. tp divides weights and heads;
pipeline and expert parallelism are not supported.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainyard.layout import Layout
from trainyard.machine import Claim, Machine
from trainyard.model import Model
from trainyard.predict.economics.model_size import count_parameters
from trainyard.predict.inputs import cases, machine_model
from trainyard.predict.inputs.cases import Cases, Column, column
from trainyard.predict.inputs.machine_model import MachineModel
from trainyard.predict.post_training.continuous_batching import ReplicaCost
from trainyard.predict.time import collective_time, layer, shapes
from trainyard.recipe import Recipe

VALUE_BYTES = 2
"""Bytes of a weight and of a value in the KV cache: generation is in 16 bits."""
WEIGHT_BANDWIDTH = Claim(
    value=0.78,
    unit="weight_bandwidth of the memory bandwidth",
    source="mikamirai.com/blog/gpu-memory-bandwidth: MLP weight load of a 70B model in bfloat16 with tp 8 on H100, by "
    "Nsight Compute",
    date="2026-03-28",
    measured=True,
)
"""Attained share of the memory bandwidth when a decode step reads weights, assumed for all devices."""
CACHE_BANDWIDTH = Claim(
    value=0.9,
    unit="cache_bandwidth of the memory bandwidth",
    source="deepseek-ai/FlashMLA@066b5ba README.md: dense decoding, up to 3,000 of the 3,350 GB/s of H800 SXM5",
    date="2025-09-29",
    measured=True,
)
"""Attained share when attention reads the KV cache, assumed for all devices and kernels."""
_PREFILL_TOKENS = 8192
"""Tokens of a prefill batch; vLLM's chunks have 2,048 to 16,384."""


def generation_model(machine: Machine, software: str, training_dtype: str = "bfloat16") -> MachineModel:
    """The performance model of generation, with the constants of the training's software. It computes in float16 if the
    training does, else in bfloat16. Raises `UnknownName` for a device without that format."""
    return machine_model.build(machine, software, "float16" if training_dtype == "float16" else "bfloat16")


def count_weights(model: Model, tp: int) -> float:
    """Weights on a rank."""
    case = _cases(model, tp, 1, 1)
    return count_parameters(case, shapes.weights(case))


def cache_bytes_per_token(model: Model, tp: int) -> float:
    """Bytes of the KV cache on a rank for each token. Latent attention caches its compressed keys and values, on every
    rank; heads of keys and values are copied if tp exceeds their number."""
    return float(VALUE_BYTES * model.layers * _cached_channels(model, tp))


def capacity_tokens(model: Model, machine: Machine, tp: int, memory_share: float, resident_bytes: float) -> int:
    """Tokens that the KV cache of a replica holds; negative if its weights do not fit. `resident_bytes`: of other
    tensors on a rank, which stay there."""
    free = machine.rank_memory * memory_share - count_weights(model, tp) * VALUE_BYTES - resident_bytes
    return int(np.floor(free / cache_bytes_per_token(model, tp)))


def replica_cost(
    model: Model, machine: MachineModel, tp: int, *, most_running: int, prompt_tokens: int, shared_by: int,
    capacity: int,
) -> ReplicaCost:  # fmt: skip
    """The cost of one replica of `tp` ranks. `shared_by`: samples of a prompt, which is computed once for all of them
    (prefix caching)."""
    prompt_s = prompt_tokens * _prompt_token_s(model, machine, tp, prompt_tokens)
    return ReplicaCost(
        batch_s=np.concatenate([np.zeros(1), decode_seconds(model, machine, tp, np.arange(1.0, most_running + 1))]),
        cached_token_s=cached_token_seconds(model, machine, tp),
        prefill_s=prompt_s / shared_by,
        capacity=capacity,
    )


def decode_seconds(model: Model, machine: MachineModel, tp: int, batch: Column) -> Column:
    """Seconds of a decode step by the number of running requests, of shape [batches], without the reading of the KV
    cache. The host's part, once per step, is that of a micro-batch of training."""
    running = column(batch)
    # Products of few rows are bound by reading weights: how their rate falls with rows, and the share of grouped
    # products, are fitted to the many rows of training, if the machine's own products were not probed.
    hardware, tuned = (
        machine.hardware,
        machine.values._replace(bandwidth=WEIGHT_BANDWIDTH.value, grouped=1.0, low_grouped=1.0),
    )
    tuned = tuned if hardware.has_probed_products else tuned._replace(rows=0.0)
    step = _cases(model, tp, running, 1)
    if model.experts:
        step = replace(step, experts=touched_experts(model, running))
    forward, _ = layer.layer(step, hardware, tuned)
    # The measured bandwidth is that of whole kernels.
    products, _ = layer.layer(step, hardware, tuned._replace(kernel_s=0.0))
    size_bytes = running * model.hidden_size * VALUE_BYTES
    reduce_s = shapes.sublayer_count(step) * _small_all_reduce_seconds(machine, step, size_bytes)
    compute_s = products.matmul + forward.elementwise + forward.route + tuned.kernel_s  # and attention's kernel
    head_s, _, _ = layer.head(step, hardware, tuned)
    return model.layers * (compute_s + reduce_s) + head_s + tuned.microbatch_s


def touched_experts(model: Model, batch: Column) -> Column:
    """Experts of a layer that `batch` tokens use, if each uses `top_k` of them at random."""
    return model.experts * (1 - (1 - model.top_k / model.experts) ** batch)


def cached_token_seconds(model: Model, machine: MachineModel, tp: int) -> float:
    """Seconds of attention in a decode step for each token in the KV cache: the longer of reading and arithmetic."""
    hardware, tuned = machine.hardware, machine.values
    read_s = cache_bytes_per_token(model, tp) / (float(hardware.bandwidth[0]) * CACHE_BANDWIDTH.value)
    if model.kv_lora_rank:  # absorbed: scores and sums in the compressed channels (DeepSeek-V2, arXiv:2405.04434)
        channels = 2 * model.kv_lora_rank + model.qk_rope_head_dim
    else:
        channels = 2 * model.head_dim
    flops = 2 * model.layers * model.heads / tp * channels
    return max(read_s, flops / (float(hardware.peak[0]) * tuned.attention))


def _prompt_token_s(model: Model, machine: MachineModel, tp: int, prompt_tokens: int) -> float:
    """Seconds of prefill per token of a prompt."""
    batch = max(1, _PREFILL_TOKENS // prompt_tokens)
    prompt = _cases(model, tp, batch, prompt_tokens)
    forward, _ = layer.layer(prompt, machine.hardware, machine.values)
    return float((model.layers * forward.device / prompt.tokens)[0])


def _small_all_reduce_seconds(machine: MachineModel, step: Cases, size_bytes: Column) -> Column:
    """Seconds of an all-reduce over tp in two exchanges between all ranks, each with the latency of one message: the
    all-reduce of inference engines for small tensors."""
    members = collective_time.tensor(step, machine.hardware)
    return 2 * collective_time.exchange(machine.hardware, machine.values, members, size_bytes)


def _cached_channels(model: Model, tp: int) -> float:
    """Channels that a layer caches for a token on a rank."""
    if model.kv_lora_rank:
        return model.kv_lora_rank + model.qk_rope_head_dim
    return 2 * max(model.kv_heads / tp, 1) * model.head_dim


def _cases(model: Model, tp: int, sequences: Column | int, tokens: int) -> Cases:
    """Forward passes over `sequences` of `tokens` tokens each on a replica of `tp` ranks."""
    recipe = Recipe(tokens_per_step=tokens, seq_len=tokens, micro_batch_size=1)
    columns = cases.of_model(model) | cases.of_layout(Layout(tp=tp)) | cases.of_recipe(recipe)
    changed = {"micro_batch_size": sequences, "sequence_parallel": 0, "native": 0, "weight_bytes": VALUE_BYTES}
    return cases.build(**(columns | changed))
