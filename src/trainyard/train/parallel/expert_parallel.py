"""Expert parallelism: experts are split over the `ep` ranks, and tokens are sent to them and back (Lepikhin et al.
2020, arXiv:2006.16668, section 3.2). Dropless: ranks exchange as many tokens as they have for each other.

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
    """Keeps this rank's experts of every layer, and sets the process groups that routers reduce over."""
    layout = meshes.layout
    # Creating the mesh is collective, so ranks whose pipeline stage has no experts create it too.
    mesh = meshes.experts["ep"] if layout.ep > 1 else None
    for part in module.modules():
        if isinstance(part, Decoder):
            part.token_groups = _token_groups(meshes)
        if isinstance(part, Router) and layout.cp > 1:
            part.load.peers = meshes.sequence.get_group("cp")
        if isinstance(part, Moe) and mesh is not None:
            _shard_experts(part.experts, mesh)
            part.dispatch = Exchange(mesh.get_group())


def _token_groups(meshes: Meshes) -> list[dist.ProcessGroup]:
    """Process groups of the axes whose ranks train on different tokens."""
    layout = meshes.layout
    sizes = {"dp_replicate": layout.dp_replicate, meshes.shard_name: layout.dp_shard * layout.cp}
    return [meshes.data.get_group(axis) for axis, size in sizes.items() if size > 1]


def _shard_experts(experts: Experts, mesh: DeviceMesh) -> None:
    """Replaces the stacked matrices of E experts in place by DTensors with this rank's E / R of them."""
    for name, parameter in list(experts.named_parameters()):
        local = parameter.detach().chunk(mesh.size())[mesh.get_local_rank()].clone()
        setattr(experts, name, nn.Parameter(DTensor.from_local(local, mesh, (Shard(0),), run_check=False)))


def shard(blocks: Iterable[nn.Module], meshes: Meshes, policy: MixedPrecisionPolicy, reshard: bool) -> None:
    """Shards experts over the ranks that have the same ones. Their mesh differs from that of the blocks, so they must
    be sharded first. `reshard`: whether gathered weights are freed after the forward pass."""
    layout = meshes.layout
    axes = ("dp_replicate", "dp_shard_ep") if layout.dp_replicate > 1 else "dp_shard_ep"
    for block in blocks:
        for part in block.modules():
            if isinstance(part, Experts):
                sharded = fully_shard(
                    part,
                    mesh=meshes.experts[axes],
                    mp_policy=policy,
                    reshard_after_forward=reshard,
                    shard_placement_fn=lambda _: Shard(1),  # by rows: ep has split dimension 0, the experts
                )
                # An expert's gradient includes the tokens of all ranks, not only those of its mesh.
                sharded.set_gradient_divide_factor(layout.token_ranks)
                # gloo has no scaled reduction. With a single rank there is no reduction, and torch 2.13 would divide
                # twice.
                sharded.set_force_sum_reduction_for_comms(meshes.experts["dp_shard_ep"].size() > 1)


class Exchange:
    """A `Dispatch`: sends tokens to the ranks of their experts, and the results back."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def __call__(self, experts: Experts, x_ND: Tensor, counts_E: Tensor) -> Tensor:
        """Sends rows of tokens (N, D), ordered by expert, to the ranks that own the experts, runs those, and returns
        their outputs (N, D) in the same order. `counts_E`: rows per expert; R ranks own e experts each."""
        send_Re = counts_E.unflatten(0, (self.group.size(), -1))
        receive_Re = torch.empty_like(send_Re)
        dist.all_to_all_single(receive_Re, send_Re, group=self.group)
        # Rows per rank are arguments of the all-to-all on the host: one copy from the device for both directions.
        send_counts, receive_counts = torch.stack((send_Re, receive_Re)).sum(dim=2).tolist()
        x = exchange(x_ND, self.group, send_counts, receive_counts)
        # Received rows are ordered by rank, then by expert.
        expert = torch.arange(receive_Re.numel(), device=x.device).remainder(receive_Re.shape[1])
        order = expert.repeat_interleave(receive_Re.flatten(), output_size=len(x)).argsort(stable=True)
        y = experts(x.index_select(0, order), receive_Re.sum(dim=0))
        return exchange(y.index_select(0, inverse(order)), self.group, receive_counts, send_counts)
