"""A data-parallel training step of a transformer on synthetic ranks, with hooks in which causes are planted.

Lengths, sizes and habits (a value read at the end of a step, how far the host is ahead) are drawn for each job, so that
no two jobs are equal. Without a planted cause, compute takes nearly all of a step.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from validation.synthetic.timeline import BACKWARD_THREAD, COMM, COMPUTE, MAIN_THREAD, Program, Rank, Transfer, simulate

US, MS = 1e3, 1e6
DEVICES = {
    "NVIDIA A100-SXM4-80GB": "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn",
    "NVIDIA H100 80GB HBM3": "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas",
}
"""Device -> the name of its matrix kernel in bfloat16."""
_ATTENTION = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)"
_NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int)"
_GELU = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>(int)"
_ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)"
_FUSED_ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>(int)"
_LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
BUCKET_BYTES = 40_000_000
_BUCKET_LAYERS = 2


class Plant:
    """A job without a planted cause; subclasses plant one by overriding hooks, which are called at the same places of
    each rank's program. `ns` arguments and results are lengths."""

    world: int | None = None
    """Number of ranks, if the cause needs a certain one."""
    steps: int | None = None
    marks: bool | None = None
    """Whether the file marks the steps, if the cause depends on it."""
    right: tuple[str, ...] = ()
    """The rules, or `rule/subdivision of its account`, whose findings name the cause."""

    def __init__(self, rng: np.random.Generator, world: int) -> None:
        self.rng, self.jobs_world = rng, world
        self.draw()

    def draw(self) -> None:
        """Draws the cause's size and position."""

    def size(self, low: float, high: float) -> float:
        """A length drawn between `low` and `high`."""
        return float(self.rng.uniform(low, high))

    def before_step(self, rank: Rank, step: int) -> None:
        """Before the first span of a step."""

    def before_op(self, rank: Rank, step: int, position: int) -> None:
        """Before each op of the forward and backward pass; `position`: its number in the step."""

    def after_op(self, rank: Rank, step: int, position: int) -> None:
        """After each op of the forward and backward pass."""

    def after_step(self, rank: Rank, step: int) -> None:
        """After the optimizer."""

    def kernel(self, rank: Rank, step: int, name: str, ns: float) -> tuple[str, float]:
        """The name and length of each kernel."""
        return name, ns

    def host(self, rank: Rank, step: int, ns: float) -> float:
        """The host's time in each op."""
        return ns

    def python(self, rank: Rank, step: int, ns: float) -> float:
        """The host's time between two ops."""
        return ns

    def loader(self, rank: Rank, step: int, ns: float) -> float:
        """The host's time to get a batch."""
        return ns

    def communication(self, rank: Rank, step: int, ns: float) -> float:
        """The length of each all-reduce."""
        return ns

    def transfer(self, rank: Rank, step: int, ns: float) -> tuple[str, float]:
        """The name and length of the batch's copy."""
        return "Memcpy HtoD (Pinned -> Device)", ns

    def bucket_bytes(self) -> float:
        """The size of a gradient bucket."""
        return BUCKET_BYTES

    def optimizer(self, job: Job, rank: Rank, step: int) -> None:
        """The parameter update."""
        job.op(rank, step, "aten::_fused_adamw_", [(_FUSED_ADAM, 180 * US)] * 3)


