"""Tensor parallelism: matrices are split by columns, then by rows, so that a pair needs one all-reduce (Shoeybi et al.
2019, arXiv:1909.08053, section 3). With sequence parallelism, activations between the pairs are split by sequence
(Korthikanti et al. 2022, arXiv:2205.05198, section 4.2). With loss parallelism, logits stay split by vocabulary.

Between the split matrices, activations are plain tensors: (B, T, D), or this rank's T / tp positions of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement

from trainyard.errors import BadJob
from trainyard.layout import Layout
from trainyard.train.model.layers import Embedding
from trainyard.train.parallel.mesh import Meshes

_COLUMN_SPLIT = frozenset(("q", "k", "v", "gate", "up"))
"""Linear layers split by output features."""
_ROW_SPLIT = frozenset(("out", "down"))
"""Linear layers split by input features, whose partial outputs are summed."""
_GATHERED = frozenset(("attention", "mlp"))
"""Modules whose input is gathered over the ranks."""
_NORMS = frozenset(("attention_norm", "mlp_norm", "norm"))
_HEAD_NORMS = frozenset(("q_norm", "k_norm"))
"""Norms over the channels of each head."""
_HEAD_DIMENSION = 1
"""The dimension of (B, H, T, C) that is split."""


def split(module: nn.Module, meshes: Meshes) -> None:
    """Splits a decoder, or a stage of one, over `tp`. See rules/tensor_parallel_rules.py for the supported decoders."""
    parallelize_module(module, meshes.data["tp"], plan(module, meshes.layout))


def plan(module: nn.Module, layout: Layout, allow_replicated: bool = False) -> dict[str, ParallelStyle]:
    """The parallel style of each module, chosen by the last part of its name.

    `allow_replicated`: unknown modules are replicated and have the same inputs on every rank. Otherwise raises `BadJob`
    for an unknown module with weights: its replicas would diverge, since ranks see different activations.
    """
    activation_placement = (
        Shard(1) if layout.sequence_parallel else Replicate()
    )  # of activations (B, T, D) between layers
    styles: dict[str, ParallelStyle] = {}  # by module name
    for name, part in module.named_modules():
        last_part = name.rpartition(".")[2]
        if last_part in _COLUMN_SPLIT:
            styles[name] = ColwiseParallel()
        elif last_part in _ROW_SPLIT:
            styles[name] = RowwiseParallel(output_layouts=activation_placement)
        elif last_part in _GATHERED:
            styles[name] = _Gathered(activation_placement)
        elif last_part in _NORMS and layout.sequence_parallel:
            styles[name] = SequenceParallel(use_local_output=True)
        elif last_part in _HEAD_NORMS:
            styles[name] = SequenceParallel(sequence_dim=_HEAD_DIMENSION, use_local_output=True)
        elif last_part == "embed":
            styles[name] = _RowSplitEmbedding(activation_placement)
        elif last_part == "place":
            # Its output is (T, D): a position is the same for all samples.
            styles[name] = _RowSplitEmbedding(Shard(0) if layout.sequence_parallel else Replicate())
        elif last_part == "head":
            styles[name] = _head(part, activation_placement, Shard(-1) if layout.loss_parallel else Replicate())
        elif last_part not in _NORMS and not allow_replicated and any(True for _ in part.parameters(recurse=False)):
            raise BadJob(f"tp = {layout.tp} at $.layout, but no split is defined for {name}.", "Use tp = 1.")
    return styles


def _head(part: nn.Module, activation_placement: Placement, output_placement: Placement) -> ParallelStyle:
    """The style that splits the head (`part`) by vocabulary: a linear layer of its own, or one that is tied to the
    embedding. `activation_placement`: placement of the activations between layers; `output_placement`: of the logits.
    """
    if isinstance(part, nn.Linear):
        return ColwiseParallel(
            input_layouts=activation_placement, output_layouts=output_placement, use_local_output=False
        )
    # Tied: multiplies by this rank's rows of the embedding.
    return PrepareModuleInputOutput(
        input_layouts=(activation_placement,),
        desired_input_layouts=(Replicate(),),
        output_layouts=(Shard(-1),),
        desired_output_layouts=(output_placement,),
        use_local_output=False,
    )


class _RowSplitEmbedding(ParallelStyle):
    """Splits an embedding by rows. Ranks look up their own rows, zeros otherwise, and sum to `output_placement`.

    torch's own style is not used, since it keeps the gradient of all rows on every rank until the end of the step
    (torch 2.13).
    """

    def __init__(self, output_placement: Placement) -> None:
        self.output_placement = output_placement

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Divides the embedding's rows over the mesh and lets each rank look up its own."""

        def divide(_: str, part: nn.Module, mesh: DeviceMesh) -> None:
            for name, parameter in list(part.named_parameters(recurse=False)):
                part.register_parameter(name, nn.Parameter(distribute_tensor(parameter, mesh, (Shard(0),))))

        divided = distribute_module(module, device_mesh, divide)
        divided.forward = partial(_look_up, cast(Embedding, divided), device_mesh, self.output_placement)
        return divided


def _look_up(part: Embedding, mesh: DeviceMesh, output_placement: Placement, tokens: Tensor) -> Tensor:
    """Embedding of tokens (B, T) from this rank's rows, with zeros for tokens of other ranks, then summed over the
    ranks."""
    rows = cast(DTensor, part.weight).to_local()
    # Row numbers in `rows`: DTensor gives each rank ceil(V / ranks) rows, the last ranks fewer.
    local_rows = tokens - mesh.get_local_rank() * -(-part.num_embeddings // mesh.size())
    is_of_other_rank = (local_rows < 0) | (local_rows >= len(rows))
    rows_found = F.embedding(local_rows.masked_fill(is_of_other_rank, 0), rows).masked_fill(
        is_of_other_rank.unsqueeze(-1), 0
    )
    summed = DTensor.from_local(rows_found.to(part.compute_dtype), mesh, (Partial(),), run_check=False)
    return summed.redistribute(placements=(output_placement,)).to_local()


class _Gathered(ParallelStyle):
    """Gathers the first argument, once for all matrices that use it."""

    def __init__(self, activation_placement: Placement) -> None:
        self.activation_placement = activation_placement

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Gathers the module's first input over the mesh before each forward pass."""

        def gather(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            x = DTensor.from_local(args[0], device_mesh, (self.activation_placement,), run_check=False)
            return (x.redistribute(placements=(Replicate(),)), *args[1:])

        module.register_forward_pre_hook(gather)
        return module


def reduce_partial_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Reduces, in place, the gradients that are partial sums: those of replicated weights that each rank applies to its
    own positions. FSDP reduces the gradients of its parameters itself."""
    for parameter in parameters:
        grad = parameter.grad
        if isinstance(parameter, DTensor) and isinstance(grad, DTensor) and grad.placements != parameter.placements:
            parameter.grad = grad.redistribute(placements=parameter.placements)
