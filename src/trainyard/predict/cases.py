"""What is predicted, as columns: one row a case, so that a whole search space costs one pass of numpy.

A case is a decoder's dimensions, a layout and a recipe. All columns are float64 and broadcast against each other: what
is the same in all cases may be a scalar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard import words
from trainyard.job import Job, Layout, Model, Recipe

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
    are normalised. `own`: 1 where our own runner trains.
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
    divided: Column
    zero: Column
    sequence_parallel: Column
    loss_parallel: Column
    seq_len: Column
    samples: Column
    microbatch: Column
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
    own: Column

    def take(self, rows: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Cases:
        """The cases of these rows."""
        n = len(self)
        return replace(
            self, **{field.name: np.broadcast_to(getattr(self, field.name), n)[rows] for field in fields(self)}
        )

    def __len__(self) -> int:
        return int(np.broadcast_shapes(*(np.shape(getattr(self, field.name)) for field in fields(self)))[0])

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


def column(values: Any) -> Column:
    return np.atleast_1d(np.asarray(values, np.float64))


def of_model(model: Model) -> dict[str, Any]:
    """The columns that a decoder's dimensions fill."""
    plain = (
        "layers", "width", "ffn", "heads", "kv_heads", "head_dim", "vocab", "experts", "active", "expert_ffn",
        "shared_experts", "dense_layers", "q_rank", "kv_rank", "rope_dim", "value_dim",
    )  # fmt: skip
    return {name: getattr(model, name) for name in plain} | {
        "gated": model.mlp == "swiglu",
        "learned": model.position == "learned",
        "tied": model.tied,
        "normed_heads": model.qk_norm,
    }


def of_layout(layout: Layout) -> dict[str, Any]:
    names = (*words.AXES, "interleave", "zero", "sequence_parallel", "loss_parallel")
    return {name: getattr(layout, name) for name in names} | {"divided": layout.dp_shard * layout.cp > 1}


def of_recipe(recipe: Recipe) -> dict[str, Any]:
    """As our own runner trains: weights, gradients and state in float32, whatever is computed in."""
    low = recipe.dtype.startswith("float8")
    compute = words.DTYPES["bfloat16" if low else recipe.dtype]
    states = {"adamw": 8, "sgd": 4, "muon": 4}
    return {
        "seq_len": recipe.seq_len,
        "samples": recipe.tokens_per_step / recipe.seq_len,
        "microbatch": recipe.microbatch,
        "remat": REMATS.index(recipe.remat),
        "remat_every": recipe.remat_every,
        "offload": recipe.offload,
        "flash": 1,
        "low_precision": low,
        "width_bytes": compute,
        "weight_bytes": 4,
        "gradient_bytes": 4,
        "state_bytes": states.get(recipe.optimizer, 8),
        "reduce_bytes": 4,
        "own": 1,
    }


def made(**columns: Any) -> Cases:
    return Cases(**{name: column(value) for name, value in columns.items()})


def of_jobs(jobs: Sequence[Job]) -> Cases:
    """One case a job. Raises `BadJob` for one that trains no decoder."""
    rows = [of_model(job.decoder) | of_layout(job.layout) | of_recipe(job.recipe) for job in jobs]
    return made(**{name: [row[name] for row in rows] for name in rows[0]})
