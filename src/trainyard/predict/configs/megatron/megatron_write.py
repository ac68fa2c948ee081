"""Writes a job as arguments of Megatron Core's pretrain_gpt.py, one per line, for a run on mock data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.predict.configs.megatron import megatron_model, megatron_stages
from trainyard.predict.pipeline import partition
from trainyard.recipe import Recipe

_CONTEXT: Mapping[str, str] = {"all_gather": "all_gather", "ulysses": "a2a", "ring": "p2p"}
_PROGRAMS = ("pretrain_gpt.py", "pretrain_mamba.py")
"""Megatron's program for a plain decoder, and for a hybrid model."""


def write(job: Job) -> str:
    """Megatron-LM's program and arguments for the job, as text: comment lines, then one argument per line. Raises
    `BadJob` for a job that they cannot express."""
    recipe, layout = job.recipe, job.layout
    arguments = (
        megatron_model.write(job.decoder)
        | {
            "seq-length": recipe.seq_len,
            "max-position-embeddings": recipe.seq_len,
            "micro-batch-size": recipe.micro_batch_size,
            "global-batch-size": job.batch,
        }
        | _layout(job)
        | _recipe(recipe)
        | {
            "mock-data": None,
            "tokenizer-type": "NullTokenizer",
            "train-iters": 100,
            "eval-iters": 0,
            "lr": recipe.learning_rate,
            "min-lr": f"{recipe.learning_rate / 10:g}",
            "attention-dropout": 0,
            "hidden-dropout": 0,
        }
    )
    header = [
        f"# On {layout.ranks} devices: grep -v '^#' FILE | xargs torchrun ... {training_program(job)}",
        *(
            ["# CUDA_DEVICE_MAX_CONNECTIONS=1 in the environment, on Hopper and before."]
            if layout.tp * layout.cp > 1
            else []
        ),
        "# Runs 100 steps on mock data: set --data-path, --tokenizer-type and --train-iters for a real run.",
    ]
    return "\n".join([*header, *(_line(name, value) for name, value in arguments.items())]) + "\n"


def training_program(job: Job) -> str:
    """The file name of Megatron's program that trains the model of `job`."""
    return _PROGRAMS[bool(job.decoder.hybrid_pattern)]


def _line(name: str, value: object) -> str:
    """One argument: a flag if `value` is None, with several values if it is a tuple."""
    words = () if value is None else value if isinstance(value, tuple) else (value,)
    return " ".join([f"--{name}", *(shlex.quote(str(word)) for word in words)])


def _layout(job: Job) -> dict[str, object]:
    """Arguments of the layout: name without its dashes -> value (None for a flag)."""
    layout, model = job.layout, job.decoder
    arguments: dict[str, object] = {
        "tensor-model-parallel-size": layout.tp,
        "pipeline-model-parallel-size": layout.pp,
        "context-parallel-size": layout.cp,
    }
    if layout.sequence_parallel:
        arguments["sequence-parallel"] = None
    if layout.cp > 1:
        arguments["cp-comm-type"] = _CONTEXT[layout.cp_method]
    if model.experts:
        arguments["expert-model-parallel-size"] = layout.ep
        arguments |= {"expert-tensor-parallel-size": 1} if layout.ep > 1 else {}
        arguments |= {"moe-grouped-gemm": None} if job.recipe.dtype not in ("float16", "float32") else {}
    if layout.dp_shard * layout.cp > 1 or job.recipe.offload:
        arguments |= {"use-distributed-optimizer": None, "overlap-grad-reduce": None, "overlap-param-gather": None}
        arguments |= {"num-distributed-optimizer-instances": layout.dp_replicate} if layout.dp_replicate > 1 else {}
    return arguments | _stages(layout, model.layers)


def _stages(layout: Layout, layers: int) -> dict[str, object]:
    """Arguments for the layers per stage (name -> value, None for a flag): none if the stages divide the layers evenly,
    else flags that count the embedding and the head as a layer each if that divides evenly, else the layers of the
    first and the last rank if the others have as many each, else an explicit layout. `layout`: `pp` ranks of a pipeline
    with `interleave` stages each; `layers`: the model's layer count."""
    stages = layout.pp * layout.interleave
    if layout.end_less_layers is not None:
        counts = partition.layers_per_stage(layers, stages, *layout.end_less_layers)
        if counts != megatron_stages.default_stages(layers, stages):
            return _explicit_stages(counts, layout)
    interleaving: dict[str, object] = (
        {"num-virtual-stages-per-pipeline-rank": layout.interleave} if layout.interleave > 1 else {}
    )
    if layers % stages == 0:
        return interleaving
    if (layers + 2) % stages == 0:
        return interleaving | {f"account-for-{end}-in-pipeline-split": None for end in ("embedding", "loss")}
    return {"pipeline-model-parallel-layout": megatron_stages.write(megatron_stages.default_stages(layers, stages))}


def _explicit_stages(counts: Sequence[int], layout: Layout) -> dict[str, object]:
    """Arguments (name -> value) for the layers of each stage, `counts`."""
    first, *others, last = counts
    if layout.interleave == 1 and len(set(others)) == 1 and min(counts) > 0:
        return {"decoder-first-pipeline-num-layers": first, "decoder-last-pipeline-num-layers": last}
    return {"pipeline-model-parallel-layout": megatron_stages.write(counts)}


def _recipe(recipe: Recipe) -> dict[str, object]:
    """Arguments of the recipe: name without its dashes -> value (None for a flag)."""
    arguments: dict[str, object] = {}
    if recipe.offload:
        arguments |= {
            "optimizer-cpu-offload": None,
            "optimizer-offload-fraction": 1.0,
            "use-precision-aware-optimizer": None,
            "overlap-cpu-optimizer-d2h-h2d": None,
        }
    if recipe.activation_checkpoint == "full":
        arguments |= {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
    elif recipe.activation_checkpoint == "selective":
        arguments["recompute-granularity"] = "selective"
        arguments |= {"recompute-modules": recipe.recompute_modules} if recipe.recompute_modules else {}
    arguments |= {"overlap-moe-expert-parallel-comm": None} if recipe.overlap_dispatch else {}
    if recipe.dtype in ("float8", "float4"):
        arguments |= {"fp8-format": "hybrid"} if recipe.dtype == "float8" else {"fp4-format": "e2m1"}
    if recipe.dtype == "float16":
        return arguments | {"fp16": None, "accumulate-allreduce-grads-in-fp32": None}
    return arguments | ({} if recipe.dtype == "float32" else {"bf16": None})
