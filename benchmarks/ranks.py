"""What many ranks cost: `python -m benchmarks.ranks 8 32 128` prints ranks, CPU seconds and peak MB, a line each.

The ranks are copies of the public eight-rank DLRM trace where it is, else of a generated one, each on a host and a
clock of its own. One process reads, aligns and books them (the engine `serial`), so that its peak is the whole.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import synthetic

_DATA = os.environ.get("TRAINYARD_PUBLIC_DATA", Path(__file__).parents[2] / "shared" / "data")
PUBLIC = Path(_DATA) / "traces" / "v100_dlrm_8ranks"
FARTHEST_NS = 10**12
"""Clocks differ by up to this much."""


class Cost(NamedTuple):
    """User plus system CPU time (s), and peak resident memory (bytes) of the process."""

    ranks: int
    cpu_s: float
    peak_bytes: int


def shifted_copies(folder: Path, ranks: int, copies_of: Sequence[dict[str, Any]]) -> list[Path]:
    """Writes `ranks` files, rank n the document n modulo their number, on a host and a clock of its own."""
    chance = random.Random(0)
    paths = []
    for rank in range(ranks):
        copy = copies_of[rank % len(copies_of)]
        base = int(copy.get("baseTimeNanoseconds", 0)) + chance.randrange(FARTHEST_NS)
        distributed_info = {**copy.get("distributedInfo", {}), "rank": rank, "world_size": ranks}
        document = {
            **copy,
            "baseTimeNanoseconds": base,
            "distributedInfo": distributed_info,
            "host_name": f"node{rank}",
        }
        paths.append(folder / f"rank{rank:04}.json.gz")
        paths[-1].write_bytes(gzip.compress(json.dumps(document).encode(), compresslevel=1))
    return paths


def documents(folder: Path) -> list[dict[str, Any]]:
    """The public ranks, or one generated."""
    if PUBLIC.is_dir():
        return [json.loads(gzip.decompress(path.read_bytes())) for path in sorted(PUBLIC.iterdir())]
    synthetic.write(folder / "synthetic.json")
    return [json.loads((folder / "synthetic.json").read_bytes())]


def costs(counts: Sequence[int]) -> Iterator[Cost]:
    """The cost of each number of ranks, each in its own process. The parent must stay small: a child's peak memory
    starts at its parent's."""
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            make = "import sys; from benchmarks import ranks; ranks.make(sys.argv[1], int(sys.argv[2]))"
            subprocess.run([sys.executable, "-c", make, folder, str(count)], check=True)
            process = subprocess.Popen([sys.executable, "-m", "benchmarks.ranks", folder])
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise subprocess.CalledProcessError(process.returncode, process.args)
            yield Cost(count, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def make(folder: str, count: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        shifted_copies(Path(folder), count, documents(Path(scratch)))


def measure(folder: Path) -> None:
    """Reads and books the folder's ranks. Raises `AssertionError` where their clocks were not solved."""
    from trainyard.trace.measure import measure_files

    measured = measure_files([folder], engine="serial")
    if measured.alignment.aligned != "collectives":
        raise AssertionError(measured.alignment.why)


def main(args: Sequence[str]) -> None:
    if len(args) == 1 and Path(args[0]).is_dir():
        measure(Path(args[0]))
        return
    for cost in costs([int(count) for count in args]):
        print(f"{cost.ranks:>5} {cost.cpu_s:>8.2f} {cost.peak_bytes / 1e6:>8.1f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
