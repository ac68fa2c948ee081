"""Who is to run a plan: what each framework can lay out, how it keeps weights and state, and what it is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard import job as jobs
from trainyard.job import Job
from trainyard.predict.space import Keeps, Space, Wanted

Mask = npt.NDArray[np.bool_]


class Framework(NamedTuple):
    """`software`: whose constants it is predicted with. `keeps`: its weights and state. `allows`: which
    layouts it takes. `tells`: the file or arguments that launch a job."""

    means: str
    software: str
    suffix: str
    keeps: Keeps
    allows: Callable[[Wanted, Space], Mask]
    tells: Callable[[Job], str]


def _ours(wanted: Wanted, space: Space) -> Mask:
    """As `train/rules` refuses; the rest of what those say is asked of the fastest alone."""
    axes = space.columns
    others = axes["tp"] * axes["cp"] * axes["pp"] * axes["ep"]
    whole = (axes["zero"] != 1) | (others == 1) | (axes["dp_shard"] == 1)
    experts = (axes["dp_shard"] * axes["cp"]) % axes["ep"] == 0
    accumulate = wanted.samples // (axes["dp_replicate"] * axes["dp_shard"] * axes["microbatch"])
    stages = (accumulate >= axes["pp"]) & (wanted.model.layers >= axes["pp"] * axes["interleave"])
    tensor = (axes["tp"] == 1) if wanted.model.experts or wanted.model.kv_rank else True
    tied = (axes["pp"] == 1) if wanted.model.tied else True
    return whole & experts & stages & tensor & tied


def _megatron(wanted: Wanted, space: Space) -> Mask:
    return (space.columns["zero"] == 1) | (space.columns["dp_shard"] * space.columns["cp"] == 1)


def _torchtitan(wanted: Wanted, space: Space) -> Mask:
    return (space.columns["zero"] >= 2) | (space.columns["dp_shard"] == 1)


def _deepspeed(wanted: Wanted, space: Space) -> Mask:
    axes = space.columns
    return (axes["cp"] == 1) & (axes["ep"] == 1) & ((axes["pp"] == 1) | (axes["zero"] == 1)) & (axes["interleave"] == 1)


def megatron_arguments(job: Job) -> str:
    """For Megatron Core's pretrain_gpt.py, one a line."""
    model, layout, recipe = job.decoder, job.layout, job.recipe
    said: dict[str, object] = {
        "num-layers": model.layers, "hidden-size": model.width, "ffn-hidden-size": model.ffn,
        "num-attention-heads": model.heads, "kv-channels": model.head_dim, "vocab-size": model.vocab,
        "normalization": "RMSNorm" if model.norm == "rms" else "LayerNorm",
        "position-embedding-type": "rope" if model.position == "rope" else "learned_absolute",
        "seq-length": recipe.seq_len, "max-position-embeddings": recipe.seq_len,
        "tensor-model-parallel-size": layout.tp, "pipeline-model-parallel-size": layout.pp,
        "context-parallel-size": layout.cp, "micro-batch-size": recipe.microbatch, "global-batch-size": job.batch,
    }  # fmt: skip
    if model.kv_heads != model.heads and not model.kv_rank:
        said |= {"group-query-attention": None, "num-query-groups": model.kv_heads}
    if not model.tied:
        said["untie-embeddings-and-output-weights"] = None
    if model.kv_rank:
        said |= {"multi-latent-attention": None, "kv-lora-rank": model.kv_rank, "qk-head-dim": model.head_dim,
                 "qk-pos-emb-head-dim": model.rope_dim, "v-head-dim": model.value_dim}  # fmt: skip
        said |= {"q-lora-rank": model.q_rank} if model.q_rank else {}
    if model.shared_experts:
        said["moe-shared-expert-intermediate-size"] = model.shared_experts * model.expert_ffn
    if model.experts:
        said |= {"num-experts": model.experts, "moe-router-topk": model.active, "moe-ffn-hidden-size": model.expert_ffn,
                 "expert-model-parallel-size": layout.ep}  # fmt: skip
    if layout.interleave > 1:
        said["num-layers-per-virtual-pipeline-stage"] = model.layers // (layout.pp * layout.interleave)
    if layout.dp_shard > 1:
        said["use-distributed-optimizer"] = None
    if layout.sequence_parallel:
        said["sequence-parallel"] = None
    if model.mlp == "swiglu":
        said["swiglu"] = None
    if recipe.remat == "full":
        said |= {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
    elif recipe.remat == "op":
        said["recompute-granularity"] = "selective"
    said |= {"fp8-format": "hybrid"} if recipe.dtype == "float8" else {}
    said |= {"fp16": None} if recipe.dtype == "float16" else {"bf16": None}
    return "\n".join(f"--{name}" + (f" {value}" if value is not None else "") for name, value in said.items()) + "\n"


def torchtitan_toml(job: Job) -> str:
    """The sections of a torchtitan configuration that a layout decides."""
    layout, recipe = job.layout, job.recipe
    remat = {"none": "none", "full": "full", "op": "selective"}[recipe.remat]
    schedule = "Interleaved1F1B" if layout.interleave > 1 else "1F1B"
    sections = {
        "training": {"local_batch_size": recipe.microbatch * (job.accumulate if layout.pp > 1 else 1),
                     "global_batch_size": job.batch, "seq_len": recipe.seq_len},
        "parallelism": {"data_parallel_replicate_degree": layout.dp_replicate,
                        "data_parallel_shard_degree": layout.dp_shard, "tensor_parallel_degree": layout.tp,
                        "context_parallel_degree": layout.cp, "pipeline_parallel_degree": layout.pp,
                        "expert_parallel_degree": layout.ep,
                        "fsdp_reshard_after_forward": "always" if layout.zero == 3 else "never"}
        | ({"pipeline_parallel_schedule": schedule, "pipeline_parallel_microbatch_size": recipe.microbatch}
           if layout.pp > 1 else {}),
        "activation_checkpoint": {"mode": remat},
    }  # fmt: skip
    lines = [[f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items()), ""]
             for name, keys in sections.items()]  # fmt: skip
    return "\n".join(line for section in lines for line in section)


def deepspeed_json(job: Job) -> str:
    """DeepSpeed's configuration; tensor and pipeline parallelism stand in what calls it."""
    layout, recipe = job.layout, job.recipe
    stage = layout.zero if layout.dp_shard > 1 else 0
    said = {
        "train_batch_size": job.batch, "train_micro_batch_size_per_gpu": recipe.microbatch,
        "gradient_accumulation_steps": job.accumulate, "zero_optimization": {"stage": stage, "overlap_comm": True},
        "bf16": {"enabled": recipe.dtype != "float16"}, "fp16": {"enabled": recipe.dtype == "float16"},
        "tensor_parallel": {"autotp_size": layout.tp}, "pipeline": {"stages": layout.pp},
    }  # fmt: skip
    return json.dumps(said, indent=2) + "\n"


FRAMEWORKS: Mapping[str, Framework] = {
    "trainyard": Framework(
        "our own runner: trainyard run", "fsdp", ".toml", Keeps(4, 4, 8, own=True), _ours, jobs.write
    ),
    "megatron": Framework("Megatron Core", "megatron", ".args", Keeps(2, 4, 12), _megatron, megatron_arguments),
    "torchtitan": Framework("torchtitan", "fsdp", ".toml", Keeps(4, 4, 8), _torchtitan, torchtitan_toml),
    "deepspeed": Framework("DeepSpeed", "fsdp", ".json", Keeps(2, 2, 12), _deepspeed, deepspeed_json),
}
