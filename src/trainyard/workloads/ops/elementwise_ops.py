"""What lies between a decoder's matrix products: norms, turns, gates, routing, sums. No torch here.

A few FLOPs an element; bytes as fused code would move them: every operand read once and every result written once.
"""

from __future__ import annotations

from trainyard.cost import Operation
from trainyard.job import Model
from trainyard.workloads.ops.matrices import AlikeLayers
from trainyard.workloads.ops.sample_group import SampleGroup

_NORM = {"rms": (4, 8), "layer": (6, 11)}
"""FLOPs an element forward and backward."""
_GATE = {"swiglu": ((5, 3), (9, 5)), "gelu": ((8, 2), (14, 3))}
"""(FLOPs, elements moved) an element of the MLP's inner width, forward and backward."""


def norms(model: Model, ranks: SampleGroup, phase: str, layers: int, last: bool) -> list[Operation]:
    """Before attention and before the MLP in each of `layers`, of heads or latents in them; `last`: at the end too."""
    flops, moved = _NORM[model.norm][phase == "backward"], 3 if phase == "backward" else 2
    made = [ranks.pointwise("norm", phase, 2 * layers + last, model.width, flops, moved, ranks.between)]
    if model.kv_rank:
        latents = [width for width in (model.q_rank, model.kv_rank) if width]
        made += [ranks.pointwise("norm", phase, layers, width, flops, moved, ranks.tp) for width in latents]
    elif model.qk_norm:
        made += [
            ranks.pointwise("norm", phase, layers, heads * model.head_dim, flops, moved)
            for heads in (model.heads, model.kv_heads)
        ]
    return made


def elementwise(model: Model, ranks: SampleGroup, phase: str, kind: AlikeLayers, layers: int) -> list[Operation]:
    """Rotary turns, the MLP's gate, residual sums, of `layers` layers of a kind; with experts, their weighing too."""
    backward = phase == "backward"
    gate_flops, gate_moved = _GATE[model.mlp][backward]
    made = [
        *(turns(model, ranks, phase, layers) if model.position == "rope" else []),
        ranks.pointwise("elementwise", phase, layers, inner(model, kind), gate_flops, gate_moved),
        ranks.pointwise("elementwise", phase, 2 * layers, model.width, 1, 3, ranks.between),
    ]
    if any(matrix.copies > 1 for matrix in kind.matrices):
        flops, moved = (4, 3) if backward else (2, 1)
        made.append(ranks.pointwise("elementwise", phase, layers, model.active * model.width, flops, moved))
    return made


def inner(model: Model, kind: AlikeLayers) -> int:
    """Values a token that go through the gate of the MLP, or of its experts and of what they share."""
    if any(matrix.copies > 1 for matrix in kind.matrices):
        return (model.active + model.shared_experts) * model.expert_ffn
    return model.ffn


def turns(model: Model, ranks: SampleGroup, phase: str, layers: int) -> list[Operation]:
    """Of queries and keys; of latent attention the channels that carry the position, and one key of them for all."""
    heads = model.heads + (1 if model.kv_rank else model.kv_heads)
    channels = model.rope_dim if model.kv_rank else model.head_dim
    return [ranks.pointwise("elementwise", phase, layers, heads * channels, 3, 2)]


def routing(model: Model, ranks: SampleGroup, phase: str, kind: AlikeLayers, layers: int) -> list[Operation]:
    """A score for each expert, the choice of the best, and each token's row to its experts and back."""
    if not any(matrix.copies > 1 for matrix in kind.matrices):
        return []
    return [
        ranks.pointwise("moe_route", phase, layers, model.experts, 6, 4),
        ranks.pointwise("moe_route", phase, 2 * layers, model.active * model.width, 0, 2),
    ]


def biases(ranks: SampleGroup, kind: AlikeLayers, layers: int) -> list[Operation]:
    """Backward, the gradient of a bias is the sum of its result's over all tokens. Forward the product adds it."""
    return [
        ranks.pointwise("reduction", "backward", layers, m.high, 1, 1, 1 if m.split == "columns" else ranks.between)
        for m in kind.matrices
        if m.bias
    ]
