"""How many bytes a rank holds at the peak of a step, by part, as columns: what the framework has allocated.

Activations are what each operation keeps for its backward pass (Korthikanti et al. 2022, arXiv:2205.05198, section 4,
with attention that keeps no scores); a stage keeps them for the micro-batches that are on their way (1F1B: Narayanan et
al. 2021, arXiv:2104.04473, section 2.2.1). What the allocator reserves beyond that is `RESERVED` times as much.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from trainyard.predict import gradients, held, shapes
from trainyard.predict.cases import Cases, Column

RESERVED = 1.2
"""Reserved over allocated bytes: 1.15 to 1.24 was measured (torchtitan's and SimuMax's published runs)."""
_FLOAT32 = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes, on the stage that needs the most."""

    parameters: Column
    gradients: Column
    optimizer: Column
    activations: Column
    logits: Column
    gathered: Column

    @property
    def total(self) -> Column:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.logits + self.gathered

    def parts(self) -> dict[str, Column]:
        """By the words of `words.MEMORY`, and what has none of those."""
        return {
            "parameter": self.parameters, "gradient": self.gradients, "optimizer_state": self.optimizer,
            "activation": self.activations, "logits": self.logits, "gathered": self.gathered,
        }  # fmt: skip


def memory(cases: Cases) -> Memory:
    """Of the first stage or the last, whichever needs more: one has the embedding and most micro-batches on their way,
    the other the head and the logits. Of our own runner it is known what is there at which moment (`held.py`)."""
    ours = np.broadcast_to(cases.own > 0, len(cases))
    if ours.all():
        return _fuller(*(Memory(**held.peak(cases, first)._asdict()) for first in (True, False)))
    published = _fuller(*(_stage(cases, first) for first in (True, False)))
    if not ours.any():
        return published
    raise ValueError("cases of our own runner and of others are not mixed")


def _fuller(first: Memory, last: Memory) -> Memory:
    more = first.total >= last.total
    parts = ((getattr(first, field.name), getattr(last, field.name)) for field in fields(Memory))
    return Memory(**{field.name: np.where(more, *pair) for field, pair in zip(fields(Memory), parts, strict=True)})


def _stage(cases: Cases, first: bool) -> Memory:
    alone = cases.pp == 1
    here = np.ceil(cases.layers / cases.pp)
    weights = shapes.weights(cases)
    dense, routed = shapes.kinds_of(cases, here, first)
    common = here * weights.shared + dense * weights.dense + routed * weights.routed
    expert = routed * weights.expert
    table = weights.table
    tables = np.where(alone, np.where(cases.tied > 0, 1.0, 2.0), 1.0)
    common = common + table * tables
    shard = np.where(cases.divided > 0, cases.dp_shard * cases.cp, 1.0)
    owners = np.where(cases.divided > 0, _expert_ranks(cases), 1.0)

    def kept(stage: int) -> Column:
        divided = cases.zero >= stage
        return common / np.where(divided, shard, 1.0) + expert / np.where(divided, owners, 1.0)

    layer = sum(gradients.layer_weights(cases), np.zeros(1))
    unsharded = np.where((cases.divided > 0) & (cases.zero >= 2), 1.0, 0.0)
    return Memory(
        parameters=kept(3) * cases.weight_bytes,
        gradients=kept(2) * cases.gradient_bytes,
        optimizer=np.where(cases.offload > 0, 0.0, kept(1) * cases.state_bytes),
        activations=_activations(cases, dense, routed, first),
        logits=np.zeros(1) if first and not alone.any() else np.where(alone | (not first), _logits(cases), 0.0),
        gathered=unsharded * layer * (2 * cases.width_bytes + cases.reduce_bytes),
    )


def _expert_ranks(cases: Cases) -> Column:
    spread = np.where(cases.ep > 1, cases.ep, cases.tp)
    return np.maximum(cases.dp_shard * cases.cp * cases.tp / spread, 1.0)


def on_their_way(cases: Cases, first: bool) -> Column:
    """Micro-batches, in whole stages of layers, that are kept at once."""
    depth = cases.pp if first else np.ones(1)
    chunks = depth * np.where(cases.interleave > 1, 1 + (cases.pp - 1) / (cases.pp * cases.interleave), 1.0)
    return np.minimum(chunks, cases.accumulate)


def _activations(cases: Cases, dense: Column, routed: Column, first: bool) -> Column:
    here, whole = dense + routed, layer_activations(cases, dense, routed)
    inputs = here * cases.between * cases.width * cases.width_bytes
    plain = here * _scores(cases) * cases.width_bytes
    op = np.where(cases.flash > 0, here * _without_elementwise(cases), whole - plain)
    each = np.where(cases.remat == 2, inputs, np.where(cases.remat == 1, op, whole))
    each = (each + (cases.remat_every - 1) * whole) / cases.remat_every
    return each * on_their_way(cases, first) + np.where(cases.remat > 0, whole / here, 0.0)


def layer_activations(cases: Cases, dense: Column, routed: Column) -> Column:
    """Bytes that so many layers keep of a micro-batch."""
    value, tp = cases.width_bytes, cases.tp
    residual = 2 * cases.between * cases.width  # what both norms take
    normed = 2 * cases.between * cases.width
    heads = cases.tokens / tp
    keys = np.where(cases.kv_rank > 0, cases.queries, cases.kv_heads * cases.head_dim)
    values = np.where(cases.kv_rank > 0, cases.values, cases.kv_heads * cases.head_dim)
    latent = np.where(cases.kv_rank > 0, cases.tokens * (cases.q_rank + 2 * cases.kv_rank), 0.0)
    attention = heads * (cases.queries + keys + values + cases.values) + latent
    statistics = heads * cases.heads * _FLOAT32 / value
    mlp = heads * cases.ffn * (2 + cases.gated)
    sent = shapes.routed_tokens(cases)
    ffn = cases.expert_ffn / shapes.expert_divided(cases)
    experts = sent * (cases.width * 2 + ffn * (2 + cases.gated))
    experts = experts + heads * cases.shared_experts * cases.expert_ffn * (2 + cases.gated)
    around = residual + normed + attention + statistics + _scores(cases)
    return value * ((dense + routed) * around + dense * mlp + routed * experts)


def _scores(cases: Cases) -> Column:
    """Values of a layer's scores and softmax, with a byte of dropout for each, where attention writes them."""
    pairs = cases.microbatch * cases.heads / cases.tp * cases.seq_len**2 / cases.cp
    return np.where(cases.flash > 0, 0.0, 2.5 * pairs)


def _without_elementwise(cases: Cases) -> Column:
    """Where products and attention alone keep what they made."""
    made = cases.between * cases.width * 2 + cases.tokens / cases.tp * (
        cases.queries + 2 * cases.kv_heads * cases.head_dim + cases.values + (1 + cases.gated) * cases.ffn
    )
    return cases.width_bytes * (made + cases.between * cases.width)


def _logits(cases: Cases) -> Column:
    """Either the logits, in float32 too, or their gradient beside the head's own, which is added up in float32."""
    values = cases.tokens * cases.vocab / cases.tp
    loss = values * (cases.width_bytes + _FLOAT32)
    head = values * cases.width_bytes + shapes.weights(cases).table * (cases.width_bytes + _FLOAT32)
    return np.maximum(loss, head)
