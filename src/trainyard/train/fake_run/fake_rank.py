"""`python -m trainyard.train.fake_run.fake_rank JOB.toml RANK`: runs a step of the real training code of any layout in
one process without allocating memory. Prints the bytes that the rank would allocate (`held_memory.RankMemory`).

Tensors are torch's fake tensors, with shapes and storages but no values; the process group is torch's fake one, whose
collectives return at once. Counts storages, from the operation that creates one until it is freed, without allocator
rounding and fragmentation. Norms and attention save the tensors that an accelerator's fused kernels save.

DTensor's sharding propagation creates fake tensors of the unsharded size, which never exist on a device: they are not
counted.
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
from trainyard.train.fake_run.held_memory import RankMemory
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
from trainyard.train.task import Batch, Task
from trainyard.train.vision import vision_sizes
from trainyard.train.vision.vision_sizes import ResNet, Vit
from trainyard.train.vision.vision_task import Classify


def measure_rank(job: Job, rank: int) -> RankMemory:
    """Measures the memory of `rank` in one step, with tokens balanced over experts. Raises `BadJob` if the job cannot
    run with fake tensors."""
    if setting := held_memory.uncounted_setting(job):
        raise BadJob(setting)
    task, samples = _task_and_samples(job)
    full_job, job = job, _shortened(replace(job, recipe=replace(job.recipe, compile=False)))
    ranks = Ranks(
        rank=rank, local_rank=0, world=job.layout.ranks, local_world=1, vendor="cpu", device=torch.device("cpu")
    )
    fake, storages = FakeTensorMode(allow_non_fake_inputs=True), _Storages()
    with _fake_process_group(ranks), _storage_tracking(storages):
        # Outside the fake mode: device meshes are tensors with values, and DTensors are split from unsharded tensors.
        model = ParallelModel(job, ranks, task, partial(_empty, fake, storages))
        if model.meshes is not None and replicates(job.layout):
            model.meshes.data.get_group("dp_shard")  # create it here: the optimizer uses it inside the fake mode
        with fake, storages:
            memory = _step(job, model, samples, storages)
    return memory._replace(peak=max(memory.peak + _skipped_receive_buffers(full_job, job, model), memory.update))


def _task_and_samples(job: Job) -> tuple[Task, Callable[[int], Batch]]:
    """The task of a job and a function that makes a given number of empty samples. Raises `BadJob` for an unsupported
    workload."""
    if job.workload == "transformer":
        return Language(job), lambda count: _text(count, job.recipe.seq_len)
    if job.workload == "vision":
        image_sizes: Vit | ResNet = convert(job, *vision_sizes.KINDS)
        return Classify(job, image_sizes), lambda count: _images(count, image_sizes)
    if job.workload == "diffusion":
        latent_sizes: Dit | UNet = convert(job, *diffusion_sizes.KINDS)
        return Denoise(job, latent_sizes), lambda count: _latents(count, latent_sizes)
    raise BadJob(f"workload = {job.workload!r}: a fake run supports transformer, vision and diffusion only.")


def _text(sample_count: int, seq_len: int) -> Batch:
    """Empty tokens and targets (samples, seq_len)."""
    tokens = torch.empty(sample_count, seq_len, dtype=torch.long)
    return Batch((tokens,), (torch.empty_like(tokens),))


def _images(sample_count: int, sizes: Vit | ResNet) -> Batch:
    """Empty images (samples, channels, rows, columns) and class labels (samples)."""
    images = torch.empty(sample_count, sizes.channels, sizes.image, sizes.image)
    return Batch((images,), (torch.empty(sample_count, dtype=torch.long),))


def _latents(sample_count: int, sizes: Dit | UNet) -> Batch:
    """Empty inputs of a denoiser: latents, times, text and, for a `Dit`, pooled text; and targets with the shape of the
    latents."""
    latents = torch.empty(sample_count, sizes.channels, sizes.latent, sizes.latent)
    inputs = (latents, torch.empty(sample_count), torch.empty(sample_count, sizes.text_tokens, sizes.text_width))
    inputs += (torch.empty(sample_count, sizes.pooled_width),) if isinstance(sizes, Dit) else ()
    return Batch(inputs, (torch.empty_like(latents),))


def _shortened(job: Job) -> Job:
    """The job with only as many micro-batches as its memory needs to reach the peak, so that the run is shorter: two
    for each stage of the pipeline. Unchanged if the schedule keeps all micro-batches in flight."""
    layout, recipe = job.layout, job.recipe
    if recipe.schedule in ("gpipe", "looped_bfs"):
        return job  # all micro-batches are in flight at once
    micro_batches = 2 * layout.pp * layout.interleave
    tokens = recipe.tokens_per_step // job.accumulate * min(job.accumulate, micro_batches)
    return replace(job, recipe=replace(recipe, tokens_per_step=tokens))


def _skipped_receive_buffers(full_job: Job, shortened: Job, model: ParallelModel) -> int:
    """Bytes of the pipeline's receive buffers for the micro-batches that the `shortened` job leaves out of `full_job`:
    a stage has a buffer per micro-batch and neighbour, and all of them exist at once."""
    if model.pipeline is None:
        return 0
    message_bytes = sum(part.nbytes for part in Language(full_job).stage_activations(full_job.recipe.micro_batch_size))
    last_stage = full_job.layout.pp * full_job.layout.interleave - 1
    neighbour_count = sum((number > 0) + (number < last_stage) for number in model.pipeline.modules)
    return (full_job.accumulate - shortened.accumulate) * message_bytes * neighbour_count


def _step(job: Job, model: ParallelModel, samples: Callable[[int], Batch], storages: _Storages) -> RankMemory:
    """Runs a step and returns its memory. The optimizer creates its state at the end of this first step; as it exists
    in the backward pass of every later step, it is added to that peak. `samples`: number of samples to an empty batch.
    """
    optimizer = make_optimizer.make(model.modules, job.recipe, model.meshes)
    _avoid_value_reads(model)
    parameter_bytes = storages.live_bytes
    batch = samples(job.batch // job.layout.batch_ranks)
    input_bytes = storages.live_bytes - parameter_bytes
    if replicates(job.layout):  # DDP's gradient buckets exist even before a gradient is added
        for parameter in model.parameters:
            parameter.grad = torch.zeros_like(parameter)
    model.forward_backward(batch)
    gradient_bytes = storages.live_bytes - parameter_bytes - input_bytes
    backward_peak_bytes = storages.take_peak_bytes()  # and starts a new peak
    gradient_clipping.scale(
        model.parameters,
        gradient_clipping.clip_factor(
            gradient_clipping.total_norm(model.parameters, model.meshes), job.recipe.max_norm
        ),
    )
    bytes_before = storages.live_bytes
    optimizer.step()
    state_bytes, update_peak_bytes = storages.live_bytes - bytes_before, storages.take_peak_bytes()
    return RankMemory(
        parameters=parameter_bytes,
        gradients=gradient_bytes,
        optimizer=state_bytes,
        peak=max(backward_peak_bytes + state_bytes, update_peak_bytes),
        update=update_peak_bytes,
    )


def _empty(
    fake: FakeTensorMode, storages: _Storages, module: nn.Module, _: Task, device: torch.device, __: bool
) -> None:
    """Gives the module's parameters fake storages without values, in place of initial weights."""
    with fake, storages:
        module.to_empty(device=device)


