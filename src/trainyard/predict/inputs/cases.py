"""The inputs of a prediction as float64 columns, so that numpy computes a whole search space in one pass.

A case is the dimensions of a model, a layout and a recipe; it is a row of the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard import words
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import ATTENTION, MLP, SPACE, Model
from trainyard.predict.inputs import vector_parameters, vision_models
from trainyard.predict.inputs.vision_models import VisionModel
from trainyard.predict.pipeline import schedules
from trainyard.recipe import Recipe

Column = npt.NDArray[np.float64]

ACTIVATION_CHECKPOINTS = ("none", "selective", "full")
"""A case's `activation_checkpoint` is an index into this tuple."""
SELECTIVE, FULL = 1, 2
"""Indices of "selective" and "full"."""
_OFFLOAD_ALL = 2
"""`offload.ALL`, whose module imports this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """One column per field, of shape (number of cases,), or (1,) if all cases have the same value. Numbers of layers
    and of parameters are those of the whole model, and sizes are those before an axis divides them."""

    # The model
    layers: Column
    """Layers (Transformer blocks), all kinds together; in a hybrid each is a single mixer or a single MLP."""
    width: Column
    """Channels of the residual stream (hidden size)."""
    ffn: Column
    """Channels between the two matrices of a dense MLP (intermediate size)."""
    heads: Column
    """Query heads of a layer."""
    kv_heads: Column
    """Key/value heads of a layer."""
    head_dim: Column
    """Channels of a head; with latent attention those of a query or key without a position."""
    vocab: Column
    """Rows of the embedding and outputs of the head: the vocabulary, an image model's classes or the values of a
    patch."""
    gated: Column
    """1 if MLPs have a gate (SwiGLU), else 0."""
    learned_positions: Column
    """1 if positions have a learned embedding, else 0."""
    tie_word_embeddings: Column
    """1 if the head's matrix is the embedding's, else 0."""
    qk_norm: Column
    """1 if the queries and keys of each head are normalised (QK norm), else 0."""
    adapters: Column
    """Rank of the LoRA adapters of attention's matrices (Hu et al. 2021, arXiv:2106.09685); 0: they have none. With
    adapters, all other weights are frozen."""
    mlp_adapters: Column
    """Rank of the LoRA adapters of the matrices of dense MLPs; 0: they have none."""
    split_adapters: Column
    """1 if queries, keys, values, gate and up projections have an adapter each (Hugging Face PEFT), 0 if fused matrices
    have one (Megatron-Bridge)."""
    quantised: Column
    """1 if the frozen matrices of layers are kept in NF4 and dequantised before each product (QLoRA), else 0."""

    # Experts and latent attention
    experts: Column
    """Routed experts of a layer; 0 in a dense model."""
    active_experts: Column
    """Routed experts that each token uses."""
    moe_ffn_hidden_size: Column
    """Channels between the two matrices of an expert."""
    moe_latent_size: Column
    """Channels of an expert's input and output (latent experts); 0: `width`."""
    shared_experts: Column
    """Experts of a layer that every token uses."""
    dense_layers: Column
    """Layers whose MLP has no experts: the first ones, or those with an MLP in a hybrid."""
    n_group: Column
    """Groups of equal size that the experts of a layer are divided into; 0 or 1: they are not."""
    topk_group: Column
    """Groups that the experts of a token come from (node-limited routing, DeepSeek-V3, arXiv:2412.19437, section
    2.1.2)."""
    expert_imbalance: Column
    """Tokens of the rank whose experts get most of them, over the mean of the ranks, if `ep` allows it
    (`rank_imbalance`); 1: all get as many."""
    dispatch_bytes: Column
    """Bytes of a value of a token on its way to its experts; 0: as in the compute dtype."""
    overlaps_dispatch: Column
    """1 if dispatch and combine of one micro-batch run during the compute of another (DualPipe, Megatron's
    overlap-moe-expert-parallel-comm), else 0."""
    q_lora_rank: Column
    """Channels of the compressed queries; 0: queries come from `width` directly."""
    kv_lora_rank: Column
    """Channels of the compressed keys and values; 0: no latent attention."""
    qk_rope_head_dim: Column
    """Channels of a head with rotary positions, next to `head_dim`; latent attention only."""
    v_head_dim: Column
    """Channels of a head's values; latent attention only."""

    # State spaces, if `space_layers` > 0
    attention_layers: Column
    """Attention layers of a hybrid; 0 in other models, all of whose layers have attention."""
    space_layers: Column
    """State-space layers of a hybrid; 0: the model is not a hybrid."""
    ssm_heads: Column
    """Heads of a state space; Mamba-1: its channels."""
    ssm_head_dim: Column
    """Channels of such a head."""
    ssm_groups: Column
    """Groups of heads that share the state's input and output matrices (B and C)."""
    ssm_state_size: Column
    """Numbers of state per channel."""
    ssm_conv_kernel: Column
    """Tokens under the causal convolution."""
    ssm_chunk_size: Column
    """Tokens of a chunk of the scan."""
    ssm_dt_rank: Column
    """Channels from which each channel's step size (delta) is computed, in Mamba-1; 0: Mamba-2."""

    # Vision and diffusion Transformers: 0 in a decoder
    unmasked: Column
    """1 if attention has no causal mask, else 0."""
    text_positions: Column
    """Positions of text with weights of their own in `double_layers` layers (of the `seq_len` positions of a
    sample)."""
    double_layers: Column
    """Layers with separate weights for image and text (double-stream blocks)."""
    text_ends: Column
    """Double-stream layers without anything after attention in the text stream."""
    modulation_vectors: Column
    """Vectors of `width` channels per sample that modulate a layer (adaLN), mean over layers."""
    vector_parameters: Column
    """Parameters of a layer outside matrices, without `width` for each norm, mean over layers."""
    entry_values: Column
    """Numbers of a sample that are projected to `width` before the layers, all projections together."""
    lead_parameters: Column
    """Parameters before the layers; 0: the model is a decoder with an embedding."""
    tail_parameters: Column
    """Parameters after the layers, without the head's matrix."""
    head_rows: Column
    """Rows of a sample that the head is applied to; 0: every token."""
    input_values: Column
    """Float32 numbers of a sample that are copied to the device."""

    # The layout
    dp_replicate: Column
    """Ranks of replicated data parallelism."""
    dp_shard: Column
    """Ranks of sharded data parallelism."""
    tp: Column
    """Ranks of tensor parallelism."""
    cp: Column
    """Ranks of context parallelism."""
    pp: Column
    """Ranks of pipeline parallelism."""
    ep: Column
    """Ranks of expert parallelism, which are ranks of the other axes too."""
    interleave: Column
    """Pipeline stages of a rank."""
    schedule: Column
    """Index of the pipeline schedule in `schedules.SCHEDULES`."""
    first_less: Column
    """Layers that the first pipeline stage has fewer than an even one: 1 if the embedding counts as a layer."""
    last_less: Column
    """Layers that the last pipeline stage has fewer than an even one: 1 if the head counts as a layer."""
    is_sharded: Column
    """1 if the ranks of dp_shard and cp shard the tensors that `zero` names, else 0: each rank has all of them."""
    zero: Column
    """ZeRO stage: dp_shard shards the optimizer's state (1), gradients too (2), weights too (3)."""
    extra_prefetch: Column
    """Units that FSDP gathers ahead in the backward pass, more than one."""
    reshards_last: Column
    """1 if FSDP also frees the last norm's and the head's weights between forward and backward pass, else 0."""
    sequence_parallel: Column
    """1 if tp divides the tokens outside matrix products (sequence parallelism), else 0."""
    loss_parallel: Column
    """1 if tp divides the logits by vocabulary, else 0."""

    # The recipe
    seq_len: Column
    """Tokens of a sequence, or positions of an image with its text."""
    samples: Column
    """Sequences or images of a step, over all ranks."""
    micro_batch_size: Column
    """Sequences or images that a rank computes at a time."""
    activation_checkpoint: Column
    """Index of the activation checkpointing mode in `ACTIVATION_CHECKPOINTS`."""
    recompute_modules: Column
    """The modules that selective activation checkpointing recomputes, as `module_bits`; 0: all of a
    layer but attention and the share 1 - `recomputed_share` of its matrix products."""
    activation_checkpoint_every: Column
    """1 of so many layers recomputes activations."""
    chunked_loss: Column
    """1 if the head and the loss are computed in chunks of the tokens, so that all logits never exist, else 0."""
    recomputed_share: Column
    """Share of matrix products that selective activation checkpointing recomputes: torchtitan recomputes every second
    one."""
    offload: Column
    """Index in `offload.KINDS` of the kind of tensors that are in the host's memory; 0: none."""
    muon_iterations: Column
    """Newton-Schulz iterations of a step on each matrix of the layers, which Muon updates; 0: AdamW does."""
    updates_in_backward: Column
    """1 if a weight is updated, and its gradient freed, during the backward pass, else 0."""
    offloaded_layers: Column
    """Layers whose activations are in the host's memory between their forward and their backward pass."""
    flash: Column
    """1 if attention never writes its scores (FlashAttention), else 0."""
    low_precision: Column
    """1 if the matrix products of layers run below 16 bits (float8, float4), else 0."""
    low_precision_inputs: Column
    """1 if these products keep their inputs for the backward pass in the format that they compute in (Transformer
    Engine, `pytorch/module/linear.py`), 0 if they keep those of `width_bytes` (torchao, `float8_linear.py`)."""
    width_bytes: Column
    """Bytes of a value in the compute dtype."""
    weight_bytes: Column
    """Bytes of a weight as it is kept."""
    gradient_bytes: Column
    """Bytes of a gradient as it is kept."""
    state_bytes: Column
    """Bytes of the optimizer's state per weight, with a float32 copy of the weight if there is one."""
    extra_table_state_bytes: Column
    """Bytes of the optimizer's state per weight of the embedding and the head, in addition to `state_bytes`: with Muon,
    AdamW updates them."""
    reduce_bytes: Column
    """Bytes of a gradient in a reduction over data-parallel ranks."""
    delays_reduction: Column
    """1 if FSDP sums the gradients of micro-batches unsharded and reduces them once per step (`no_sync` of FSDP,
    `set_requires_gradient_sync` of FSDP2), 0 if it reduces those of every micro-batch."""
    native: Column
    """1 if trainyard's own trainer runs the case, whose memory is modelled moment by moment, else 0."""

    def take(self, rows: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Cases:
        """The cases at these rows: indices, or a mask over all cases. Columns of shape (1,) stay as they are, unless
        there is only one case."""
        count, columns = len(self), {name: getattr(self, name) for name in self.__slots__}
        return replace(self, **{name: column[rows] for name, column in columns.items() if np.size(column) == count})

    def __len__(self) -> int:
        sizes = {np.size(getattr(self, name)) for name in self.__slots__}
        return max(sizes) if all(sizes) else 0

    # What follows from the columns

    @property
    def rank_imbalance(self) -> Column:
        """`expert_imbalance`, but at most `ep`, with which a single rank gets all tokens."""
        return np.minimum(self.expert_imbalance, self.ep)

    @property
    def dp(self) -> Column:
        """Ranks over which the samples are divided."""
        return self.dp_replicate * self.dp_shard

    @property
    def ranks(self) -> Column:
        return self.dp * self.tp * self.cp * self.pp

    @property
    def tokens(self) -> Column:
        """Tokens of a micro-batch on one rank of cp, shared by the ranks of tp."""
        return self.micro_batch_size * self.seq_len / self.cp

    @property
    def residual_tokens(self) -> Column:
        """Tokens of a micro-batch that a rank has outside matrix products: sequence parallelism divides them."""
        return self.tokens / np.where(self.sequence_parallel > 0, self.tp, 1.0)

    @property
    def accumulate(self) -> Column:
        """Micro-batches that a rank runs per step."""
        return self.samples / (self.dp * self.micro_batch_size)

    @property
    def queries(self) -> Column:
        """Channels of all heads' queries and keys."""
        return self.heads * (self.head_dim + np.where(self.kv_lora_rank > 0, self.qk_rope_head_dim, 0.0))

    @property
    def values(self) -> Column:
        """Channels of all heads' values."""
        return self.heads * np.where(self.kv_lora_rank > 0, self.v_head_dim, self.head_dim)


_EXPERTS_AND_MLA = (
    "experts",
    "moe_ffn_hidden_size",
    "shared_experts",
    "dense_layers",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "v_head_dim",
)
"""Columns of mixture-of-experts layers and of multi-head latent attention; 0 in models without them."""
_STATE_SPACE = (
    "ssm_heads",
    "ssm_head_dim",
    "ssm_groups",
    "ssm_conv_kernel",
    "ssm_chunk_size",
    "ssm_dt_rank",
    "moe_latent_size",
)
_VISION = (
    "unmasked",
    "text_positions",
    "double_layers",
    "text_ends",
    "modulation_vectors",
    "vector_parameters",
    "entry_values",
    "lead_parameters",
    "tail_parameters",
    "head_rows",
    "input_values",
)
_ADAPTERS = (
    "adapters",
    "mlp_adapters",
    "split_adapters",
    "quantised",
)
PLAIN = dict.fromkeys(
    (
        "attention_layers",
        "space_layers",
        "ssm_state_size",
        "extra_table_state_bytes",
        "extra_prefetch",
        "reshards_last",
        "n_group",
        "topk_group",
        "dispatch_bytes",
        "overlaps_dispatch",
        "recompute_modules",
        "chunked_loss",
        "offloaded_layers",
        "updates_in_backward",
        "delays_reduction",
        "muon_iterations",
        *_ADAPTERS,
        *_STATE_SPACE,
        *_VISION,
    ),
    0.0,
) | {"expert_imbalance": 1.0, "low_precision_inputs": 1.0}
"""Columns of a decoder whose layers each have attention and an MLP and all of whose weights are trained, with FSDP's
default settings and an optimizer other than Muon; experts are not in groups, get as many tokens each, and are not
dispatched during other compute; products below 16 bits are those of Transformer Engine."""


def column(values: Any) -> Column:
    """A column of float64 values; a number becomes one of shape (1,)."""
    return np.atleast_1d(np.asarray(values, np.float64))


def of_model(model: Model) -> dict[str, Any]:
    """Columns of a decoder's dimensions: name of a column of `Cases` -> its value. In a hybrid, `hybrid_pattern` gives
    the number of layers of each kind."""
    copied_names = (
        "layers",
        "heads",
        "kv_heads",
        "head_dim",
        "vocab",
        "n_group",
        "topk_group",
        *_EXPERTS_AND_MLA,
        *_STATE_SPACE,
    )
    count = model.hybrid_pattern.count
    layer_counts = (
        {"attention_layers": count(ATTENTION), "space_layers": count(SPACE), "dense_layers": count(MLP)}
        if model.hybrid_pattern
        else {}
    )
    return (
        {name: getattr(model, name) for name in copied_names}
        | layer_counts
        | {
            "width": model.hidden_size,
            "ffn": model.ffn_hidden_size,
            "active_experts": model.top_k,
            "ssm_state_size": model.ssm_state_size,
            "gated": model.mlp == "swiglu",
            "learned_positions": model.position == "learned",
            "tie_word_embeddings": model.tie_word_embeddings,
            "qk_norm": model.qk_norm,
            "vector_parameters": vector_parameters.of_layer(model),
        }
    )


def of_layout(layout: Layout) -> dict[str, Any]:
    """Columns of a layout: name of a column of `Cases` -> its value. Trainyard's own trainer does not count the
    embedding and the head as layers (`first_less`, `last_less`)."""
    copied_names = (*words.AXES, "interleave", "sequence_parallel", "loss_parallel")
    return {name: getattr(layout, name) for name in copied_names} | {
        "zero": 2 if layout.zero == 3 and layout.reshard_after_forward == "never" else layout.zero,
        "extra_prefetch": layout.backward_prefetch - 1,
        "reshards_last": layout.reshard_after_forward == "always",
        "is_sharded": layout.dp_shard * layout.cp > 1,
        "first_less": 0,
        "last_less": 0,
    }


def of_recipe(recipe: Recipe) -> dict[str, Any]:
    """Columns of a recipe (name -> value) as trainyard's own trainer runs it: weights, gradients and state are in
    float32, whatever the compute dtype."""
    is_low_precision = words.DTYPES[recipe.dtype] < 2
    value_bytes = words.DTYPES["bfloat16" if is_low_precision else recipe.dtype]
    state_values = 2 if recipe.state_values is None else recipe.state_values  # of an unknown optimizer: as AdamW
    return {
        "seq_len": recipe.seq_len,
        "samples": recipe.tokens_per_step / recipe.seq_len,
        "micro_batch_size": recipe.micro_batch_size,
        "schedule": 0 if recipe.schedule == "none" else schedules.SCHEDULES.index(recipe.schedule),
        "activation_checkpoint": ACTIVATION_CHECKPOINTS.index(recipe.activation_checkpoint),
        "recompute_modules": module_bits(recipe.recompute_modules),
        "overlaps_dispatch": recipe.overlap_dispatch,
        "activation_checkpoint_every": recipe.activation_checkpoint_every,
        "offload": _OFFLOAD_ALL if recipe.offload else 0,
        "flash": 1,
        "low_precision": is_low_precision,
        "width_bytes": value_bytes,
        "weight_bytes": 4,
        "gradient_bytes": 4,
        "state_bytes": 4 * state_values,
        "extra_table_state_bytes": 4 if recipe.optimizer == "muon" else 0,
        "reduce_bytes": 4,
        "recomputed_share": 0,
        "native": 1,
    }


def module_bits(modules: Iterable[str]) -> float:
    """The value of `Cases.recompute_modules` for these modules of `RECOMPUTE_MODULES`: one bit each."""
    return float(sum(1 << list(words.RECOMPUTE_MODULES).index(name) for name in set(modules)))


def build(**columns: Any) -> Cases:
    """Cases from columns; those that are not given are those of a plain decoder."""
    return Cases(**{name: column(value) for name, value in (PLAIN | columns).items()})


def of_jobs(jobs: Sequence[Job]) -> Cases:
    """One case per job. Raises `BadJob` for a model that the planner does not support, or unequal batch shares."""
    for job in jobs:
        if not job.layout.has_equal_shares:
            raise BadJob(
                f"batch_shares = {list(job.layout.batch_shares)} at $.layout, but predictions are for devices of one "
                "kind, whose replicas have equal shares of a batch.",
                "Leave out batch_shares.",
            )
    rows = [PLAIN | of_layout(job.layout) | of_recipe(job.recipe) | of_subject(subject(job)) for job in jobs]
    return build(**{name: [row[name] for row in rows] for name in rows[0]})


def subject(job: Job) -> Model | VisionModel:
    """The model that a job trains. Raises `BadJob` if the planner does not support it."""
    return vision_models.of_job(job) if job.sizes or job.workload in vision_models.WORKLOADS else job.decoder


def of_subject(model: Model | VisionModel) -> dict[str, Any]:
    """Columns (name -> value) of a model; those of a vision model replace some of its layout's and recipe's columns."""
    if isinstance(model, Model):
        return of_model(model)
    return dict.fromkeys(("active_experts", *_EXPERTS_AND_MLA), 0) | vision_models.columns(model)
