"""Expert parallelism: experts divided over the ranks of `ep`, to which tokens travel and return (Lepikhin et al. 2020,
arXiv:2006.16668, section 3.2). No token is dropped: ranks send as many as they have for each other.

Shapes: N tokens, D width, R ranks, E experts, e = E / R experts of a rank.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from trainyard.train.model.decoder import Decoder
from trainyard.train.model.moe import Experts, Moe, inverse
from trainyard.train.model.router import Router
from trainyard.train.parallel.differentiable_collectives import exchange
from trainyard.train.parallel.mesh import Meshes


def split(module: nn.Module, meshes: Meshes) -> None:
    """Leaves each rank its part of the experts of every layer, and tells routers who has parts of their sequences."""
    layout = meshes.layout
    # Made on every rank, also on one whose stage of a pipeline has no experts: making it is collective.
    mesh = meshes.experts["ep"] if layout.ep > 1 else None
    for part in module.modules():
        if isinstance(part, Decoder):
            part.token_groups = _token_groups(meshes)
        if isinstance(part, Router) and layout.cp > 1:
            part.load.peers = meshes.sequence.get_group("cp")
        if isinstance(part, Moe) and mesh is not None:
            _divide(part.experts, mesh)
            part.dispatch = Exchange(mesh.get_group())


def _token_groups(meshes: Meshes) -> list[dist.ProcessGroup]:
    """The ranks that train on other tokens, by axis."""
    layout = meshes.layout
    sizes = {"dp_replicate": layout.dp_replicate, meshes.shard_name: layout.dp_shard * layout.cp}
    return [meshes.data.get_group(axis) for axis, size in sizes.items() if size > 1]


def _divide(experts: Experts, mesh: DeviceMesh) -> None:
    for name, parameter in list(experts.named_parameters()):
        mine = parameter.detach().chunk(mesh.size())[mesh.get_local_rank()].clone()
        setattr(experts, name, nn.Parameter(DTensor.from_local(mine, mesh, (Shard(0),), run_check=False)))


def shard(blocks: Iterable[nn.Module], meshes: Meshes, policy: MixedPrecisionPolicy, reshard: bool) -> None:
    """Shards experts over the ranks that have the same ones: a mesh of their own, so before the blocks around them."""
    layout = meshes.layout
    axes = ("dp_replicate", "dp_shard_ep") if layout.dp_replicate > 1 else "dp_shard_ep"
    for block in blocks:
        for part in block.modules():
            if isinstance(part, Experts):
                made = fully_shard(
                    part,
                    mesh=meshes.experts[axes],
                    mp_policy=policy,
                    reshard_after_forward=reshard,
                    shard_placement_fn=lambda _: Shard(1),  # rows of each expert: ep has split them by expert
                )
                # An expert's gradient has the tokens of all ranks in it, not of its own mesh alone.
                made.set_gradient_divide_factor(layout.token_ranks)
                # gloo cannot scale while it sums; a rank that shares with nobody sums nothing, and then torch 2.13
                # would divide twice.
                made.set_force_sum_reduction_for_comms(meshes.experts["dp_shard_ep"].size() > 1)


class Exchange:
    """A `Dispatch`: sends tokens to the ranks of their experts, and the results back."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def __call__(self, experts: Experts, x_ND: Tensor, counts_E: Tensor) -> Tensor:
        leaving_Re = counts_E.unflatten(0, (self.group.size(), -1))
        coming_Re = torch.empty_like(leaving_Re)
        dist.all_to_all_single(coming_Re, leaving_Re, group=self.group)
        leaving, coming = (counts.sum(dim=1).tolist() for counts in (leaving_Re, coming_Re))
        x = exchange(x_ND, self.group, leaving, coming)
        # They come by rank, and by expert from each rank.
        expert = torch.arange(coming_Re.numel(), device=x.device).remainder(coming_Re.shape[1])
        order = expert.repeat_interleave(coming_Re.flatten(), output_size=len(x)).argsort(stable=True)
        y = experts(x.index_select(0, order), coming_Re.sum(dim=0))
        return exchange(y.index_select(0, inverse(order)), self.group, coming, leaving)
