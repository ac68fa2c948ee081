"""`python -m trainyard.train.fake_run.fake_rank JOB.toml RANK`: a step of the real training code of any layout,
on one process and without memory. Prints how many bytes the rank would have (`exact.Held`).

Tensors are torch's fake ones, which have shapes and storages but no values; the process group is torch's fake one,
whose collectives return at once. What is counted are storages, from the operation that makes one until it is freed;
what an allocator rounds and wastes is not in it. Norms and attention keep what an accelerator's fused kernels keep.

What torch computes to learn how a DTensor's operation is sharded is done at the size of the whole model and never
exists on a device: it is not counted.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial, partialmethod
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import torch
import torch.distributed as dist
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.pipelining._utils import InferenceMode
from torch.distributed.pipelining.schedules import _PipelineSchedule as PipelineSchedule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainyard import job_file as jobs
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.train.diffusion import diffusion_sizes
from trainyard.train.diffusion.diffusion_sizes import Dit, UNet
from trainyard.train.diffusion.diffusion_task import Denoise
from trainyard.train.fake_run import held_memory
from trainyard.train.fake_run.held_memory import Held
from trainyard.train.model.attention import Core
from trainyard.train.model.language_task import Language
from trainyard.train.model.moe import Experts, Moe, inverse
from trainyard.train.optimizers import make_optimizer
from trainyard.train.parallel import data_parallelism
from trainyard.train.parallel.differentiable_collectives import exchange
from trainyard.train.parallel.expert_parallel import Exchange
from trainyard.train.parallel.parallelize import ParallelModel
from trainyard.train.process_group import Ranks
from trainyard.train.rules.data_parallel_rules import replicates
from trainyard.train.sizes import convert
from trainyard.train.step import gradient_clipping
from trainyard.train.step.trainer import CLIP
from trainyard.train.task import Batch, Task
from trainyard.train.vision import vision_sizes
from trainyard.train.vision.vision_sizes import ResNet, Vit
from trainyard.train.vision.vision_task import Classify


def held(job: Job, rank: int) -> Held:
    """What `rank` of a job holds. Experts get as many tokens each. Raises `BadJob` for what has no fake."""
    _check(job)
    task, samples = _trained(job)
    whole_job, job = job, _shortened(replace(job, recipe=replace(job.recipe, compile=False)))
    ranks = Ranks(rank, 0, job.layout.ranks, 1, "cpu", torch.device("cpu"))
    fake, storages = FakeTensorMode(allow_non_fake_inputs=True), _Storages()
    with _world(ranks), _unseen(storages):
        # Outside the fake mode: meshes are tensors with values, and DTensors are split as if they were whole.
        model = ParallelModel(job, ranks, task, partial(_empty, fake, storages))
        if model.meshes is not None and replicates(job.layout):
            model.meshes.data.get_group("dp_shard")  # the optimizer asks for it, in the fake mode
        with fake, storages:
            memory = _step(job, model, samples, storages)
    return memory._replace(peak=max(memory.peak + _waiting(whole_job, job, model), memory.update))


def _trained(job: Job) -> tuple[Task, Callable[[int], Batch]]:
    """The task of a job, and so many empty samples of it. Raises `BadJob` for another workload."""
    if job.workload == "transformer":
        return Language(job), lambda many: _text(many, job.recipe.seq_len)
    if job.workload == "vision":
        pictures: Vit | ResNet = convert(job, *vision_sizes.KINDS)
        return Classify(job, pictures), lambda many: _pictures(many, pictures)
    if job.workload == "diffusion":
        latents: Dit | UNet = convert(job, *diffusion_sizes.KINDS)
        return Denoise(job, latents), lambda many: _latents(many, latents)
    raise BadJob(f"workload = {job.workload!r}: a fake run is of a decoder, of vision or of diffusion.")


def _text(many: int, length: int) -> Batch:
    places = torch.empty(many, length, dtype=torch.long)
    return Batch((places,), (torch.empty_like(places),))


def _pictures(many: int, sizes: Vit | ResNet) -> Batch:
    images = torch.empty(many, sizes.channels, sizes.image, sizes.image)
    return Batch((images,), (torch.empty(many, dtype=torch.long),))


def _latents(many: int, sizes: Dit | UNet) -> Batch:
    latents = torch.empty(many, sizes.channels, sizes.latent, sizes.latent)
    given = (latents, torch.empty(many), torch.empty(many, sizes.text_tokens, sizes.text_width))
    given += (torch.empty(many, sizes.pooled_width),) if isinstance(sizes, Dit) else ()
    return Batch(given, (torch.empty_like(latents),))


def _check(job: Job) -> None:
    if job.recipe.offload:
        raise BadJob("offload = true at $.recipe: a fake run does not tell the host's memory from a device's.")
    if job.recipe.dtype == "float8":
        raise BadJob("dtype = 'float8' at $.recipe: a fake run has no values to scale.", "Use dtype = 'bfloat16'.")


def _shortened(job: Job) -> Job:
    """With no more micro-batches than it takes until memory is at its fullest."""
    layout, recipe = job.layout, job.recipe
    if recipe.schedule in ("gpipe", "looped_bfs"):
        return job  # all are on their way at once
    enough = 2 * layout.pp * layout.interleave
    tokens = recipe.tokens_per_step // job.accumulate * min(job.accumulate, enough)
    return replace(job, recipe=replace(recipe, tokens_per_step=tokens))


def _waiting(whole_job: Job, shortened: Job, model: ParallelModel) -> int:
    """Bytes of room that a pipeline has for what micro-batches hand on that were left out: all have theirs at once."""
    if model.pipeline is None:
        return 0
    handed_bytes = sum(part.nbytes for part in Language(whole_job).handed(whole_job.recipe.microbatch))
    last = whole_job.layout.pp * whole_job.layout.interleave - 1
    neighbours = sum((number > 0) + (number < last) for number in model.pipeline.modules)
    return (whole_job.accumulate - shortened.accumulate) * handed_bytes * neighbours


def _step(job: Job, model: ParallelModel, samples: Callable[[int], Batch], storages: _Storages) -> Held:
    """Of the first step, to whose backward pass the state is added that later ones have."""
    optimizer = make_optimizer.make(model.modules, job.recipe, model.meshes)
    _evenly(model)
    parameters = storages.now
    batch = samples(job.batch // job.layout.batch_ranks)
    given = storages.now - parameters
    if replicates(job.layout):  # whose gradients lie in buckets, also while nothing has been added to them
        for parameter in model.parameters:
            parameter.grad = torch.zeros_like(parameter)
    model.forward_backward(batch)
    gradients, backward = storages.now - parameters - given, storages.forget_peak()
    gradient_clipping.scale(
        model.parameters,
        (CLIP / (gradient_clipping.total_norm(model.parameters, model.meshes) + 1e-6)).clamp(max=1.0),
    )
    before = storages.now
    optimizer.step()
    state, update = storages.now - before, storages.forget_peak()
    return Held(parameters, gradients, state, max(backward + state, update), update)


def _empty(
    fake: FakeTensorMode, storages: _Storages, module: nn.Module, _: Task, device: torch.device, __: bool
) -> None:
    with fake, storages:
        module.to_empty(device=device)


def _evenly(model: ParallelModel) -> None:
    """In the place of what would look at a value: how many tokens go where, and which micro-batch a loss is of."""
    pipeline = model.pipeline
    if pipeline is not None:
        pipeline.loss = lambda outputs, number: model.task.loss(outputs, pipeline.targets[0]) / len(pipeline.targets)
    for module in model.modules:
        for part in module.modules():
            if isinstance(part, Moe) and isinstance(part.dispatch, Exchange):
                part.dispatch = partial(_even, part.dispatch.group)


def _even(group: dist.ProcessGroup, experts: Experts, x_ND: Tensor, counts_E: Tensor) -> Tensor:
    each = [len(x_ND) // group.size()] * group.size()
    order = torch.arange(sum(each))
    x = exchange(x_ND, group, each, each)
    y = experts(x.index_select(0, order), counts_E[: len(counts_E) // group.size()])
    return exchange(y.index_select(0, inverse(order)), group, each, each)


class _Storages(TorchDispatchMode):
    """Bytes of the fake storages that are alive: `now`, and at most since the last `forget_peak`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.blind = False
        self.sizes: dict[int, int] = {}
        self.alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def forget_peak(self) -> int:
        peak, self.peak = self.peak, self.now
        return peak

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # what it does with its parts comes by here
        out = func(*args, **(kwargs or {}))
        for value in () if self.blind else tree_leaves(out):
            if isinstance(value, FakeTensor) and value.device.type != "meta":
                self._see(value.untyped_storage())
        return out

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.sizes:
            self.sizes[key] = 0
            self.alive[key] = weakref.ref(storage, lambda _: self._gone(key))
            self.resized(storage)

    def _gone(self, key: int) -> None:
        self.now -= self.sizes.pop(key)
        del self.alive[key]

    def resized(self, storage: torch.UntypedStorage) -> None:
        """FSDP frees what it gathered by leaving its storage without bytes."""
        key = storage._cdata
        if key in self.sizes:
            self.now += storage.nbytes() - self.sizes[key]
            self.sizes[key] = storage.nbytes()
            self.peak = max(self.peak, self.now)


