"""The device meshes of a layout: several views of one mesh of all ranks, with different axes, so that the axes of one
view can be subdivided in another (dp_shard and cp in `data`, dp_shard_ep and ep in `experts`)."""

from __future__ import annotations

import logging
from functools import cached_property

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainyard.layout import Layout

# It warns about all-gathers over two axes in turn, which only occur outside the step, for unsharded weights.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


class Meshes:
    """Views of the ranks of a layout, in the order pp, dp_replicate, dp_shard, cp, tp, the last varying fastest.

    Every axis has its own process group, even if it is the only axis or has one rank, so that profiles name it by the
    axis. The first use of a view is collective.
    """

    def __init__(self, layout: Layout, device_type: str) -> None:
        self.layout = layout
        self.world = init_device_mesh(device_type, (layout.ranks,), mesh_dim_names=("world",))

    def _view(self, **axes: int) -> DeviceMesh:
        """A view by `axes` (name to size). The backend is passed explicitly: otherwise torch reuses the world group for
        an axis over all ranks, and profiles cannot distinguish the two."""
        backend = dist.get_backend()
        return self.world._unflatten(0, tuple(axes.values()), tuple(axes), dict.fromkeys(axes, backend))

    @cached_property
    def data(self) -> DeviceMesh:
        """Axes pp, dp_replicate, dp_shard (including cp: weights are sharded over both), tp."""
        lay = self.layout
        return self._view(
            pp=lay.pp, dp_replicate=lay.dp_replicate, **{self.shard_name: lay.dp_shard * lay.cp}, tp=lay.tp
        )

    @cached_property
    def sequence(self) -> DeviceMesh:
        """Axes pp, dp_replicate, dp_shard, cp, tp."""
        lay = self.layout
        return self._view(pp=lay.pp, dp_replicate=lay.dp_replicate, dp_shard=lay.dp_shard, cp=lay.cp, tp=lay.tp)

    @cached_property
    def experts(self) -> DeviceMesh:
        """Axes pp, dp_replicate, dp_shard_ep (dp_shard and cp, divided by ep), ep, tp."""
        lay = self.layout
        rest = lay.dp_shard * lay.cp // lay.ep
        return self._view(pp=lay.pp, dp_replicate=lay.dp_replicate, dp_shard_ep=rest, ep=lay.ep, tp=lay.tp)

    @property
    def replicate_shard(self) -> DeviceMesh:
        """The axes over which FSDP2 replicates and shards (HSDP)."""
        return self.data[("dp_replicate", self.shard_name)]

    @property
    def leads_stages(self) -> bool:
        """Whether this rank is the first of those with the same pipeline stages."""
        return not any(self.data.get_local_rank(axis) for axis in ("dp_replicate", self.shard_name, "tp"))

    @property
    def shard_name(self) -> str:
        return "dp_shard_cp" if self.layout.cp > 1 else "dp_shard"

    @property
    def batch_rank(self) -> int:
        """Index of this rank's share of a step's samples, of `layout.batch_ranks`."""
        view = self.data if self.layout.cp == 1 else self.sequence
        return view.get_local_rank("dp_replicate") * self.layout.dp_shard + view.get_local_rank("dp_shard")
