"""Weights, KV cache and decode steps of known models."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from msgspec.structs import replace

from trainyard import machine as machines
from trainyard.api.plan_request import read_request
from trainyard.model import Model
from trainyard.predict.post_training import decode_cost
from trainyard.predict.post_training.decode_cost import CACHE_BANDWIDTH, WEIGHT_BANDWIDTH

BATCHES = np.array([1.0, 8.0, 64.0, 256.0])


def model_of(name: str) -> Model:
    model = read_request(name, None, None, None).model
    assert isinstance(model, Model)
    return model


@pytest.mark.parametrize(
    ("name", "parameters", "cache_bytes"),
    [
        ("llama3-8b", 8.03e9, 32 * 2 * 8 * 128 * 2),
        ("qwen3-30b-a3b", 30.5e9, 48 * 2 * 4 * 128 * 2),
        ("deepseek-v3", 671e9, 61 * (512 + 64) * 2),  # the latent cache, on every rank
    ],
)
def test_weights_and_cache_are_those_published(name: str, parameters: float, cache_bytes: int) -> None:
    model = model_of(name)
    assert decode_cost.count_weights(model, 1) == pytest.approx(parameters, rel=0.003)
    assert decode_cost.cache_bytes_per_token(model, 1) == cache_bytes


def test_tensor_parallelism_divides_heads_of_the_cache_until_each_rank_has_one() -> None:
    llama = model_of("llama3-8b")
    sizes = [decode_cost.cache_bytes_per_token(llama, tp) for tp in (1, 2, 8, 16)]
    assert sizes[0] == 2 * sizes[1] == 8 * sizes[2]
    assert sizes[3] == sizes[2]
    latent = model_of("deepseek-v3")
    assert decode_cost.cache_bytes_per_token(latent, 32) == decode_cost.cache_bytes_per_token(latent, 1)


@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(4, 1, 2), (4, 2, 2), (5, 2, 3)])
def test_touched_experts_are_the_mean_over_all_choices(experts: int, top_k: int, tokens: int) -> None:
    model = model_of("tiny-moe")
    model = replace(model, experts=experts, top_k=top_k, n_group=1, topk_group=1)
    choices = [set(choice) for choice in combinations(range(experts), top_k)]
    unions: list[set[int]] = [set()]
    for _ in range(tokens):
        unions = [union | choice for union in unions for choice in choices]
    expected = np.mean([len(union) for union in unions])
    assert decode_cost.touched_experts(model, np.array([float(tokens)])) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("tp", [1, 4])
def test_decode_step_takes_at_least_the_reading_of_its_weights(name: str, tp: int) -> None:
    model, machine = model_of(name), machines.load("h100")
    seconds = decode_cost.decode_seconds(model, decode_cost.generation_model(machine, "megatron"), tp, BATCHES)
    assert (np.diff(seconds) > 0).all()
    embedding = model.vocab * model.hidden_size / tp
    weights = decode_cost.count_weights(model, tp) - embedding
    if model.experts:
        expert_weights = 3 * model.moe_ffn_hidden_size * model.hidden_size * model.layers / tp
        weights = weights - expert_weights * (model.experts - decode_cost.touched_experts(model, BATCHES))
    read_s = 2 * weights / (machine.device.bandwidth.value * WEIGHT_BANDWIDTH.value)
    assert (seconds > read_s).all()


@pytest.mark.parametrize("device", ["a100", "h200", "b200"])
def test_products_of_few_rows_read_weights_at_the_measured_bandwidth(device: str) -> None:
    """The step of 32 requests takes longer than that of 1 only by the activations and logits that it moves."""
    model, machine = model_of("llama2-7b"), machines.load(device)
    built = decode_cost.generation_model(machine, "megatron")
    seconds = decode_cost.decode_seconds(model, built, 1, np.array([1.0, 32.0]))
    weights = decode_cost.count_weights(model, 1) - model.vocab * model.hidden_size
    read_s = 2 * weights / (machine.device.bandwidth.value * WEIGHT_BANDWIDTH.value)
    small_kernels_s = model.layers * 10 * built.values.kernel_s + 2 * built.values.microbatch_s
    assert read_s < seconds[0] < read_s + small_kernels_s
    assert seconds[1] < 1.05 * seconds[0]


def test_reading_the_cache_takes_its_bytes_over_the_bandwidth() -> None:
    model, machine = model_of("llama3-8b"), machines.load("h100")
    seconds = decode_cost.cached_token_seconds(model, decode_cost.generation_model(machine, "megatron"), 1)
    assert seconds == pytest.approx(131072 / (machine.device.bandwidth.value * CACHE_BANDWIDTH.value))


def test_latent_attention_of_all_heads_on_a_rank_is_bound_by_arithmetic() -> None:
    model, machine = model_of("deepseek-v3"), machines.load("h100")
    built = decode_cost.generation_model(machine, "megatron")
    read_s = 61 * 576 * 2 / (machine.device.bandwidth.value * CACHE_BANDWIDTH.value)
    assert decode_cost.cached_token_seconds(model, built, 1) > read_s
    assert decode_cost.cached_token_seconds(model, built, 32) == pytest.approx(read_s)
