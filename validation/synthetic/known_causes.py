"""Planted causes that a rule was written for. `right`: the rules whose finding names the cause."""

from __future__ import annotations

from collections.abc import Generator
from typing import cast

from validation.synthetic.timeline import COMPUTE, RECEIVE, SEND, Program, Rank, Transfer
from validation.synthetic.training import MS, US, Job, Plant

_ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}>(int)"


class DataWait(Plant):
    """The loader is slow, in every step or in most."""

    right = ("data_wait",)

    def draw(self) -> None:
        self.ns, self.share = self.size(8, 40) * MS, self.size(0.6, 1.0)

    def loader(self, rank: Rank, step: int, ns: float) -> float:
        return ns + (rank.vary(self.ns, 0.3) if rank.rng.random() < self.share else 0.0)


class ValueReads(Plant):
    """`.item()` after some ops of each step."""

    right = ("sync_in_step",)

    def draw(self) -> None:
        self.every, self.ns = int(self.rng.integers(1, 5)), self.size(20, 100) * US

    def after_op(self, rank: Rank, step: int, position: int) -> None:
        if position % self.every == 0:
            with rank.span("aten::item"), rank.span("aten::_local_scalar_dense"):
                rank.launch("Memcpy DtoH (Device -> Pinned)", 1.5 * US, call="cudaMemcpyAsync", category="gpu_memcpy")
                rank.synchronise()
            rank.wait(rank.vary(self.ns, 0.2))


class AllocatorChurn(Plant):
    """cudaFree and cudaMalloc in each step, at places that vary."""

    right = ("allocator_churn",)

    def draw(self) -> None:
        self.ns, self.chance = self.size(1, 4) * MS, self.size(0.15, 0.4)

    def before_op(self, rank: Rank, step: int, position: int) -> None:
        if rank.rng.random() < self.chance:
            rank.call("cudaFree" if rank.rng.random() < 0.5 else "cudaMalloc", rank.vary(self.ns, 0.4))


class Collector(Plant):
    """Python's garbage collector runs once or twice a step, and is recorded."""

    right = ("gc_pauses", "imbalance", "straggler")

    def draw(self) -> None:
        self.ns, self.places = self.size(8, 40) * MS, int(self.rng.integers(1, 3))

    def before_op(self, rank: Rank, step: int, position: int) -> None:
        if position < self.places:
            rank.call("Python GC", rank.vary(self.ns, 0.3), "python_function")


class SlowPython(Plant):
    """The interpreter takes long between ops."""

    right = ("launch_bound/python",)

    def draw(self) -> None:
        self.ns = self.size(300, 1_500) * US

    def python(self, rank: Rank, step: int, ns: float) -> float:
        return ns + rank.vary(self.ns, 0.2)


class SlowDispatch(Plant):
    """The framework takes long in each op."""

    right = ("launch_bound/launch",)

    def draw(self) -> None:
        self.ns = self.size(400, 1_500) * US

    def host(self, rank: Rank, step: int, ns: float) -> float:
        return ns + rank.vary(self.ns, 0.2)


class TinyKernels(Plant):
    """Hundreds of small ops in a row."""

    right = ("tiny_kernels", "launch_bound/launch")

    def draw(self) -> None:
        self.count = int(self.rng.integers(600, 1_500))

    def after_step(self, rank: Rank, step: int) -> None:
        for _ in range(self.count):
            with rank.span("aten::add_"):
                rank.wait(4 * US)
                rank.launch(_ELEMENTWISE.format("CUDAFunctor_add<float>"), 2 * US, call_ns=4 * US)


class PlainOptimizer(Plant):
    """An update of several kernels a tensor."""

    right = ("optimizer_not_fused", "tiny_kernels")

    def draw(self) -> None:
        self.tensors, self.ns = int(self.rng.integers(150, 300)), self.size(40, 80) * US

    def optimizer(self, job: Job, rank: Rank, step: int) -> None:
        for _ in range(self.tensors):
            for name in ("aten::mul_", "aten::addcmul_", "aten::addcdiv_"):
                with rank.span(name):
                    rank.wait(rank.vary(self.ns, 0.2))
                    rank.launch(_ELEMENTWISE.format(name.removeprefix("aten::")), rank.vary(6 * US))


class Float32(Plant):
    """Matrix products in float32."""

    right = ("wrong_precision",)

    def kernel(self, rank: Rank, step: int, name: str, ns: float) -> tuple[str, float]:
        if "gemm" in name:
            return "ampere_sgemm_128x64_tn", ns * 4
        return name, ns


