"""Earlier names of torchtitan's keys, and rules for the keys that the reader does not request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from trainyard.errors import BadFile
from trainyard.lazy_pattern import lazy_compile
from trainyard.predict.configs.config_keys import KeyRules

SCHEDULES: Mapping[str, Literal["1f1b", "interleaved"]] = {"1f1b": "1f1b", "interleaved1f1b": "interleaved"}
UNPLANNED = ("gpipe", "loopedbfs", "interleavedzerobubble", "zbvzerobubble", "dualpipev")
"""Names of torch's pipeline schedules in lower case: predicted ones, and those that are not."""
MICROBATCHES = "experimental.pipeline_parallel_microbatches"
FLOAT8 = ("quantize.linear.float8", "quantize.linear.mx", "quantize.dense.float8", "quantize.dense.mx", "float8", "mx")
EXPERTS = ("quantize.grouped_mm.float8", "quantize.grouped_mm.mx", "quantize.moe.float8", "quantize.moe.mx")
"""`model.converters` that compute in float8: the linear layers; the experts' grouped products. Current names first."""
_EARLIER = {
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    **{
        f"training.{key}": f"parallelism.{key}"
        for key in ("data_parallel_replicate_degree", "data_parallel_shard_degree", "tensor_parallel_degree")
    },
    **{
        f"experimental.{key}": f"parallelism.{key}"
        for key in (
            "context_parallel_degree",
            "context_parallel_rotate_method",
            "enable_async_tensor_parallel",
            "pipeline_parallel_degree",
            "pipeline_parallel_schedule",
            "pipeline_parallel_schedule_csv",
            "pipeline_parallel_layers_per_stage",
            "pipeline_parallel_split_points",
        )
    },
}
RULES = KeyRules(
    lazy_compile(
        r"(job|profiling|metrics|checkpoint|comm|lr_scheduler|validation|memory_estimation|debug)\..*"
        r"|optimizer\.(lr|beta1|beta2|eps|weight_decay|implementation)|model\.(.*_path|print_after_conversion)"
        r"|training\.(dataset.*|steps|max_norm|gc_.*|seed|dataloader\..*|warmup_steps|mixed_precision_reduce)"
        r"|parallelism\.(context_parallel_load_balancer|full_dtensor|expert_parallel_comm_backend|pipeline_parallel_.*overlap)"
        r"|parallelism\.pipeline_parallel_microbatch_size|fault_tolerance\..*|experimental\.pipeline_parallel_microbatches"
        r"|activation_checkpoint\.(per_op_.*|early_stop|.*memory_budget.*|preserve_rng_state|determinism_check|debug)"
        r"|compile\.(components|backend)|(float8|mx|quantize)\..*"
    ),
    {
        r"parallelism\.enable_async_tensor_parallel": "predicted without overlap of tensor-parallel communication",
        r"compile\.enable|.*enable_compiled_autograd": "predicted without torch.compile",
        r"parallelism\.expert_parallel_comm_backend=deepep": "predicted as torch's own all-to-all",
        r"optimizer\.implementation=for.*": "predicted as the fused update",
        r"parallelism\.enable_fsdp_symm_mem": "predicted as NCCL's usual collectives",
        r"(training|debug)\.deterministic": "predicted with the usual kernels, which are faster",
    },
    {
        r"parallelism\.pipeline_parallel_schedule_csv": "a schedule defined in another file",
        r"fault_tolerance\.enable": "a varying number of replicas",
    },
)


def rename_old_keys(values: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, str]]:
    """(values by current key name, current name -> old name of each renamed key). `values`: as in the file, by dotted
    key; `where`: the name of the file in messages. Raises `BadFile` if an old and a current name have different
    values."""
    renamed, spelling = dict(values), {}
    for old, current in _EARLIER.items():
        if old in renamed:
            value = renamed.pop(old)
            if renamed.setdefault(current, value) != value:
                raise BadFile(f"{where}: {old} = {value!r:.60}, but {current} = {renamed[current]!r:.60}.")
            spelling[current] = old
    return renamed, spelling
