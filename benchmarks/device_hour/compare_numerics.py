"""Compares a few steps of one small job on the CPU and on this machine's device: prints the verdicts as JSON.

`python -m benchmarks.device_hour.compare_numerics NAME VENDOR`: the job NAME of `JOBS`, in float32 and bfloat16. The
tolerances are those of `trainyard numerics parity`: 8 replicas on the CPU in which every sum is jittered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from trainyard import job_file
from trainyard.job import Job
from trainyard.numerics.parity import Parity, ParityMix, compare
from trainyard.numerics.parity_trial import Trial, trial

DTYPES = ("float32", "bfloat16")
STEPS = 4
JOBS: Mapping[str, tuple[str, str]] = {
    "dense": ("transformer", "tiny"),
    "moe": ("transformer", "tiny-moe"),
    "latent-attention": ("transformer", "tiny-mla"),
    "dit": ("diffusion", "tiny-flux"),
    "unet": ("diffusion", "tiny-unet"),
    "vit": ("vision", "tiny-vit"),
    "resnet": ("vision", "tiny-resnet"),
    "dlrm": ("recommender", "tiny-dlrm"),
}
"""Name -> workload and model preset."""


def job(name: str, dtype: str) -> Job:
    """A job of two micro-batches per step. Host-side prefetching is off, so that both sides read the same batches."""
    workload, preset = JOBS[name]
    is_text = workload == "transformer"
    section = "model" if is_text else "sizes"
    text = f'workload = "{workload}"\n[{section}]\nfrom = "{preset}"\n[recipe]\ntokens_per_step = 1\n'
    parsed = job_file.parse(text, name)
    recipe = replace(
        parsed.recipe,
        seq_len=64 if is_text else 1,
        tokens_per_step=512 if is_text else 8,
        micro_batch_size=4,
        dtype=dtype,
        dataset="python" if is_text else "synthetic",
        num_workers=0,
        pin_memory=False,
        device_prefetch=False,
    )
    return replace(parsed, name=f"{name}, {dtype}", recipe=recipe)


def compare_sides(name: str, vendor: str, train: Callable[..., Trial] = trial) -> Iterator[Parity]:
    """The verdict of the job `name` in each number format. `compare` asks for jittered replicas of its reference only:
    that one is trained on the CPU, the other side on the device of `vendor`."""

    def run(job: Job, steps: int, replicas: int) -> Trial:
        return train(job, steps, replicas, vendor="cpu" if replicas else vendor)

    return compare([ParityMix(f"{name}, {dtype}", job(name, dtype)) for dtype in DTYPES], run, STEPS)


def main(name: str, vendor: str) -> None:
    print(msgspec.json.encode(list(compare_sides(name, vendor))).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