def _avoid_value_reads(model: ParallelModel) -> None:
    """Replaces the code of `model` that reads values of tensors, which fake tensors lack: in a pipeline, the number of
    the micro-batch that a loss belongs to; in expert parallelism, the token counts per expert."""
    pipeline = model.pipeline
    if pipeline is not None:
        pipeline.loss = lambda outputs, number: model.task.loss(outputs, pipeline.targets[0]) / len(pipeline.targets)
    for module in model.modules:
        for part in module.modules():
            if isinstance(part, Moe) and isinstance(part.dispatch, Exchange):
                part.dispatch = partial(_dispatch_evenly, part.dispatch.group)


def _dispatch_evenly(group: dist.ProcessGroup, experts: Experts, x_ND: Tensor, counts_E: Tensor) -> Tensor:
    """Expert-parallel dispatch of tokens `x_ND` with the same number of them to every rank, since fake tensors have no
    counts to read. Stands in for `expert_parallel.Exchange`.

    Returns the experts' outputs (N, D). `counts_E`: tokens of each expert of all ranks, whose values are not read. The
    permutation `order` only has the right length, for the memory of the copies.
    """
    splits = [len(x_ND) // group.size()] * group.size()
    order = torch.arange(sum(splits))
    x = exchange(x_ND, group, splits, splits)
    y = experts(x.index_select(0, order), counts_E[: len(counts_E) // group.size()])
    return exchange(y.index_select(0, inverse(order)), group, splits, splits)


class _Storages(TorchDispatchMode):
    """Counts the bytes of the fake storages that torch operations create while this context is active: `live_bytes`
    now, and `peak_bytes`, their maximum since the last `take_peak_bytes`."""

    def __init__(self) -> None:
        """`ignores_new`: whether new storages are not counted at present."""
        super().__init__()
        self.live_bytes = self.peak_bytes = 0
        self.ignores_new = False
        self.bytes_by_storage: dict[int, int] = {}
        """Bytes of each live storage by its address."""
        self.references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        """By address of a live storage, the reference whose callback reports its end."""

    def take_peak_bytes(self) -> int:
        """The peak so far; the next peak starts at the bytes that are live now."""
        peak_bytes, self.peak_bytes = self.peak_bytes, self.live_bytes
        return peak_bytes

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs an operation of torch and tracks the storages of the tensors that it returns."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # operations on the local tensors are dispatched here
        out = func(*args, **(kwargs or {}))
        for value in () if self.ignores_new else tree_leaves(out):
            if isinstance(value, FakeTensor) and value.device.type != "meta":
                self._track(value.untyped_storage())
        return out

    def _track(self, storage: torch.UntypedStorage) -> None:
        """Counts a new storage until it is freed. A storage that is counted already is ignored."""
        key = storage._cdata  # address of the C++ object
        if key not in self.bytes_by_storage:
            self.bytes_by_storage[key] = 0
            self.references[key] = weakref.ref(storage, lambda _: self._free(key))
            self.update_size(storage)

    def _free(self, key: int) -> None:
        """Stops counting the storage with the address `key`."""
        self.live_bytes -= self.bytes_by_storage.pop(key)
        del self.references[key]

    def update_size(self, storage: torch.UntypedStorage) -> None:
        """Counts a tracked storage with its present size, and updates the peak. It is called after a resize, since FSDP
        frees gathered weights by resizing their storage to 0. Storages that are not tracked are ignored."""
        key = storage._cdata
        if key in self.bytes_by_storage:
            self.live_bytes += storage.nbytes() - self.bytes_by_storage[key]
            self.bytes_by_storage[key] = storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)


@contextmanager
def _storage_tracking(storages: _Storages) -> Iterator[None]:
    """Context in which `storages` is updated when a storage is resized, and does not count the unsharded tensors that
    DTensor's sharding propagation creates. Within it, DDP's reducer and the exchange of shapes between stages, which
    fake tensors do not support, are left out, and norms and attention save as much as an accelerator's."""
    resize = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        """Resizes a storage as torch does, then counts its new size."""
        result = resize(storage, size)
        storages.update_size(storage)
        return result

    propagate = ShardingPropagator._propagate_tensor_meta_non_cached

    def propagate_uncounted(propagator: ShardingPropagator, *args: Any) -> Any:
        """Propagates shardings without counting the global tensors that DTensor makes for it."""
        ignored_new, storages.ignores_new = storages.ignores_new, True
        try:
            return propagate(propagator, *args)
        finally:
            storages.ignores_new = ignored_new

    with (
        mock.patch.object(PipelineSchedule, _SHAPE_EXCHANGE, _skip_shape_exchange),
        mock.patch.object(F, "rms_norm", _fused_norm),
        mock.patch.object(Core, "forward", partialmethod(partial(_attention, Core.forward))),
        mock.patch.object(data_parallelism, "replicate", lambda module, _: module),
        mock.patch.object(torch.UntypedStorage, "resize_", resize_),
        mock.patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", propagate_uncounted),
    ):
        yield


_SHAPE_EXCHANGE = (
    "_warmup_p2p" if hasattr(PipelineSchedule, "_warmup_p2p") else "_initialize_pipeline_distributed_state"
)
"""Method of torch's schedules in which stages agree on shapes; renamed in torch 2.15."""


def _skip_shape_exchange(_: object, stages: Iterable[Any], *__: object) -> None:
    """Replaces the stages' exchange of shapes: all of them were given static shapes."""
    for stage in stages:
        stage._inference_mode = InferenceMode.STATIC


class _FusedNorm(torch.autograd.Function):
    """An accelerator's norm, which saves its input and one float32 per row. The CPU saves float32 input and output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class _FusedAttention(torch.autograd.Function):
    """Attention with values narrower than keys, fused as on an accelerator; the CPU materializes the scores."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors[:3])


def _attention(core_forward: Any, core: Core, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Replaces `Core.forward` (`core_forward`): fused attention also for values that are narrower than the keys."""
    if q.shape[-1] == v.shape[-1]:
        return core_forward(core, q, k, v)
    return _FusedAttention.apply(q, k, v)  # pyright: ignore[reportReturnType]


def _fused_norm(x: Tensor, _: object, weight: Tensor, __: float) -> Tensor:
    """Replaces `F.rms_norm` by a norm that saves as much as an accelerator's."""
    return _FusedNorm.apply(x, weight)  # pyright: ignore[reportReturnType]


@contextmanager
def _fake_process_group(ranks: Ranks) -> Iterator[None]:
    """Context with a fake process group, whose collectives return at once."""
    if ranks.world == 1:
        yield
        return
    dist.init_process_group("fake", store=FakeStore(), rank=ranks.rank, world_size=ranks.world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def main(path: Path, rank: int) -> None:
    """Prints the memory of one rank of the job at `path` as JSON, or why the job cannot run."""
    try:
        memory = measure_rank(jobs.load(path), rank)
    except BadJob as error:
        held_memory.refuse_job(error)
    else:
        sys.stdout.write(msgspec.json.encode(memory).decode() + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
