"""The dense jobs that `make device-evidence` chooses from: what each needs of memory and time, and its job file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trainyard import job_file as jobs
from trainyard.job import Job
from trainyard.machine import find_device
from trainyard.units import show_size
from trainyard.workloads.ops import transformer_ops

STATE_BYTES = 16
"""A parameter's float32 weight, gradient and two moments."""
BLOCK_BYTES = 16
"""For each parameter of one block: what FSDP gathers ahead, or the cast copies, and gradients on their way."""
TOKEN_BYTES = 160
"""For each token of a micro-batch and channel of the width: one block's activations, counted from the model
(attention 27, rotary positions in float32 25, the gated part 28), and as much again for their gradients."""
USABLE = 0.9
"""Usable fraction of a device's memory; the rest is for driver, libraries and fragmentation."""
DRAW_S = 12e-9
"""A parameter's random number, drawn on one core of the host."""
START_S = 45.0
"""Importing torch in two processes, the matmul probe, profiling and booking."""
COMPILE_S = 45.0
"""Compiling one block, forward and backward; the others reuse it."""
SUSTAINED = 0.35
"""Assumed fraction of the stated peak, a conservative estimate."""
UNKNOWN_PEAK = 100e12
"""bfloat16 FLOP/s taken for a device that no machine file knows."""


class Size(NamedTuple):
    """A decoder with gated feed-forward, four query heads to a key/value head of 128."""

    layers: int
    width: int


SIZES = (
    Size(32, 4096),
    Size(24, 4096),
    Size(16, 4096),
    Size(12, 4096),
    Size(8, 4096),
    Size(24, 2048),
    Size(16, 2048),
    Size(12, 1024),
    Size(6, 512),
)
"""The blocks of width 4096 are those of Llama 3 8B; narrower models are for smaller devices."""


class Variant(NamedTuple):
    """How a job is trained, and the largest width that is tried."""

    dtype: str = "bfloat16"
    compiled: bool = False
    width: int = 4096

    def __str__(self) -> str:
        return f"{self.width}-{self.dtype}-{'compiled' if self.compiled else 'eager'}"


EAGER = Variant()


class Need(NamedTuple):
    """Bytes of memory on each rank, by use."""

    state: int
    block: int
    activations: int

    def __str__(self) -> str:
        parts = f"state {show_size(self.state)} + a block {show_size(self.block)}"
        return f"{parts} + activations {show_size(self.activations)} = {show_size(sum(self))}"


def fitting(
    ranks: int, memory: int, peak: float, seconds: float, variant: Variant = EAGER
) -> Iterator[tuple[Job, str]]:
    """The jobs that should fit in `memory` (bytes a device) and `seconds`, largest first, each with its arithmetic."""
    for size in SIZES:
        if size.width > variant.width:
            continue
        job = jobs.parse(job_text(size, ranks, variant), f"dense {size.layers} x {size.width}")
        need, lasts = memory_of(job), seconds_of(job, peak)
        if sum(need) <= USABLE * memory and lasts <= seconds:
            yield job, f"{need} of {USABLE:.0%} of {show_size(memory)}, about {lasts:.0f} s"


def memory_of(job: Job) -> Need:
    parameters, ranks = transformer_ops.parameters(job.decoder), job.layout.ranks
    tokens = job.recipe.micro_batch_size * job.recipe.seq_len
    return Need(
        state=STATE_BYTES * parameters // ranks,
        block=BLOCK_BYTES * parameters // job.decoder.layers,
        # Blocks keep their input (two bytes a channel) and compute the rest again, one block at a time.
        activations=tokens * job.decoder.hidden_size * (2 * job.decoder.layers + TOKEN_BYTES),
    )


def seconds_of(job: Job, peak: float) -> float:
    """About how long the whole run lasts at `peak` (FLOP/s a rank)."""
    again = 4 / 3  # the forward pass once more
    step_s = again * transformer_ops.model_flops(job) / job.layout.ranks / (SUSTAINED * peak)
    compile_s = COMPILE_S if job.recipe.compile else 0.0
    return START_S + compile_s + DRAW_S * transformer_ops.parameters(job.decoder) + job.measure.in_all * step_s


def peak_of(name: str) -> float:
    """bfloat16 FLOP/s of the device that a driver calls `name`."""
    device = find_device(name)
    claim = device.peak.get("bfloat16") if device else None
    return claim.value if claim else UNKNOWN_PEAK


def job_text(size: Size, ranks: int, variant: Variant = EAGER) -> str:
    """A job file of 8,192 tokens a rank and step, sharded over all ranks."""
    heads = size.width // 128
    return f"""name = "evidence"

[model]
name = "dense-{size.layers}x{size.width}"
layers = {size.layers}
hidden_size = {size.width}
ffn_hidden_size = {7 * size.width // 2}
heads = {heads}
kv_heads = {heads // 4}
head_dim = 128

[layout]
dp_shard = {ranks}

[recipe]
seq_len = 2048
tokens_per_step = {8192 * ranks}
micro_batch_size = 2
dtype = "{variant.dtype}"
activation_checkpoint = "full"
compile = {str(variant.compiled).lower()}

[measure]
warmup = 4
steps = 5
repeats = 3
profiled = 3
"""
