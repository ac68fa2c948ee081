"""`python -m benchmarks.initial_weights`: the initial weights of a rank drawn as its shard only, against whole tensors.

The first table draws a tensor of Llama 3 70B in both ways, each in a process of its own: elements a second of the
generator, and the CPU time and peak host memory until a rank of FSDP 64 x TP 8 has its shard. The second builds one
rank of a job with a fake process group and draws its real shard on the CPU; the old way, which drew every tensor of the
model on every rank, is extrapolated from the speed and memory of the first table. One thread, CPU time.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import subprocess
import sys
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from resource import RUSAGE_SELF, getrusage
from typing import NamedTuple

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.models import presets
from trainyard.recipe import Recipe
from trainyard.train.model import initial_weights
from trainyard.train.model.distributions import Normal
from trainyard.train.model.draw_shard import draw
from trainyard.train.model.language_task import Language
from trainyard.train.model.logical_shard import find_shard
from trainyard.train.parallel.parallelize import ParallelModel, initialize
from trainyard.train.process_group import Ranks
from trainyard.train.task import Task

DEVIATION = 0.02
TP = 8
TENSORS: dict[str, tuple[tuple[int, int], tuple[Placement, Placement]]] = {
    "embed.weight": ((128256, 8192), (_StridedShard(0, split_factor=TP), Shard(0))),
    "layers.0.mlp.up.weight": ((28672, 8192), (_StridedShard(0, split_factor=TP), Shard(0))),
    "layers.0.mlp.down.weight": ((8192, 28672), (Shard(0), Shard(1))),
}
"""Name -> (shape, placement on a mesh of 64 x 8 ranks), as in a job of Llama 3 70B."""
JOBS = {
    "llama3-70b": Layout(dp_shard=64, tp=TP),
    "deepseek-v3": Layout(dp_shard=2048, ep=64),
}
CPU = torch.device("cpu")


class Cost(NamedTuple):
    """Cost of the initial weights of a rank. `elements`: number of elements drawn, in `cpu_s` seconds of CPU time;
    `bytes`: increase of the peak host memory. `shard`: number of elements of the rank; `build_cpu_s`: CPU time to build
    the model without weights; `whole`: number of elements of the model; `largest`: of its largest tensor."""

    elements: int
    cpu_s: float
    bytes: int
    shard: int
    build_cpu_s: float = 0.0
    whole: int = 0
    largest: int = 0


def peak_bytes() -> int:
    return getrusage(RUSAGE_SELF).ru_maxrss * 1024


def draw_whole(local: Tensor, like: DTensor, name: str) -> None:
    """The way before: every rank draws the whole tensor by torch's generator and keeps its part of it."""
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1
    value = torch.empty(like.shape).normal_(0.0, DEVIATION, generator=torch.Generator().manual_seed(seed))
    local.copy_(distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None).to_local())


def measure_tensor(name: str, way: str) -> Cost:
    """Draws the last rank's shard of a tensor by the `way` "whole" or "shard"."""
    shape, placements = TENSORS[name]
    dist.init_process_group("fake", store=FakeStore(), rank=64 * TP - 1, world_size=64 * TP)
    mesh = init_device_mesh("cpu", (64, TP))
    with torch.device("meta"):
        like = distribute_tensor(torch.empty(shape), mesh, placements, src_data_rank=None)
    local = torch.zeros(like.to_local().shape)
    draw(torch.empty(8), find_shard(torch.empty(8)), Normal(DEVIATION), 1, "warm-up", CPU)
    before, began = peak_bytes(), time.process_time()
    if way == "whole":
        draw_whole(local, like, name)
    else:
        draw(local, find_shard(like), Normal(DEVIATION), 1, name, CPU)
    cpu_s = time.process_time() - began
    drawn = like.numel() if way == "whole" else local.numel()
    return Cost(drawn, cpu_s, peak_bytes() - before, local.numel())


