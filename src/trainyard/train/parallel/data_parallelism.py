"""Data parallelism: replicated (DDP; ZeRO-1 too), sharded (FSDP2: ZeRO-2 and 3), both (HSDP)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from trainyard.layout import Layout
from trainyard.train.parallel import expert_parallel
from trainyard.train.parallel.mesh import Meshes
from trainyard.train.task import Ends, SelfSharded


def replicate(module: nn.Module, meshes: Meshes) -> nn.Module:
    """Wraps a module in DDP over the data-parallel ranks. Nothing is broadcast: the seed gives every rank equal initial
    weights, and the modules keep their buffers equal. Parameters of `SelfSharded` modules are left out."""
    layout = meshes.layout
    axes = [axis for axis in ("dp_replicate", "dp_shard") if getattr(layout, axis) > 1]
    group = meshes.data.get_group(axes[0]) if len(axes) == 1 else meshes.world.get_group()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, list(_self_sharded_parameters(module)))
    replicated = DistributedDataParallel(
        module,
        process_group=group,
        init_sync=False,
        gradient_as_bucket_view=True,
        bucket_cap_mb=layout.bucket_cap_mb,
    )
    replicated.broadcast_buffers = False  # the name of the argument differs between torch versions
    return replicated


def shard(
    module: nn.Module,
    blocks: Iterable[nn.Module],
    ends: Ends,
    meshes: Meshes,
    dtype: torch.dtype,
    offload: bool,
) -> None:
    """Shards a module in place by FSDP2, in the units of torchtitan (arXiv:2410.06511): the embedding, each block, the
    last norm and the head together, and the rest. A unit gathers its weights in the compute dtype `dtype`; gradients
    are reduced in float32. `ends`: the modules outside the blocks that form units.

    The embedding and the blocks free their weights after the forward pass if the layout reshards. Norm and head are
    needed at once for the backward pass, and keep theirs unless `reshard_after_forward` is `always`. The rest, which is
    the root of the units, always keeps its weights.

    `offload`: weights, gradients and optimizer state stay in host memory, where the update runs.

    A pipeline stage gathers its weights once for all micro-batches: torch keeps them gathered after a backward pass,
    and a split backward pass (zero bubble) does not produce gradients of resharded weights.
    """
    # No module here modifies its input in place, which is what torch warns of if a unit's output is a view.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    offload_policy = CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if offload else OffloadPolicy()
    layout = meshes.layout
    mesh = meshes.replicate_shard if layout.dp_replicate > 1 else meshes.data[meshes.shard_name]
    blocks, ignored = list(blocks), set(_self_sharded_parameters(module).values())
    if layout.ep > 1:
        expert_parallel.shard(blocks, meshes, policy, layout.reshards)
    reshards_last = layout.reshard_after_forward == "always"
    parts = [
        (ends.first, layout.reshards),
        *(([block], layout.reshards) for block in blocks),
        (ends.last, reshards_last),
    ]
    units = [(list(modules), reshards) for modules, reshards in parts if modules]
    for modules, reshards in (*units, ([module], False)):
        fully_shard(
            modules,
            mesh=mesh,
            mp_policy=policy,
            reshard_after_forward=reshards,
            offload_policy=offload_policy,
            ignored_params=ignored,
        )
    _set_prefetching([modules for modules, _ in units], layout)


def _set_prefetching(units: Sequence[Sequence[nn.Module]], layout: Layout) -> None:
    """Makes each unit, while it computes, gather the layout's number of next units. `units`: modules of each FSDP unit,
    in the order of the forward pass. A unit inside another (experts) is gathered with it. Depths that are torch's own
    (none forward, one backward) are left to torch."""
    sharded = [
        [part for module in modules for part in module.modules() if isinstance(part, FSDPModule)] for modules in units
    ]

    def gathered(numbers: Iterable[int]) -> list[FSDPModule]:
        """The FSDP modules of the units with these numbers, those of several modules once."""
        parts = [part for number in numbers for part in sharded[number]]
        return list({id(fully_shard.state(part)): part for part in parts}.values())  # pyright: ignore[reportFunctionMemberAccess]

    for number, parts in enumerate(sharded):
        if layout.forward_prefetch:
            after = range(number + 1, min(number + 1 + layout.forward_prefetch, len(sharded)))
            parts[0].set_modules_to_forward_prefetch(gathered(after))
        if layout.backward_prefetch > 1:
            before = range(number - 1, max(number - 1 - layout.backward_prefetch, -1), -1)
            parts[0].set_modules_to_backward_prefetch(gathered(before))


def _self_sharded_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that `SelfSharded` modules shard themselves, by name."""
    parts = [name for name, part in module.named_modules() if isinstance(part, SelfSharded)]
    return {
        f"{part}.{name}": parameter
        for part in parts
        for name, parameter in module.get_submodule(part).named_parameters()
    }