class ExposedAllReduce(Plant):
    """Gradients take longer to reduce than the backward pass takes."""

    right = ("exposed_all_reduce",)

    def draw(self) -> None:
        self.factor = self.size(6, 25)

    def communication(self, rank: Rank, step: int, ns: float) -> float:
        return ns * self.factor


class ComputeStraggler(Plant):
    """One rank's kernels take longer."""

    right = ("straggler",)

    def draw(self) -> None:
        self.late, self.factor = int(self.rng.integers(self.jobs_world)), self.size(1.2, 1.8)

    def kernel(self, rank: Rank, step: int, name: str, ns: float) -> tuple[str, float]:
        return name, ns * self.factor if rank.number == self.late else ns


class HostStraggler(Plant):
    """One rank's host does something else before each step."""

    right = ("straggler",)

    def draw(self) -> None:
        self.late, self.ns = int(self.rng.integers(self.jobs_world)), self.size(5, 25) * MS

    def before_step(self, rank: Rank, step: int) -> None:
        if rank.number == self.late:
            rank.wait(rank.vary(self.ns, 0.2))


class SlowLink(Plant):
    """Pairs of ranks all-gather parameters; one pair's link is slow."""

    right = ("slow_link", "exposed_all_gather", "straggler", "imbalance")
    world, steps = 6, 5

    def draw(self) -> None:
        self.pair, self.factor = int(self.rng.integers(3)), self.size(2.5, 6)
        self.ns = self.size(250, 500) * US


class ShardedJob(Job):
    """A job whose pairs of ranks all-gather the parameters of each layer before they use them."""

    def forward(self, rank: Rank, step: int) -> Generator[Transfer, None, int]:
        plant = cast(SlowLink, self.plant)
        position = 0
        for layer in range(self.layers):
            pair = rank.number // 2
            ns = rank.vary(plant.ns, 0.05) * (plant.factor if pair == plant.pair else 1.0)
            transfer = Transfer(f"gather {pair} {step} {layer}", (2 * pair, 2 * pair + 1), ns)
            with rank.span("c10d::_allgather_base_"):
                rank.issue(
                    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", transfer, 30 + pair,
                    **{"Collective name": "_allgather_base", "In msg nelems": 4_000_000, "Out msg nelems": 8_000_000},
                )  # fmt: skip
            yield transfer
            rank.free[COMPUTE] = max(rank.free[COMPUTE], transfer.end or 0.0)
            for name, kernels in self.layer_ops():
                self.positioned_op(rank, step, position, name, kernels)
                position += 1
        return position


class SmallMessages(Plant):
    """Each gradient is reduced alone after the backward pass."""

    right = ("small_messages", "exposed_all_reduce")

    def draw(self) -> None:
        self.count, self.ns = int(self.rng.integers(40, 120)), self.size(30, 60) * US

    def optimizer(self, job: Job, rank: Rank, step: int) -> None:
        for number in range(self.count):
            transfer = Transfer(f"small {step} {number}", range(rank.world), rank.vary(self.ns, 0.1))
            job.all_reduce(rank, transfer, 8_000)
        super().optimizer(job, rank, step)


class Checkpoint(Plant):
    """A checkpoint is saved in one or two steps, and the step waits for it."""

    right = ("checkpoint_stall",)

    def draw(self) -> None:
        self.ns, self.every = self.size(40, 200) * MS, int(self.rng.integers(2, 5))

    def after_step(self, rank: Rank, step: int) -> None:
        if step % self.every == 1:
            with rank.span("torch/serialization.py(600): save", "python_function"):
                rank.synchronise()
                rank.wait(rank.vary(self.ns, 0.1))


class Recompilation(Plant):
    """torch.compile recompiles in some steps after the first."""

    right = ("recompilation",)

    def draw(self) -> None:
        self.ns, self.chance = self.size(50, 400) * MS, self.size(0.3, 0.8)
        self.chosen = set(self.rng.permutation(range(2, 8))[: max(1, int(6 * self.chance))].tolist()) | {2}

    def before_op(self, rank: Rank, step: int, position: int) -> None:
        if position == 3 and step in self.chosen:
            rank.call("_compile.compile_inner (dynamo_timed)", rank.vary(self.ns, 0.2))


class LayoutCopies(Plant):
    """Convolutions convert between layouts before and after."""

    right = ("layout_copies",)

    def after_op(self, rank: Rank, step: int, position: int) -> None:
        with rank.span("aten::cudnn_convolution"):
            rank.launch("void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false>(int)", rank.vary(90 * US))


