"""Predicted collectives of data parallelism against those in the profile of a real step."""

import json
from collections import Counter
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.marks import nightly_except
from tests.ranks import on_ranks
from tests.train.language_model import small_job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.plan import Collective
from trainyard.predict.communication.data_parallel_collectives import fsdp_units, predict_collectives
from trainyard.workloads.ops.matrices import parameters

SIZES = {"layers": 3, "hidden_size": 30, "ffn_hidden_size": 66, "heads": 4, "kv_heads": 2, "head_dim": 8}
MODEL = Model(**SIZES)
GPT = {"norm": "layer", "mlp": "gelu", "position": "learned", "bias": "all", "tie_word_embeddings": True, "kv_heads": 4}
EXPERTS = {"experts": 4, "top_k": 2, "moe_ffn_hidden_size": 32, "shared_experts": 1, "dense_layers": 1}
LATENT = {"kv_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 12, "qk_rope_head_dim": 8, "v_head_dim": 6}
MODELS = {
    "llama": MODEL,
    "gpt": Model(**{**SIZES, **GPT}),
    "qwen": Model(**SIZES, bias="qkv", qk_norm=True),
    "experts": Model(**{**SIZES, **EXPERTS, "hidden_size": 32}),
    "latent": Model(**{**SIZES, **LATENT}),
    "wide": Model(**{**SIZES, "hidden_size": 512, "ffn_hidden_size": 1536}),
}
KINDS = {
    "c10d::_allgather_base_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::allreduce_": "all_reduce",
}
"""Operations in a profile on the CPU, which does not name the ranks of a collective."""
CASES = {
    "ddp": ("llama", {"dp_replicate": 2}, {}),
    "ddp, small buckets": ("wide", {"dp_replicate": 2, "bucket_cap_mb": 2}, {}),
    "fsdp": ("llama", {"dp_shard": 2}, {}),
    "fsdp, bfloat16": ("qwen", {"dp_shard": 2}, {"dtype": "bfloat16"}),
    "fsdp, one micro-batch": ("latent", {"dp_shard": 2}, {"micro_batch_size": 8}),
    "fsdp, recomputed": ("llama", {"dp_shard": 2}, {"activation_checkpoint": "full"}),
    "zero 2": ("llama", {"dp_shard": 2, "zero": 2}, {}),
    "never": ("llama", {"dp_shard": 2, "reshard_after_forward": "never"}, {}),
    "experts": ("experts", {"dp_shard": 2, "dp_replicate": 2}, {}),
    "always": ("llama", {"dp_shard": 2, "reshard_after_forward": "always"}, {}),
    "prefetch": ("llama", {"dp_shard": 2, "forward_prefetch": 2, "backward_prefetch": 2}, {}),
    "padded": ("llama", {"dp_shard": 4}, {}),
    "tied": ("gpt", {"dp_shard": 2}, {}),
    "hsdp": ("llama", {"dp_shard": 2, "dp_replicate": 2}, {}),
}


def a_job(case):
    model, layout, recipe = CASES[case]
    return small_job(MODELS[model], spread=Layout(**layout), **{"seq_len": 32, "tokens_per_step": 512, **recipe})


def _count_step(ranks, job, path):
    """(kind, bytes of the largest tensor) of each collective in the profile of the second step of one rank."""
    from torch.profiler import ProfilerActivity, profile

    from trainyard import plugins

    training = plugins.load("workloads", job.workload).build(job, "cpu")
    training(0)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        training(1)
    path = f"{path}/{ranks.rank}.json"
    profiler.export_chrome_trace(path)
    events = json.loads(Path(path).read_text())["traceEvents"]
    return [
        (KINDS[event["name"]], _size(event["args"]["Input type"], event["args"]["Input Dims"]))
        for event in events
        if event["name"] in KINDS
    ]


def _size(types, dims):
    """Bytes of the largest tensor, or list of tensors, among the arguments of an operation."""
    if types[0] == "TensorList":  # of float32, or two dimensions of int64: tokens per expert and layer
        return (8 if len(dims[0][0]) == 2 else 4) * sum(prod(shape) for shape in dims[0])
    return max(prod(shape) * (2 if "BFloat16" in kind else 4) for kind, shape in zip(types, dims) if shape)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "case", nightly_except(CASES, ["ddp", "ddp, small buckets", "fsdp", "zero 2", "experts", "tied"])
)
def test_predicted_collectives_are_those_of_a_real_step(case, tmp_path):
    pytest.importorskip("torch")
    job = a_job(case)
    predicted = _totals(
        (each.kind, each.bytes / each.calls) for each in predict_collectives(job) for _ in range(each.calls)
    )
    for counted in on_ranks(job.layout.ranks, _count_step, job, str(tmp_path)):
        assert _totals(counted) == predicted


def _totals(calls):
    """Kind -> (calls, bytes)."""
    counts, sizes = Counter(), Counter()
    for kind, size in calls:
        counts[kind] += 1
        sizes[kind] += size
    return {kind: (count, pytest.approx(sizes[kind])) for kind, count in counts.items()}


@given(st.sampled_from(list(MODELS)), st.sampled_from([1, 2, 4]))
def test_units_have_all_parameters(name, shards):
    model = MODELS[name]
    layout = Layout(dp_shard=shards)
    shapes = [shape for unit in fsdp_units(model, layout, 32) for shape in unit.shapes]
    assert sum(prod(shape) for shape in shapes) == parameters(model, 32)


def test_layouts_without_a_prediction_have_no_collectives():
    for layout in ({}, {"tp": 2}, {"pp": 2}, {"dp_shard": 2, "ep": 2}, {"dp_shard": 2, "zero": 1}):
        assert predict_collectives(small_job(MODELS["experts"], spread=Layout(**layout))) == ()


def test_bytes_are_those_of_all_units():
    job = a_job("fsdp")
    values = parameters(MODEL, 32)  # even sizes: nothing is padded
    gathered, scattered, *_ = predict_collectives(job)
    last = 256 * 30 + 30  # the head and the last norm are gathered once
    assert gathered == Collective(kind="all_gather", axis="dp_shard", calls=4 * 9, bytes=4 * 4 * (2 * values - last))
    assert scattered == Collective(kind="reduce_scatter", axis="dp_shard", calls=4 * 5, bytes=4 * 4 * values)
