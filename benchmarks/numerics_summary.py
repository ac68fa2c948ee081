"""Time to summarise a tensor, next to `torch.hash_tensor` and to a copy: `python -m benchmarks.numerics_summary`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter

import torch

from trainyard.numerics.record.summarise import summarise
from trainyard.numerics.tensor_record import Shard

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24)
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.device}, {arguments.threads} threads: ns per element, fastest of")
    print(f"{arguments.repeats}. Column: the right half of a matrix, as tensor parallelism shards it.")
    print(
        f"{'elements':>10} {'dtype':>9} {'summary':>8} {'transposed':>10} {'column':>8} {'hash_tensor':>11} {'copy':>6}"
    )
    for size in SIZES:
        for dtype in DTYPES:
            tensor = torch.randn(size, device=arguments.device).to(dtype).view(32, -1)
            shape = (32, 2 * tensor.shape[1])
            shard = Shard(offset=(0, tensor.shape[1]), shape=tuple(tensor.shape))
            calls: tuple[Callable[[], object], ...] = (
                lambda: summarise(tensor),
                lambda: summarise(tensor.T),
                lambda: summarise(tensor, shard=shard, shape=shape),
                lambda: torch.hash_tensor(tensor),
                lambda: tensor.clone(),
            )
            times = [fastest(call, arguments.repeats, arguments.device) * 1e9 / size for call in calls]
            print("{:>10,} {:>9} {:>8.2f} {:>10.2f} {:>8.2f} {:>11.2f} {:>6.2f}".format(size, str(dtype)[6:], *times))


def fastest(call: Callable[[], object], repeats: int, device: str) -> float:
    """Seconds of the fastest of `repeats` calls after a first one."""
    times: list[float] = []
    for _ in range(repeats + 1):
        start = perf_counter()
        call()
        if device != "cpu":
            torch.accelerator.synchronize()
        times.append(perf_counter() - start)
    return min(times[1:])


if __name__ == "__main__":
    main()