class PageableCopies(Plant):
    """The batch is copied from pageable memory."""

    right = ("host_device_thrash", "sync_in_step")

    def draw(self) -> None:
        self.ns = self.size(2, 8) * MS

    def transfer(self, rank: Rank, step: int, ns: float) -> tuple[str, float]:
        return "Memcpy HtoD (Pageable -> Device)", rank.vary(self.ns, 0.1)


class ElementwiseChain(Plant):
    """A hand-written activation of several elementwise kernels after each op."""

    right = ("unfused_elementwise",)
    _NAMES = ("pow", "mul", "tanh", "add", "sigmoid", "div")

    def draw(self) -> None:
        self.ns = self.size(40, 120) * US

    def after_op(self, rank: Rank, step: int, position: int) -> None:
        if position % 2 == 0:
            for name in self._NAMES:
                with rank.span(f"aten::{name}"):
                    rank.wait(rank.vary(10 * US))
                    rank.launch(_ELEMENTWISE.format(f"{name}_kernel"), rank.vary(self.ns))


class ContextCreation(Plant):
    """The first cudaFree creates a context, and the first launch of a kernel loads a library; the file has no marks."""

    right = ("start_up",)
    marks = False

    def draw(self) -> None:
        self.free_ns, self.load_ns = self.size(200, 6_000) * MS, self.size(50, 3_000) * MS

    def before_op(self, rank: Rank, step: int, position: int) -> None:
        if step == 0 and position == 1:
            rank.call("cudaFree", rank.vary(self.free_ns, 0.2))

    def after_op(self, rank: Rank, step: int, position: int) -> None:
        if step == 0 and position == 2:
            rank.launch("void fancy::new_kernel<float>(int)", 80 * US, call_ns=rank.vary(self.load_ns, 0.2))


class UnevenSequences(Plant):
    """Batches are packed by number of sequences, so that attention takes longer on one rank or another."""

    right = ("imbalance",)
    op_class = "Attention"

    def draw(self) -> None:
        self.most = self.size(4, 10)
        self.factors: dict[tuple[int, int], float] = {}

    def kernel(self, rank: Rank, step: int, name: str, ns: float) -> tuple[str, float]:
        if "flash" not in name:
            return name, ns
        return name, ns * self.factors.setdefault((rank.number, step), float(rank.rng.uniform(1, self.most)))


class PipelineBubble(Plant):
    """Two stages with few micro-batches."""

    right = ("pipeline_bubble", "exposed_send_recv")
    world = 2

    def draw(self) -> None:
        self.micro_batches = int(self.rng.integers(1, 5))


class PipelineJob(Job):
    """A job of two pipeline stages: all forwards, then all backwards of its micro-batches."""

    def step(self, rank: Rank, step: int) -> Program:
        plant = cast(PipelineBubble, self.plant)
        plant.before_step(rank, step)
        for direction in ("forward", "backward"):
            first = (rank.number == 0) == (direction == "forward")
            for batch in range(plant.micro_batches):
                key = f"{direction} {step} {batch}"
                if not first:
                    received = self.exchange(rank, key, RECEIVE)
                    yield received
                    rank.free[COMPUTE] = max(rank.free[COMPUTE], received.end or 0.0)
                for name, kernels in self.layer_ops():
                    self.positioned_op(rank, step, 0, name, kernels)
                if first:
                    self.exchange(rank, key, SEND)
        with rank.span("Optimizer.step#AdamW.step", "user_annotation"):
            plant.optimizer(self, rank, step)

    def exchange(self, rank: Rank, key: str, stream: int) -> Transfer:
        """One end of a transfer to or from the other stage."""
        transfer = Transfer(key, (0, 1), rank.vary(40 * US))
        args = {"Collective name": "send", "Dst Rank": 1 - rank.number}
        if stream == RECEIVE:
            args = {"Collective name": "recv", "Src Rank": 1 - rank.number}
        return rank.issue("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", transfer, stream, **args)


JOBS: dict[type[Plant], type[Job]] = {SlowLink: ShardedJob, PipelineBubble: PipelineJob}
"""Kinds that need a job of another layout."""
KNOWN = {
    kind.__name__: kind
    for kind in (
        DataWait, ValueReads, AllocatorChurn, Collector, SlowPython, SlowDispatch, TinyKernels, PlainOptimizer, Float32,
        ExposedAllReduce, ComputeStraggler, HostStraggler, SlowLink, SmallMessages, Checkpoint, Recompilation,
        LayoutCopies, PageableCopies, ElementwiseChain, ContextCreation, UnevenSequences, PipelineBubble,
    )
}  # fmt: skip
