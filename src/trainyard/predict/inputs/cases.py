"""What is predicted, as columns: one row a case, so that a whole search space costs one pass of numpy.

A case is a model's dimensions, a layout and a recipe. All columns are float64 and broadcast against each other: what
is the same in all cases may be a scalar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard import words
from trainyard.job import ATTENTION, MLP, SPACE, Job, Layout, Model, Recipe
from trainyard.predict.inputs import vision_models
from trainyard.predict.inputs.vision_models import VisionModel
from trainyard.predict.pipeline import schedules

Column = npt.NDArray[np.float64]

REMATS = ("none", "op", "full")
"""A case's `remat` is the place of its word here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """Fields as in `Model`, `Layout` and `Recipe`, but for:

    `divided`: 1 where the ranks of dp_shard and cp divide what `zero` says, and hold it once.
    `gated`: 1 where the MLP has a gate beside its way up; `learned`: 1 where places have a table of their own.
    `flash`: 1 where attention never writes its scores. `samples`: sequences a step, over all ranks. `width_bytes`: of
    a value in the compute dtype. `low_precision`: 1 where the products of layers run below it, in float8 or less.
    `state_bytes`: of the optimizer's state a weight; `gradient_bytes`, `weight_bytes`: as they are kept;
    `reduce_bytes`: of a gradient on its way to the other ranks. `normed_heads`: 1 where each head's queries and keys
    are normalised. `adapters`: 0 where all weights are trained, else the rank of those beside attention's products that
    alone are (LoRA: Hu et al. 2021, arXiv:2106.09685). `remade`: share of the products that `remat` "op" makes again,
    of every second one in torchtitan. `own`: 1 where our own runner trains. `offload`: the place of its word in
    `offload.KINDS`. `schedule`: the place of its word in `orders.SCHEDULES`; `ends`: 1 where the embedding and the head
    count as a layer each when layers are divided over stages.

    Of a hybrid, whose layers are one part each: `attentions` layers are attention, `spaces` state space, and the rest
    MLPs, `dense_layers` of them without experts.

    Of a model of pictures, whose `seq_len` is that of a sample's positions: `whole`: 1 where each sees all others;
    `text`: positions that have weights of their own in `doubles` layers, and in `text_ends` of these nothing after
    attention; `modulated`: vectors of its width that a layer is told of each sample. `vectors`: a layer's parameters
    that are in no matrix, beyond two norms. `entry`: numbers of a sample that are projected to the width, all rows
    together; `lead`, `tail`: parameters before the layers, and after them beside the head's matrix; `head_rows`: of a
    sample that the head is for; `given`: numbers of a sample that are loaded, all in float32.
    """

    layers: Column
    width: Column
    ffn: Column
    heads: Column
    kv_heads: Column
    head_dim: Column
    vocab: Column
    gated: Column
    learned: Column
    tied: Column
    experts: Column
    active: Column
    expert_ffn: Column
    shared_experts: Column
    dense_layers: Column
    q_rank: Column
    kv_rank: Column
    rope_dim: Column
    value_dim: Column
    dp_replicate: Column
    dp_shard: Column
    tp: Column
    cp: Column
    pp: Column
    ep: Column
    interleave: Column
    ends: Column
    divided: Column
    zero: Column
    sequence_parallel: Column
    loss_parallel: Column
    seq_len: Column
    samples: Column
    microbatch: Column
    schedule: Column
    remat: Column
    remat_every: Column
    offload: Column
    flash: Column
    low_precision: Column
    width_bytes: Column
    weight_bytes: Column
    gradient_bytes: Column
    state_bytes: Column
    reduce_bytes: Column
    normed_heads: Column
    adapters: Column
    remade: Column
    own: Column
    attentions: Column
    spaces: Column
    space_heads: Column
    space_dim: Column
    space_groups: Column
    state: Column
    kernel: Column
    chunk: Column
    step_rank: Column
    expert_width: Column
    whole: Column
    text: Column
    doubles: Column
    text_ends: Column
    modulated: Column
    vectors: Column
    entry: Column
    lead: Column
    tail: Column
    head_rows: Column
    given: Column

    def take(self, rows: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Cases:
        """The cases of these rows."""
        n = len(self)
        return replace(
            self, **{field.name: np.broadcast_to(getattr(self, field.name), n)[rows] for field in fields(self)}
        )

    def __len__(self) -> int:
        sizes = {np.size(getattr(self, name)) for name in self.__slots__}
        return max(sizes) if all(sizes) else 0

    # What follows from the columns

    @property
    def dp(self) -> Column:
        """Ranks over which the samples are divided."""
        return self.dp_replicate * self.dp_shard

    @property
    def ranks(self) -> Column:
        return self.dp * self.tp * self.cp * self.pp

    @property
    def tokens(self) -> Column:
        """Of a micro-batch on one rank of cp; ranks of tp share them."""
        return self.microbatch * self.seq_len / self.cp

    @property
    def between(self) -> Column:
        """Those that a rank has outside the matrices, where sequence parallelism divides them."""
        return self.tokens / np.where(self.sequence_parallel > 0, self.tp, 1.0)

    @property
    def accumulate(self) -> Column:
        """Micro-batches a rank runs in a step."""
        return self.samples / (self.dp * self.microbatch)

    @property
    def queries(self) -> Column:
        """Channels of all heads' queries and keys."""
        return self.heads * (self.head_dim + np.where(self.kv_rank > 0, self.rope_dim, 0.0))

    @property
    def values(self) -> Column:
        """Channels of all heads' values."""
        return self.heads * np.where(self.kv_rank > 0, self.value_dim, self.head_dim)