def measure_job(name: str, way: str) -> Cost:
    """Builds rank 0 of a job, and initializes its weights on this host's CPU as its device: draws them (`way` "shard"),
    or skips them for a checkpoint ("skipped")."""
    layout = JOBS[name]
    recipe = Recipe(seq_len=4096, tokens_per_step=4096 * 2048, micro_batch_size=1)
    job = Job(model=msgspec.convert(presets.load(name).model, Model), layout=layout, recipe=recipe)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.ranks)
    spent, rise = 0.0, 0

    def timed(module: nn.Module, task: Task, device: torch.device, offload: bool) -> None:
        nonlocal spent, rise
        before, began = peak_bytes(), time.process_time()
        initialize(module, task, device, offload)
        spent, rise = spent + time.process_time() - began, rise + peak_bytes() - before

    began = time.process_time()
    with initial_weights.skipped() if way == "skipped" else nullcontext():
        model = ParallelModel(job, Ranks(0, 0, layout.ranks, 1, "cpu", CPU), Language(job), timed)
    build_cpu_s = time.process_time() - began - spent
    shard = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in model.parameters)
    largest = max(parameter.numel() for parameter in model.parameters)
    return Cost(shard, spent, rise, shard, build_cpu_s, initial_weights.count_parameters(model.modules, None), largest)


def in_process(*args: str) -> Cost:
    """The cost that this module prints, run with the arguments in a process of its own, whose memory is its own."""
    command = [sys.executable, "-m", "benchmarks.initial_weights", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Cost)


def compare_tensors(names: list[str], repeats: int) -> float:
    """Prints the first table, the fastest of `repeats` of each. Returns the elements a second of the old way on the
    tensor for which it is fastest."""
    print(f"{'tensor':<26}{'way':<8}{'elements drawn':>16}{'million/s':>11}{'CPU s':>10}{'host memory':>13}")
    whole_rates: list[float] = []
    for name in names:
        for way in ("whole", "shard"):
            cost = min((in_process("tensor", name, way) for _ in range(repeats)), key=lambda cost: cost.cpu_s)
            rate, memory = cost.elements / cost.cpu_s, cost.bytes / 1e6
            print(f"{name:<26}{way:<8}{cost.elements:>16,}{rate / 1e6:>11.0f}{cost.cpu_s:>10.3f}{memory:>10,.0f} MB")
            if way == "whole":
                whole_rates.append(rate)
    return max(whole_rates)


def compare_jobs(names: list[str], rate: float) -> None:
    """Prints the second table. `rate`: elements a second of the old way."""
    print(
        f"\nWhole tensors are extrapolated: at least the time at {rate / 1e6:.0f} million elements a second, the "
        "fastest above,\nand at least the memory of the rank's weights and of the largest tensor. The rest is measured."
    )
    for name in names:
        layout, cost, restart = JOBS[name], in_process("job", name, "shard"), in_process("job", name, "skipped")
        axes = " x ".join(f"{axis} {size}" for axis in ("dp_shard", "tp", "ep") if (size := getattr(layout, axis)) > 1)
        weights = 4 * cost.shard
        print(f"{name}, {axes} ({layout.ranks:,} ranks), {cost.whole:,} parameters, rank 0 has {cost.shard:,}")
        rows = {
            "model without weights": (cost.build_cpu_s, 0),
            "whole tensors (at least)": (cost.whole / rate, weights + 4 * cost.largest),
            "this rank's shard": (cost.cpu_s, cost.bytes),
            "skipped at a restart": (restart.cpu_s, restart.bytes),
        }
        for title, (cpu_s, size) in rows.items():
            print(f"  {title:<26}{cpu_s:>9,.1f} CPU s" + (f"{size / 1e6:>10,.0f} MB" if size else ""))
        print(f"  the weights of the rank are {weights / 1e6:,.0f} MB")


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    help_text = "tensor NAME whole|shard, or job NAME shard|skipped: one measurement, as JSON"
    parser.add_argument("measurement", nargs="*", help=help_text)
    parser.add_argument("--repeats", type=int, default=2, help="of each tensor")
    arguments = parser.parse_args()
    match arguments.measurement:
        case ["tensor", name, way]:
            print(msgspec.json.encode(measure_tensor(name, way)).decode())
        case ["job", name, way]:
            print(msgspec.json.encode(measure_job(name, way)).decode())
        case _:
            versions = f"torch {torch.__version__}, Python {platform.python_version()}"
            print(f"{datetime.now(UTC):%Y-%m-%d}, {versions}, 1 thread")
            compare_jobs(list(JOBS), compare_tensors(list(TENSORS), arguments.repeats))


if __name__ == "__main__":
    main()
