"""What arguments of pretrain_gpt.py mean that no layout is read from."""

from __future__ import annotations

import re

from trainyard.predict.configs.config_keys import KeyRules

_NOTHING = (
    # Data, tokens, saving, logging, learning rates, seeds, dropout, and what only one value is modelled of.
    r".*-path|.*-file|.*-model|tokenizer.*|tiktoken.*|data-.*|split|mock-data|.*save.*|.*load.*|log-.*|.*-log.*"
    r"|tensorboard.*|wandb.*|eval-.*|dist-ckpt.*|ckpt-.*|train-iters|train-samples|lr|lr-.*|min-lr.*|weight-decay.*"
    r"|adam-.*|clip-grad|init-method.*|seed|.*dropout|exit-.*|distributed-.*|num-workers|use-flash-attn|use-mcore-models"
    r"|attention-backend|transformer-impl|no-.*|overlap-(grad-reduce|param-gather.*|p2p.*)|max-position-embeddings"
    r"|rotary-.*|rope-.*|use-rope-scaling|moe-router-(load|dtype|fusion|pre|bias).*|moe-aux.*|moe-z-loss.*"
    r"|moe-token-dispatcher-type|moe-grouped-gemm|moe-permute-fusion|recompute-method|recompute-num-layers"
    r"|recompute-modules|use-cpu-initialization|apply-.*|attention-softmax.*|manual-gc.*|rampup.*|num-iterations"
    r"|cp-comm-type|context-parallel-size|initial-loss-scale|loss-scale.*|hysteresis|min-loss-scale|ddp-.*|timing-.*"
    r"|check-for-.*|fp8-(margin|recipe|interval|amax.*)|te-rng-tracker|bias-.*|cross-entropy.*|use-dist-ckpt.*|async-.*"
    r"|make-vocab-size-divisible-by|vocab-extra-ids|trust-remote-code|override-opt.*|profile.*|use-pytorch-profiler"
    r"|accumulate-allreduce-grads-in-fp32|microbatch-group-size.*|use-tp-pp-dp-mapping|squared-relu|openai-gelu"
    r"|nproc.per.node|nnodes|node.rank|master.*|rdzv.*|max.restarts|nccl-communicator.*|kv-channels|group-query-attention|.*-dtype|enable-experimental|create-attention.*"
)
_SIZES = (
    r"|num-layers|hidden-size|ffn-hidden-size|num-attention-heads|num-query-groups|swiglu|normalization|norm-epsilon"
    r"|(padded-)?vocab-size|position-embedding-type|untie-.*|multi-latent-attention|.*-lora-rank|qk-.*|v-head-dim"
    r"|num-experts|moe-.*|.*-bias.*|quick-geglu|use-rotary-position-embeddings"
)
RULES = KeyRules(
    re.compile(_NOTHING),
    {
        r"tp-comm-overlap.*|tp-comm-bulk.*": "predicted as if tensor parallelism's products waited for what they take",
        r"overlap-moe-expert-parallel-comm|moe-shared-expert-overlap|delay-wgrad-compute": "predicted without it",
        r"defer-embedding-wgrad-compute": "predicted at its place",
        r"moe-token-dispatcher-type=allgather": "predicted as an exchange of all with all",
        r"moe-enable-deepep|moe-flex-dispatcher-backend": "predicted as NCCL's exchange",
        r"moe-expert-capacity-factor|moe-pad-expert-input.*": "predicted as if no token were dropped",
        r"moe-layer-recompute": "predicted as if experts kept what they need",
        r"distribute-saved-activations": "predicted as sequence parallelism divides them",
        r"enable-cuda-graph|external-cuda-graph|cuda-graph-impl": "predicted as if the host launched each operation",
        r"first-last-layers-bf16|num-layers-at-.*": "predicted in float8 in all layers",
        r"fp8-param-gather|fp4-param-gather": "predicted with weights of two bytes",
        r"hierarchical-context-parallel-sizes": "predicted as one ring",
        r"fp32-residual-connection": "predicted with a residual stream of two bytes",
        r"deterministic-mode": "predicted with the usual kernels, which are faster",
        r"use-nccl-ub|use-sharp": "predicted as NCCL's usual collectives",
        r"standalone-embedding-stage": "predicted as a stage of layers",
        r"make-vocab-size-divisible-by": "predicted without padded words",
    },
    {
        r"attention-backend=(unfused|local)": "attention that writes its scores",
        r"cpu-offload.*|optimizer-(cpu-)?offload.*|.*activation-offload.*|offload-modules": "what waits in the host's "
        "memory has no predicted time",
        r"mtp-.*": "layers that predict further tokens",
        r"window-.*|.*chunk-size|.*attention-window.*|softmax-type": "attention of another kind",
        r"hybrid-.*|is-hybrid-model|mamba-.*|spec|linear-.*|experimental-attention.*": "layers of another kind",
        r"heterogeneous-.*|retro-.*|vision-.*|perform-rl-step": "another model, or another step",
        r"yaml-cfg|use-checkpoint-args": "what is trained stands in another file",
        r"use-torch-fsdp2": "weights kept otherwise",
        r"moe-extended-tp": "experts divided in an earlier way",
    },
)


def with_sizes() -> re.Pattern[str]:
    """What says nothing where the model comes with the command."""
    return re.compile(_NOTHING + _SIZES)
