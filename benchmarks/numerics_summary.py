"""Time to summarise a tensor, next to `torch.hash_tensor` and to a copy: `python -m benchmarks.numerics_summary`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

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
    print(f"{arguments.repeats}. Columns: the right half of a matrix, as tensor parallelism shards it.")
    print(("{:>10} {:>9}" + " {:>11}" * 5).format("elements", "dtype", *calls_of(torch.zeros(32, 1))))
    for size in SIZES:
        for dtype in DTYPES:
            calls = calls_of(torch.randn(size, device=arguments.device).to(dtype).view(32, -1))
            times = [fastest(call, arguments.repeats, arguments.device) * 1e9 / size for call in calls.values()]
            print(("{:>10,} {:>9}" + " {:>11.2f}" * 5).format(size, str(dtype)[6:], *times))


def calls_of(matrix: Tensor) -> dict[str, Callable[[], object]]:
    """The measured calls by name."""
    rows, columns = matrix.shape
    shard = Shard(offset=(0, columns), shape=(rows, columns))
    return {
        "summary": lambda: summarise(matrix),
        "transposed": lambda: summarise(matrix.T),
        "columns": lambda: summarise(matrix, shard=shard, shape=(rows, 2 * columns)),
        "hash_tensor": lambda: torch.hash_tensor(matrix),
        "copy": matrix.clone,
    }


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
