"""Rules for the arguments of pretrain_gpt.py that the reader does not request."""

from __future__ import annotations

import re

from trainyard.lazy_pattern import lazy_compile
from trainyard.predict.configs.config_keys import KeyRules

_NOTHING = (
    # Data, tokens, saving, logging, learning rates, seeds, dropout, and settings of which only one value is modelled.
    r".*-path|.*-file|.*-model|tokenizer.*|tiktoken.*|data-.*|split|mock-data|.*save.*|.*load.*|log-.*|.*-log.*"
    r"|tensorboard.*|wandb.*|eval-.*|dist-ckpt.*|ckpt-.*|train-iters|train-samples|lr|lr-.*|min-lr.*|weight-decay.*"
    r"|adam-.*|clip-grad|init-method.*|seed|.*dropout|exit-.*|distributed-.*|num-workers|use-flash-attn|use-mcore-models"
    r"|attention-backend|transformer-impl|no-.*|overlap-(grad-reduce|param-gather.*|p2p.*)|max-position-embeddings"
    r"|rotary-.*|rope-.*|use-rope-scaling|moe-router-(load|dtype|fusion|pre|bias).*|moe-aux.*|moe-z-loss.*"
    r"|moe-token-dispatcher-type|moe-grouped-gemm|moe-permute-fusion|recompute-method|recompute-num-layers"
    r"|recompute-modules|use-cpu-initialization|apply-.*|attention-softmax.*|manual-gc.*|rampup.*|num-iterations"
    r"|cp-comm-type|context-parallel-size|initial-loss-scale|loss-scale.*|hysteresis|min-loss-scale|ddp-.*|timing-.*"
    r"|check-for-.*|fp8-(margin|recipe|interval|amax.*)|te-rng-tracker|bias-.*|cross-entropy.*|use-dist-ckpt.*|async-.*"
    r"|vocab-extra-ids|trust-remote-code|override-opt.*|profile.*|use-pytorch-profiler"
    r"|accumulate-allreduce-grads-in-fp32|micro_batch_size-group-size.*|use-tp-pp-dp-mapping|squared-relu|openai-gelu"
    r"|muon-.*|nproc.per.node|nnodes|node.rank|master.*|rdzv.*|max.restarts|nccl-communicator.*|kv-channels|group-query-attention|.*-dtype|enable-experimental|create-attention.*"
)
_SIZES = (
    r"|num-layers|hidden-size|ffn-hidden-size|num-attention-heads|num-query-groups|swiglu|normalization|norm-epsilon"
    r"|make-vocab-size-divisible-by|(padded-)?vocab-size|position-embedding-type|untie-.*|multi-latent-attention|.*-lora-rank|qk-.*|v-head-dim"
    r"|num-experts|moe-.*|.*-bias.*|quick-geglu|use-rotary-position-embeddings"
)
_SIMILAR = frozenset(
    f"{part}-{name}"
    for part in ("encoder", "decoder")
    for name in (
        "seq-length", "num-layers", "num-attention-heads", "tensor-model-parallel-size", "pipeline-model-parallel-size"
    )
)  # fmt: skip
"""Arguments of models with an encoder."""
RULES = KeyRules(
    lazy_compile(_NOTHING),
    {
        r"tp-comm-overlap.*|tp-comm-bulk.*": "predicted without overlap of tensor-parallel communication",
        r"moe-shared-expert-overlap|delay-wgrad-compute": "predicted without it",
        r"defer-embedding-wgrad-compute": "predicted without deferral",
        r"moe-token-dispatcher-type=allgather": "predicted as an all-to-all",
        r"moe-enable-deepep|moe-flex-dispatcher-backend": "predicted as NCCL's all-to-all",
        r"moe-expert-capacity-factor|moe-pad-expert-input.*": "predicted as if no token were dropped",
        r"moe-layer-recompute": "predicted without recomputation of experts: --recompute-modules moe has it",
        r"distribute-saved-activations": "predicted as sharded by sequence parallelism",
        r"enable-cuda-graph|external-cuda-graph|cuda-graph-impl": "predicted without CUDA graphs",
        r"first-last-layers-bf16|num-layers-at-.*": "predicted in float8 in all layers",
        r"fp8-param-gather|fp4-param-gather": "predicted with weights of two bytes",
        r"hierarchical-context-parallel-sizes": "predicted as one ring",
        r"fp32-residual-connection": "predicted with a residual stream of two bytes",
        r"deterministic-mode": "predicted with the usual kernels, which are faster",
        r"use-nccl-ub|use-sharp": "predicted as NCCL's usual collectives",
        r"standalone-embedding-stage": "predicted as a stage of layers",
    },
    {
        r"attention-backend=(unfused|local)": "attention that materialises its scores",
        r"cpu-offload.*|optimizer-(cpu-)?offload.*|.*activation-offload.*|offload-modules": "the time of offloading to "
        "host memory is not predicted",
        r"mtp-.*": "multi-token prediction layers",
        r"window-.*|.*chunk-size|.*attention-window.*|softmax-type": "attention of another kind",
        r"hybrid-.*|is-hybrid-model|mamba-.*|spec|linear-.*|experimental-attention.*": "layers of another kind",
        r"heterogeneous-.*|retro-.*|vision-.*|perform-rl-step": "another model, or another step",
        r"yaml-cfg|use-checkpoint-args": "the model is defined in another file",
        r"use-torch-fsdp2": "another sharding of the weights",
        r"moe-extended-tp": "an obsolete sharding of the experts",
    },
    _SIMILAR,
)


def with_sizes() -> re.Pattern[str]:
    """Irrelevant arguments when the model is given on the command line: the model's sizes too."""
    return re.compile(_NOTHING + _SIZES)
