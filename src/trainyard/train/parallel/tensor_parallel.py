"""Tensor parallelism: matrices split over ranks, by columns then by rows, so that a pair needs one sum (Shoeybi et al.
2019, arXiv:1909.08053, section 3); with sequence parallelism what lies between pairs is split by sequence (Korthikanti
et al. 2022, arXiv:2205.05198, section 4.2); with loss parallelism the logits stay split by vocabulary.

Between the split matrices activations are plain tensors: all of (B, T, D), or this rank's T / tp positions of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
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
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement

from trainyard.errors import BadJob
from trainyard.job import Layout
from trainyard.train.model.layers import Embedding
from trainyard.train.parallel.mesh import Meshes

_COLUMNS = frozenset(("q", "k", "v", "gate", "up"))
_ROWS = frozenset(("out", "down"))
_GATHERED = frozenset(("attention", "mlp"))
_NORMS = frozenset(("attention_norm", "mlp_norm", "norm"))
_HEAD_NORMS = frozenset(("q_norm", "k_norm"))
_HEADS = 1
"""The dimension of (B, H, T, C) that is split."""


def split(module: nn.Module, meshes: Meshes) -> None:
    """Splits a decoder, or a stage of one, over `tp`. rules/tensor.py says which decoders."""
    parallelize_module(module, meshes.data["tp"], plan(module, meshes.layout))


def plan(module: nn.Module, layout: Layout, rest_alike: bool = False) -> dict[str, ParallelStyle]:
    """What is done to each part, by the last part of its name. `rest_alike`: parts that it does not know are whole on
    every rank and see the same on each. Otherwise raises `BadJob` for one with weights: left as it is, it would train
    on what only this rank sees."""
    between = Shard(1) if layout.sequence_parallel else Replicate()
    styles: dict[str, ParallelStyle] = {}
    for name, part in module.named_modules():
        last = name.rpartition(".")[2]
        if last in _COLUMNS:
            styles[name] = ColwiseParallel()
        elif last in _ROWS:
            styles[name] = RowwiseParallel(output_layouts=between)
        elif last in _GATHERED:
            styles[name] = _Gathered(between)
        elif last in _NORMS and layout.sequence_parallel:
            styles[name] = SequenceParallel(use_local_output=True)
        elif last in _HEAD_NORMS:
            styles[name] = SequenceParallel(sequence_dim=_HEADS, use_local_output=True)
        elif last == "embed":
            styles[name] = _RowSplitEmbedding(between)
        elif last == "place":
            # Its output is (T, D): a position is the same for all samples.
            styles[name] = _RowSplitEmbedding(Shard(0) if layout.sequence_parallel else Replicate())
        elif last == "head":
            styles[name] = _head(part, between, Shard(-1) if layout.loss_parallel else Replicate())
        elif last not in _NORMS and not rest_alike and any(True for _ in part.parameters(recurse=False)):
            raise BadJob(f"tp = {layout.tp} at $.layout, but nothing says how {name} is split.", "Use tp = 1.")
    return styles


def _head(part: nn.Module, between: Placement, kept: Placement) -> ParallelStyle:
    if isinstance(part, nn.Linear):
        return ColwiseParallel(input_layouts=between, output_layouts=kept, use_local_output=False)
    # Tied: it multiplies by the rows that the embedding has been left with.
    return PrepareModuleInputOutput(
        input_layouts=(between,),
        desired_input_layouts=(Replicate(),),
        output_layouts=(Shard(-1),),
        desired_output_layouts=(kept,),
        use_local_output=False,
    )


class _RowSplitEmbedding(ParallelStyle):
    """An embedding's rows are split; every rank looks up what it has, zeros elsewhere, and the sum is `kept` so.

    Not as torch's own style for it, whose gradient is of all rows on every rank until the end of the step (torch 2.13).
    """

    def __init__(self, kept: Placement) -> None:
        self.kept = kept

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def divide(_: str, part: nn.Module, mesh: DeviceMesh) -> None:
            for name, parameter in list(part.named_parameters(recurse=False)):
                part.register_parameter(name, nn.Parameter(distribute_tensor(parameter, mesh, (Shard(0),))))

        divided = distribute_module(module, device_mesh, divide)
        divided.forward = partial(_looked_up, cast(Embedding, divided), device_mesh, self.kept)
        return divided


def _looked_up(part: Embedding, mesh: DeviceMesh, kept: Placement, places: Tensor) -> Tensor:
    rows = cast(DTensor, part.weight).to_local()
    mine = places - mesh.get_local_rank() * -(-part.num_embeddings // mesh.size())
    elsewhere = (mine < 0) | (mine >= len(rows))
    found = F.embedding(mine.masked_fill(elsewhere, 0), rows).masked_fill(elsewhere.unsqueeze(-1), 0)
    summed = DTensor.from_local(found.to(part.computes), mesh, (Partial(),), run_check=False)
    return summed.redistribute(placements=(kept,)).to_local()


class _Gathered(ParallelStyle):
    """The first argument whole on every rank, gathered once for all matrices that take it."""

    def __init__(self, between: Placement) -> None:
        self.between = between

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gather(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
            x = DTensor.from_local(given[0], device_mesh, (self.between,), run_check=False)
            return (x.redistribute(placements=(Replicate(),)), *given[1:])

        module.register_forward_pre_hook(gather)
        return module


def around_loss(layout: Layout) -> AbstractContextManager[object]:
    """Around a loss of logits that are split by vocabulary, and around its backward pass."""
    return loss_parallel() if layout.tp > 1 and layout.loss_parallel else nullcontext()


def plain(x: Tensor) -> Tensor:
    """As a plain tensor where every rank of `tp` has all of it, else as it is."""
    return x.to_local() if isinstance(x, DTensor) and x.placements == (Replicate(),) else x


def settle(parameters: Iterable[nn.Parameter]) -> None:
    """Sums gradients of which each rank has a part (those of weights that all ranks use on positions of their own).
    FSDP does it for what it holds."""
    for parameter in parameters:
        grad = parameter.grad
        if isinstance(parameter, DTensor) and isinstance(grad, DTensor) and grad.placements != parameter.placements:
            parameter.grad = grad.redistribute(placements=parameter.placements)