class Job:
    """A job with a planted cause: its sizes, drawn from `rng`. `marks`: whether the file marks the steps."""

    def __init__(self, plant: type[Plant], rng: np.random.Generator) -> None:
        self.rng = rng
        self.world = plant.world or int(rng.choice([2, 2, 4]))
        self.steps = plant.steps or int(rng.integers(5, 8))
        self.layers = int(rng.integers(3, 6))
        self.scale = float(rng.uniform(0.6, 1.6))
        self.spread = float(rng.uniform(0.01, 0.08))
        self.op_ns = float(rng.uniform(18, 45)) * US
        self.python_ns = float(rng.uniform(3, 12)) * US
        self.reads_loss = bool(rng.random() < 0.4)
        self.reading_costs_ns = 0.0
        self.marks = bool(rng.random() < 0.9) if plant.marks is None else plant.marks
        self.device = str(rng.choice(list(DEVICES)))
        self.matmul = DEVICES[self.device]
        self.plant = plant(rng, self.world)

    def run(self) -> list[Rank]:
        """Simulates the job; returns its ranks."""
        ranks = [
            Rank(number, self.world, np.random.default_rng(self.rng.integers(2**63)), self.spread)
            for number in range(self.world)
        ]
        simulate(ranks, [self.program(rank) for rank in ranks])
        return ranks

    @staticmethod
    def length_ns(ranks: Sequence[Rank]) -> float:
        """The time from the first rank's start to the last rank's end."""
        return max(max(rank.free.values()) for rank in ranks) - min(rank.began for rank in ranks)

    def program(self, rank: Rank) -> Program:
        """The program of a rank: all steps."""
        for step in range(self.steps):
            rank.wait(rank.vary(2 * US))
            if self.marks:
                with rank.span(f"ProfilerStep#{step}", "user_annotation"):
                    yield from self.step(rank, step)
            else:
                yield from self.step(rank, step)

    def step(self, rank: Rank, step: int) -> Program:
        """One step of a rank: batch, forward, backward with all-reduces of buckets, update."""
        plant = self.plant
        plant.before_step(rank, step)
        with rank.span(_LOADER, "user_annotation"):
            rank.wait(plant.loader(rank, step, rank.vary(90 * US)))
        with rank.span("aten::copy_"):
            name, ns = plant.transfer(rank, step, rank.vary(60 * US))
            rank.launch(name, ns, call="cudaMemcpyAsync", category="gpu_memcpy", bytes=4_000_000)
        position = yield from self.forward(rank, step)
        yield from self.backward(rank, step, position)
        with rank.span("Optimizer.step#AdamW.step", "user_annotation"):
            plant.optimizer(self, rank, step)
        if self.reads_loss:
            with rank.span("aten::item"), rank.span("aten::_local_scalar_dense"):
                rank.synchronise()
        plant.after_step(rank, step)

    def forward(self, rank: Rank, step: int) -> Generator[Transfer, None, int]:
        """The forward pass; returns the number of its ops."""
        position = 0
        for _ in range(self.layers):
            for name, kernels in self.layer_ops():
                self.positioned_op(rank, step, position, name, kernels)
                position += 1
        return position
        yield

    def layer_ops(self) -> list[tuple[str, list[tuple[str, float]]]]:
        """The ops of a layer's forward pass, each with its kernels."""
        return [
            ("aten::layer_norm", [(_NORM, 70 * US)]),
            ("aten::linear", [(self.matmul, 420 * US)]),
            ("aten::_flash_attention_forward", [(_ATTENTION, 260 * US)]),
            ("aten::linear", [(self.matmul, 330 * US)]),
            ("aten::add", [(_ADD, 50 * US)]),
            ("aten::gelu", [(_GELU, 60 * US)]),
        ]

    def backward(self, rank: Rank, step: int, position: int) -> Program:
        """The backward pass on the engine's thread: each op takes twice as long as its forward; buckets of two layers
        are all-reduced as soon as they are complete, and the update waits for all of them."""
        rank.thread = BACKWARD_THREAD
        pending: list[Transfer] = []
        for layer in reversed(range(self.layers)):
            for name, kernels in reversed(self.layer_ops()):
                backward = f"autograd::engine::evaluate_function: {name.removeprefix('aten::').capitalize()}Backward0"
                longer = [(kernel, 2 * ns) for kernel, ns in kernels]
                self.positioned_op(rank, step, position, backward, longer)
                position += 1
            if layer % _BUCKET_LAYERS == 0:
                pending.extend(self.reduce_bucket(rank, step, layer))
        rank.thread = MAIN_THREAD
        for transfer in pending:
            yield transfer
            rank.free[COMPUTE] = max(rank.free[COMPUTE], transfer.end or 0.0)

    def reduce_bucket(self, rank: Rank, step: int, layer: int) -> Sequence[Transfer]:
        """All-reduces the gradients of a bucket; returns the transfers that the update waits for."""
        size = self.plant.bucket_bytes()
        ns = self.plant.communication(rank, step, rank.vary(30 * US + size / 200))
        transfer = Transfer(f"all_reduce {step} {layer}", range(self.world), ns)
        return [self.all_reduce(rank, transfer, int(size / 2))]

    def all_reduce(self, rank: Rank, transfer: Transfer, elements: int) -> Transfer:
        """Issues an all-reduce of `elements` bfloat16 numbers."""
        with rank.span("c10d::allreduce_"):
            rank.wait(rank.vary(15 * US))
            return rank.issue(
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", transfer, COMM,
                **{"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements},
            )  # fmt: skip

    def positioned_op(
        self, rank: Rank, step: int, position: int, name: str, kernels: Sequence[tuple[str, float]]
    ) -> None:
        """An op of the forward or backward pass, with the plant's hooks around it."""
        self.plant.before_op(rank, step, position)
        self.op(rank, step, name, kernels)
        self.plant.after_op(rank, step, position)

    def op(self, rank: Rank, step: int, name: str, kernels: Sequence[tuple[str, float]]) -> None:
        """An op that launches kernels, and the host's time after it."""
        with rank.span(name):
            rank.wait(self.plant.host(rank, step, rank.vary(self.op_ns, 0.2)))
            for kernel, ns in kernels:
                planted, planted_ns = self.plant.kernel(rank, step, kernel, rank.vary(ns * self.scale))
                rank.launch(planted, planted_ns)
        rank.wait(self.plant.python(rank, step, rank.vary(self.python_ns, 0.3)))