@contextmanager
def _unseen(storages: _Storages) -> Iterator[None]:
    """Inside, `storages` hears of storages that change their size, and not of what exists to learn a shape only; and
    torch's reducer, which no fake can enter, is left out."""
    resize = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        done = resize(storage, size)
        storages.resized(storage)
        return done

    learn = ShardingPropagator._propagate_tensor_meta_non_cached

    def blindly(propagator: ShardingPropagator, *args: Any) -> Any:
        before, storages.blind = storages.blind, True
        try:
            return learn(propagator, *args)
        finally:
            storages.blind = before

    with (
        mock.patch.object(PipelineSchedule, "_warmup_p2p", _agreed),
        mock.patch.object(F, "rms_norm", _fused_norm),
        mock.patch.object(Core, "forward", partialmethod(partial(_attention, Core.forward))),
        mock.patch.object(data_parallelism, "replicate", lambda module, _: module),
        mock.patch.object(torch.UntypedStorage, "resize_", resize_),
        mock.patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", blindly),
    ):
        yield


def _agreed(_: object, stages: Iterable[Any], *__: object) -> None:
    """What stages find out by asking each other: that all of them were told what they hand on."""
    for stage in stages:
        stage._inference_mode = InferenceMode.STATIC


class _FusedNorm(torch.autograd.Function):
    """An accelerator's: it keeps its input and a float32 a row. The CPU's keeps the input and the result in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class _FusedAttention(torch.autograd.Function):
    """Where values are narrower than keys: an accelerator's kernel takes that, and the CPU's writes its scores."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors[:3])


def _attention(whole: Any, core: Core, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if q.shape[-1] == v.shape[-1]:
        return whole(core, q, k, v)
    return _FusedAttention.apply(q, k, v)  # pyright: ignore[reportReturnType]


def _fused_norm(x: Tensor, _: object, weight: Tensor, __: float) -> Tensor:
    return _FusedNorm.apply(x, weight)  # pyright: ignore[reportReturnType]


@contextmanager
def _world(ranks: Ranks) -> Iterator[None]:
    """Inside, this process is one of so many, and the others answer at once."""
    if ranks.world == 1:
        yield
        return
    dist.init_process_group("fake", store=FakeStore(), rank=ranks.rank, world_size=ranks.world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def main(path: Path, rank: int) -> None:
    try:
        found = held(jobs.load(path), rank)
    except BadJob as why:
        held_memory.refuse(why)
    else:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
