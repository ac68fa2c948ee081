"""A job as arguments of Megatron Core's pretrain_gpt.py, one a line, for a run on data made up."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from trainyard.job import Job, Layout, Recipe
from trainyard.predict.configs.megatron import megatron_model, megatron_stages

_CONTEXT: Mapping[str, str] = {"all_gather": "all_gather", "ulysses": "a2a", "ring": "p2p"}
_PROGRAMS = ("pretrain_gpt.py", "pretrain_mamba.py")


def write(job: Job) -> str:
    recipe, layout = job.recipe, job.layout
    said = (
        megatron_model.write(job.decoder)
        | {
            "seq-length": recipe.seq_len,
            "max-position-embeddings": recipe.seq_len,
            "micro-batch-size": recipe.microbatch,
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
    heading = [
        f"# On {layout.ranks} devices: grep -v '^#' FILE | xargs torchrun ... {_PROGRAMS[bool(job.decoder.pattern)]}",
        *(
            ["# CUDA_DEVICE_MAX_CONNECTIONS=1 in the environment, on Hopper and before."]
            if layout.tp * layout.cp > 1
            else []
        ),
        "# Data is made up and 100 steps are taken: --data-path, --tokenizer-type and --train-iters are yours.",
    ]
    return "\n".join([*heading, *(_line(name, value) for name, value in said.items())]) + "\n"


def _line(name: str, value: object) -> str:
    """Without a value where that is None; with several where it is a tuple."""
    words = () if value is None else value if isinstance(value, tuple) else (value,)
    return " ".join([f"--{name}", *(shlex.quote(str(word)) for word in words)])


def _layout(job: Job) -> dict[str, object]:
    layout, model = job.layout, job.decoder
    said: dict[str, object] = {
        "tensor-model-parallel-size": layout.tp,
        "pipeline-model-parallel-size": layout.pp,
        "context-parallel-size": layout.cp,
    }
    if layout.sequence_parallel:
        said["sequence-parallel"] = None
    if layout.cp > 1:
        said["cp-comm-type"] = _CONTEXT[layout.cp_method]
    if model.experts:
        said["expert-model-parallel-size"] = layout.ep
        said |= {"expert-tensor-parallel-size": 1} if layout.ep > 1 else {}
        said |= {"moe-grouped-gemm": None} if job.recipe.dtype not in ("float16", "float32") else {}
    if layout.dp_shard * layout.cp > 1 or job.recipe.offload:
        said |= {"use-distributed-optimizer": None, "overlap-grad-reduce": None, "overlap-param-gather": None}
        said |= {"num-distributed-optimizer-instances": layout.dp_replicate} if layout.dp_replicate > 1 else {}
    return said | _stages(layout, model.layers)


def _stages(layout: Layout, layers: int) -> dict[str, object]:
    """As many layers each; or with the embedding and the head counted as one each; or said one by one."""
    many = layout.pp * layout.interleave
    rounds: dict[str, object] = (
        {"num-virtual-stages-per-pipeline-rank": layout.interleave} if layout.interleave > 1 else {}
    )
    if layers % many == 0:
        return rounds
    if (layers + 2) % many == 0:
        return rounds | {f"account-for-{end}-in-pipeline-split": None for end in ("embedding", "loss")}
    return {"pipeline-model-parallel-layout": megatron_stages.write(megatron_stages.usual(layers, many))}


def _recipe(recipe: Recipe) -> dict[str, object]:
    said: dict[str, object] = {}
    if recipe.offload:
        said |= {
            "optimizer-cpu-offload": None,
            "optimizer-offload-fraction": 1.0,
            "use-precision-aware-optimizer": None,
            "overlap-cpu-optimizer-d2h-h2d": None,
        }
    if recipe.remat == "full":
        said |= {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
    elif recipe.remat == "op":
        said["recompute-granularity"] = "selective"
    if recipe.dtype in ("float8", "float4"):
        said |= {"fp8-format": "hybrid"} if recipe.dtype == "float8" else {"fp4-format": "e2m1"}
    if recipe.dtype == "float16":
        return said | {"fp16": None, "accumulate-allreduce-grads-in-fp32": None}
    return said | ({} if recipe.dtype == "float32" else {"bf16": None})
