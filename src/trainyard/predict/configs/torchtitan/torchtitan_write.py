"""Writes a job as torchtitan's TOML, with the keys of version 0.2.2."""

from __future__ import annotations

from typing import Any

from trainyard.formats import toml
from trainyard.job import Job
from trainyard.predict.configs.torchtitan import flavors, torchtitan_keys
from trainyard.recipe import Recipe


def write(job: Job) -> str:
    """The file for `torchtitan.train --job.config_file`. A flavor is a model of torchtitan with fixed sizes; a comment
    reports a model whose sizes no flavor has."""
    layout, recipe, model = job.layout, job.recipe, job.decoder
    flavor, float8, pipelined = flavors.find(model), recipe.dtype == "float8", layout.pp > 1
    sections: dict[str, dict[str, Any]] = {
        "model": ({"name": flavor.name, "flavor": flavor.flavor} if flavor else {})
        | (
            {"converters": [torchtitan_keys.FLOAT8[0], *torchtitan_keys.EXPERTS[: bool(model.experts)]]}
            if float8
            else {}
        ),
        "training": {
            "local_batch_size": recipe.micro_batch_size * (job.accumulate if pipelined else 1),
            "global_batch_size": job.batch,
            "seq_len": recipe.seq_len,
            "mixed_precision_param": "float32" if recipe.dtype == "float32" else "bfloat16",
        }
        | ({"enable_cpu_offload": True} if recipe.offload else {}),
        "parallelism": _parallelism(job),
        "activation_checkpoint": _checkpoint_keys(recipe),
    }
    if recipe.compile:
        sections["compile"] = {"enable": True}
    if float8:
        sections["quantize"] = {"linear": {"float8": {"filter_fqns": ["output", "router.gate"]}}}
        sections["quantize"] |= {"grouped_mm": {"float8": {"fqns": ["experts"]}}} if model.experts else {}
    comment = [
        f"torchtitan up to 0.2.2, on {layout.ranks} devices: torchrun ... -m torchtitan.train --job.config_file FILE.",
        "Later versions take each key on the command line: --section.key value.",
        "Data and tokenizer are torchtitan's defaults for tests: set [training] dataset, [model] hf_assets_path.",
        *missing_flavor(job),
    ]
    return toml.dumps(sections, "\n".join(comment))


def missing_flavor(job: Job) -> tuple[str, ...]:
    """A sentence on the model if no flavor has its sizes, so that the file cannot name it."""
    model = job.decoder
    if flavors.find(model):
        return ()
    return (f"Missing: [model] name and flavor. No flavor has the sizes of {model.name}.",)


def _parallelism(job: Job) -> dict[str, Any]:
    """Keys of the `[parallelism]` section; those of unused axes and defaults are left out."""
    layout, layers = job.layout, job.decoder.layers
    keys: dict[str, Any] = {
        "data_parallel_replicate_degree": layout.dp_replicate,
        "data_parallel_shard_degree": layout.dp_shard,
        "tensor_parallel_degree": layout.tp,
        "context_parallel_degree": layout.cp,
        "pipeline_parallel_degree": layout.pp,
        "expert_parallel_degree": layout.ep,
        "fsdp_reshard_after_forward": "always" if layout.zero == 3 else "never",
    }
    if layout.cp > 1:
        keys["context_parallel_rotate_method"] = "allgather" if layout.cp_method == "all_gather" else "alltoall"
    if layout.tp > 1 and not layout.loss_parallel:
        keys["disable_loss_parallel"] = True
    if layout.pp > 1:
        keys["pipeline_parallel_schedule"] = "1F1B" if layout.interleave == 1 else "Interleaved1F1B"
        keys["pipeline_parallel_microbatch_size"] = job.recipe.micro_batch_size
    if layout.interleave > 1:
        counted_layers = layers + sum(layout.end_less_layers or (1, 1))
        keys["pipeline_parallel_layers_per_stage"] = -(-counted_layers // (layout.pp * layout.interleave))
    if layout.end_less_layers is not None:
        for end, less in zip(("first", "last"), layout.end_less_layers, strict=True):
            keys[f"pipeline_parallel_{end}_stage_less_layers"] = less
    return keys


def layers_of_largest_stage(layers: int, stages: int) -> int:
    """Layers of the largest of `stages` stages, with the embedding and the head counted as one layer each."""
    return -(-(layers + 2) // stages)


def _checkpoint_keys(recipe: Recipe) -> dict[str, str]:
    """The keys of the section activation_checkpoint."""
    if recipe.activation_checkpoint == "selective":
        return {"mode": "selective", "selective_ac_option": "op"}
    if recipe.activation_checkpoint == "full" and recipe.activation_checkpoint_every > 1:
        return {"mode": "selective", "selective_ac_option": str(recipe.activation_checkpoint_every)}
    return {"mode": recipe.activation_checkpoint}
