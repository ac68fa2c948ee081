"""The ranks as meshes: several views of one world, so that what one splits another can split again."""

from __future__ import annotations

import logging
from functools import cached_property

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainyard.job import Layout

# It warns of a gathering over two axes one after the other: only whole weights are gathered so, outside the step.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


class Meshes:
    """Views of the ranks of a layout, in the order pp, dp_replicate, dp_shard, cp, tp, the last varying fastest.

    Every axis has a process group of its own, also where it is alone or of one rank: a profile names it by the axis.
    Made on every rank alike: the first use of a view is collective.
    """

    def __init__(self, layout: Layout, device_type: str) -> None:
        self.layout = layout
        self.world = init_device_mesh(device_type, (layout.ranks,), mesh_dim_names=("world",))

    def _view(self, **axes: int) -> DeviceMesh:
        """The ranks by `axes`, name to size. The backend is named, though it is the world's: without that, torch gives
        an axis that holds all ranks the world's own group, which no profile can tell from any other use of it."""
        backend = dist.get_backend()
        return self.world._unflatten(0, tuple(axes.values()), tuple(axes), dict.fromkeys(axes, backend))

    @cached_property
    def data(self) -> DeviceMesh:
        """pp, dp_replicate, dp_shard (with cp: weights are sharded over both), tp."""
        lay = self.layout
        return self._view(
            pp=lay.pp, dp_replicate=lay.dp_replicate, **{self.shard_name: lay.dp_shard * lay.cp}, tp=lay.tp
        )

    @cached_property
    def sequence(self) -> DeviceMesh:
        """pp, dp_replicate, dp_shard, cp, tp: each alone."""
        lay = self.layout
        return self._view(pp=lay.pp, dp_replicate=lay.dp_replicate, dp_shard=lay.dp_shard, cp=lay.cp, tp=lay.tp)

    @cached_property
    def experts(self) -> DeviceMesh:
        """pp, dp_replicate, dp_shard and cp without what experts borrow, ep, tp."""
        lay = self.layout
        rest = lay.dp_shard * lay.cp // lay.ep
        return self._view(pp=lay.pp, dp_replicate=lay.dp_replicate, dp_shard_ep=rest, ep=lay.ep, tp=lay.tp)

    @property
    def replicate_shard(self) -> DeviceMesh:
        """The two axes over which FSDP2 replicates and shards."""
        return self.data[("dp_replicate", self.shard_name)]

    @property
    def shard_name(self) -> str:
        return "dp_shard_cp" if self.layout.cp > 1 else "dp_shard"

    @property
    def batch_rank(self) -> int:
        """Which share of a step's samples this rank trains on, of `layout.batch_ranks`."""
        view = self.data if self.layout.cp == 1 else self.sequence
        return view.get_local_rank("dp_replicate") * self.layout.dp_shard + view.get_local_rank("dp_shard")