_STATE_SPACE = ("space_heads", "space_dim", "space_groups", "state", "kernel", "chunk", "step_rank", "expert_width")
_PICTURES = (
    "whole", "text", "doubles", "text_ends", "modulated", "vectors", "entry", "lead", "tail", "head_rows", "given",
)  # fmt: skip
PLAIN = dict.fromkeys(("attentions", "spaces", *_STATE_SPACE, *_PICTURES), 0.0)
"""Columns that are 0 in a decoder whose layers are attention and an MLP each."""


def column(values: Any) -> Column:
    return np.atleast_1d(np.asarray(values, np.float64))


def of_model(model: Model) -> dict[str, Any]:
    """The columns that a decoder's dimensions fill."""
    plain = (
        "layers", "width", "ffn", "heads", "kv_heads", "head_dim", "vocab", "experts", "active", "expert_ffn",
        "shared_experts", "dense_layers", "q_rank", "kv_rank", "rope_dim", "value_dim", *_STATE_SPACE,
    )  # fmt: skip
    count = model.pattern.count
    parts = (
        {"attentions": count(ATTENTION), "spaces": count(SPACE), "dense_layers": count(MLP)} if model.pattern else {}
    )
    return (
        {name: getattr(model, name) for name in plain}
        | parts
        | {
            "gated": model.mlp == "swiglu",
            "learned": model.position == "learned",
            "tied": model.tied,
            "normed_heads": model.qk_norm,
        }
    )


def of_layout(layout: Layout) -> dict[str, Any]:
    names = (*words.AXES, "interleave", "zero", "sequence_parallel", "loss_parallel")
    return {name: getattr(layout, name) for name in names} | {"divided": layout.dp_shard * layout.cp > 1, "ends": 0}


def of_recipe(recipe: Recipe) -> dict[str, Any]:
    """As our own runner trains: weights, gradients and state in float32, whatever is computed in."""
    low = recipe.dtype.startswith("float8")
    compute = words.DTYPES["bfloat16" if low else recipe.dtype]
    states = {"adamw": 8, "sgd": 4, "muon": 4}
    return {
        "seq_len": recipe.seq_len,
        "samples": recipe.tokens_per_step / recipe.seq_len,
        "microbatch": recipe.microbatch,
        "schedule": 0 if recipe.schedule == "none" else schedules.SCHEDULES.index(recipe.schedule),
        "remat": REMATS.index(recipe.remat),
        "remat_every": recipe.remat_every,
        "offload": 2 * recipe.offload,
        "flash": 1,
        "low_precision": low,
        "width_bytes": compute,
        "weight_bytes": 4,
        "gradient_bytes": 4,
        "state_bytes": states.get(recipe.optimizer, 8),
        "reduce_bytes": 4,
        "adapters": 0,
        "remade": 0,
        "own": 1,
    }


def made(**columns: Any) -> Cases:
    """Those that are not given are a plain decoder's."""
    return Cases(**{name: column(value) for name, value in (PLAIN | columns).items()})


def of_jobs(jobs: Sequence[Job]) -> Cases:
    """One case a job. Raises `BadJob` for one whose model is not planned for."""
    rows = [PLAIN | of_layout(job.layout) | of_recipe(job.recipe) | of_subject(subject(job)) for job in jobs]
    return made(**{name: [row[name] for row in rows] for name in rows[0]})


def subject(job: Job) -> Model | VisionModel:
    """What a job trains. Raises `BadJob` likewise."""
    return vision_models.of_job(job) if job.sizes or job.workload in vision_models.WORKLOADS else job.decoder


def of_subject(model: Model | VisionModel) -> dict[str, Any]:
    """The columns that a model fills; of pictures, in the place of some that layout and recipe fill too."""
    return of_model(model) if isinstance(model, Model) else vision_models.columns(model)
