"""Rules for the DeepSpeed keys that the reader does not request, and the meaning of "auto"."""

from __future__ import annotations

from trainyard.lazy_pattern import lazy_compile
from trainyard.predict.configs.config_keys import KeyRules

BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
FILL_IN = {
    "train_batch_size": "the sequences of a step, over all devices",
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size of the TrainingArguments",
    "gradient_accumulation_steps": "that of the TrainingArguments",
    "bf16.enabled": "true or false, as bf16 of the TrainingArguments",
    "fp16.enabled": "true or false, as fp16 of the TrainingArguments",
    "zero_optimization.stage": "0, 1, 2 or 3",
    "pipeline.stages": "the number of stages",
}
"""The value that "auto" stands for, which the launcher fills in."""
RULES = KeyRules(
    lazy_compile(
        r"optimizer\..*|scheduler\..*|gradient_clipping|steps_per_print|prescale_gradients|gradient_predivide_factor"
        r"|gradient_allreduce_op|sparse_gradients|disable_allgather|dump_state|wall_clock_breakdown|memory_breakdown"
        r"|(checkpoint|flops_profiler|tensorboard|wandb|comet|csv_monitor|comms_logger|monitor_config|aio|nebula"
        r"|datastates_ckpt|timers)(\..*)?|zero_allow_untested_optimizer|zero_force_ds_cpu_optimizer|dataloader_.*"
        r"|managed_gradient_accumulation|log_level|vocabulary_size|seq_parallel_communication_data_type"
        r"|(bf16|bfloat16|fp16|amp|torch_autocast|progressive_layer_drop|curriculum_learning|data_efficiency|elasticity"
        r"|hybrid_engine|autotuning|compression_training|eigenvalue)\..*"
        r"|zero_optimization\.(offload_(param|optimizer)\..*|.*_bucket_size|contiguous_gradients|load_from_fp32_weights"
        r"|allgather_partitions|sub_group_size|stage3_.*|round_robin_gradients|ignore_unused_parameters|elastic_.*"
        r"|use_multi_rank_bucket_allreduce|memory_efficient_linear|override_module_apply|log_trace_cache_warnings"
        r"|enable_sanity_checks|compute_grad_norm|legacy_stage1|cpu_offload_use_pin_memory|leaf_module.*)"
        r"|activation_checkpointing\..*|pipeline\..*|tensor_parallel\..*|expert_parallel\..*"
    ),
    {
        r"communication_data_type": "predicted in the type of the gradients",
        r"compile\.deepcompile": "predicted without DeepCompile",
        r"graph_harvesting": "predicted without CUDA graphs",
        r"disable_python_gc": "predicted with Python's garbage collection",
        r"bf16\.immediate_grad_update": "predicted with gradients copied at the end of the backward pass",
        r"tensor_parallel\.tp_overlap_comm": "predicted without overlap of tensor-parallel communication",
        r"zero_optimization\.parameter_alignment": "predicted without padding",
        r"expert_parallel\.comm_backend=deepep": "predicted as torch's own all-to-all",
    },
    {
        r"zero_optimization\.(offload_param\.device|cpu_offload_param)": "the time of offloading "
        "parameters is not predicted",
        r"zero_optimization\.zero_quantized_.*": "communication is quantised",
        r"zero_optimization\.zenflow.*": "the update runs on the host in parallel with the step",
        r"activation_checkpointing\.(cpu_checkpointing|contiguous_memory_optimization)": "checkpoints are moved",
        r"(progressive_layer_drop|curriculum_learning|elasticity|hybrid_engine|autotuning|amp)\.enabled": "it changes "
        "the step at run time",
        r"data_efficiency\.enabled|data_efficiency\..*\.enabled": "it changes the step at run time",
        r"compression_training(\..*enabled)?|(quantize_training|weight_quantization)(\..*)?": "weights are compressed",
        r"sparse_attention(\..*)?": "attention is sparse",
    },
)
