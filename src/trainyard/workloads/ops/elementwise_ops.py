"""Operations between a decoder's matrix products: norms, rotary embeddings, gates, routing, residuals. Needs no torch.

A few FLOPs per element. Bytes as fused code moves them: every operand read once and every result written once. A sample
group is the ranks that process the same samples (tp x cp x pp); operations are summed over its ranks and over a step.
`group.pointwise` makes an operation on `width` values per token: `flops` and `moved` values per value, `repeats` ranks
of the group that repeat it.
"""

from __future__ import annotations

from trainyard.cost import Operation
from trainyard.model import Model
from trainyard.workloads.ops.matrices import LayerGroup
from trainyard.workloads.ops.sample_group import SampleGroup

_NORM = {"rms": (4, 8), "layer": (6, 11)}
"""(forward, backward) FLOPs per element, by type of norm."""
_GATE = {"swiglu": ((5, 3), (9, 5)), "gelu": ((8, 2), (14, 3))}
"""By type of MLP: (forward, backward), each (FLOPs, elements moved) per element of the MLP's inner width."""


def norms(model: Model, group: SampleGroup, phase: str, layers: int, last: bool) -> list[Operation]:
    """The norms before attention and MLP of `layers` layers, and those of heads or latents. `last`: also the final
    norm."""
    flops, moved = _NORM[model.norm][phase == "backward"], 3 if phase == "backward" else 2
    operations = [
        group.pointwise(
            "norm",
            phase,
            calls=2 * layers + last,
            width=model.hidden_size,
            flops=flops,
            moved=moved,
            repeats=group.repeating_ranks,
        )
    ]
    if model.kv_lora_rank:
        latents = [width for width in (model.q_lora_rank, model.kv_lora_rank) if width]
        operations += [
            group.pointwise("norm", phase, calls=layers, width=width, flops=flops, moved=moved, repeats=group.tp)
            for width in latents
        ]
    elif model.qk_norm:
        operations += [
            group.pointwise("norm", phase, calls=layers, width=heads * model.head_dim, flops=flops, moved=moved)
            for heads in (model.heads, model.kv_heads)
        ]
    return operations


def elementwise(model: Model, group: SampleGroup, phase: str, layer_group: LayerGroup, layers: int) -> list[Operation]:
    """Rotary embeddings, MLP gates and residual sums of `layers` layers; with experts also their gate weights."""
    backward = phase == "backward"
    gate_flops, gate_moved = _GATE[model.mlp][backward]
    operations = [  # rotary embeddings, the MLP's gate, and two residual sums per layer
        *(rotary(model, group, phase, layers) if model.position == "rope" else []),
        group.pointwise(
            "elementwise",
            phase,
            calls=layers,
            width=gated_width(model, layer_group),
            flops=gate_flops,
            moved=gate_moved,
        ),
        group.pointwise(
            "elementwise",
            phase,
            calls=2 * layers,
            width=model.hidden_size,
            flops=1,
            moved=3,
            repeats=group.repeating_ranks,
        ),
    ]
    if any(matrix.expert_count > 1 for matrix in layer_group.matrices):  # the experts' results, weighted and summed
        flops, moved = (4, 3) if backward else (2, 1)
        operations.append(
            group.pointwise(
                "elementwise", phase, calls=layers, width=model.top_k * model.hidden_size, flops=flops, moved=moved
            )
        )
    return operations


def gated_width(model: Model, layer_group: LayerGroup) -> int:
    """Values per token and layer that pass the gate of the MLP, or of the routed and shared experts."""
    if any(matrix.expert_count > 1 for matrix in layer_group.matrices):
        return (model.top_k + model.shared_experts) * model.moe_ffn_hidden_size
    return model.ffn_hidden_size


def rotary(model: Model, group: SampleGroup, phase: str, layers: int) -> list[Operation]:
    """Rotary embeddings of queries and keys; for latent attention of the rotary channels and one key for all heads."""
    heads = model.heads + (1 if model.kv_lora_rank else model.kv_heads)
    channels = model.qk_rope_head_dim if model.kv_lora_rank else model.head_dim
    return [group.pointwise("elementwise", phase, calls=layers, width=heads * channels, flops=3, moved=2)]


def routing(model: Model, group: SampleGroup, phase: str, layer_group: LayerGroup, layers: int) -> list[Operation]:
    """Expert scores, top-k selection, and moving each token's row to its experts and back; empty for layers without
    experts."""
    if not any(matrix.expert_count > 1 for matrix in layer_group.matrices):
        return []
    return [
        group.pointwise("moe_route", phase, calls=layers, width=model.experts, flops=6, moved=4),
        group.pointwise("moe_route", phase, calls=2 * layers, width=model.top_k * model.hidden_size, flops=0, moved=2),
    ]


def biases(group: SampleGroup, layer_group: LayerGroup, layers: int) -> list[Operation]:
    """Bias gradients: sums of the output gradient over all tokens. In the forward pass the product adds the bias."""
    return [
        group.pointwise(
            "reduction",
            "backward",
            calls=layers,
            width=matrix.width_out,
            flops=1,
            moved=1,
            repeats=1 if matrix.split == "columns" else group.repeating_ranks,
        )
        for matrix in layer_group.matrices
        if matrix.bias
    ]
