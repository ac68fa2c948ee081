"""Bytes, seconds and memory of joining the parts of many nodes: `python -m benchmarks.join_parts 1024`.

The ranks are made from the different real ranks of the public traces (19 of them), in turn; each gets its own number
and host, and each host a clock of its own, with the comparison of clocks that ranks record. A node has 8 ranks. Prints
the cost of reducing a trace on its node, the size of all parts, and the cost of joining, booking and analysing them in
one process and its workers.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from benchmarks.ranks import PUBLIC
from trainyard.events import ClockOffset, Events
from trainyard.job import SCRIPT, Job, Layout, Measure, Recipe
from trainyard.record import Run, Sample
from trainyard.run.parts import archive
from trainyard.run.parts.part import Part, write_part
from trainyard.store.store import Store
from trainyard.trace.align.clocks import ClockCorrection
from trainyard.trace.measure import read
from trainyard.trace.readers.columns import write_profile
from trainyard.trace.reduce import reduce_trace

RANKS_PER_NODE, STEPS = 8, 20
START_NS, FARTHEST_NS, UNCERTAINTY_NS = 1_800_000_000 * 10**9, 10**12, 50_000
"""Start of all recordings; by how much clocks of hosts differ, at most, and how well the differences are known."""


def real_ranks() -> list[Path]:
    """The files of the public traces, each a different real rank. Raises `SystemExit` if there are fewer than 16."""
    files = sorted(path for path in PUBLIC.parent.rglob("*.json*") if path.is_file())
    if len(files) < 16:
        raise SystemExit(f"{PUBLIC.parent}: fewer than 16 traces; set TRAINYARD_PUBLIC_DATA.")
    return files


def reduce_all(files: Sequence[Path], folder: Path) -> None:
    """Reduce each real rank once, and print the bytes and seconds."""
    start = time.process_time()
    for number, path in enumerate(files):
        reduce_trace(path, folder / f"{number}.profile")
    seconds = time.process_time() - start
    before, after = (sum(path.stat().st_size for path in paths) for paths in (files, folder.glob("*.profile")))
    print(
        f"reduce: {len(files)} real ranks, {before / 1e6:.2f} MB to {after / 1e6:.2f} MB, "
        f"{1e3 * seconds / len(files):.0f} ms of CPU time a rank",
        flush=True,
    )


def make_parts(folder: Path, ranks: int) -> None:
    """Write the archives of all nodes of a job of `ranks` ranks to the folder, and print their size."""
    with tempfile.TemporaryDirectory() as scratch:
        reduce_all(real_ranks(), Path(scratch))
    sources = [read([path])[0] for path in real_ranks()]
    chance, total, pack_s = random.Random(0), 0, 0.0
    for first in range(0, ranks, RANKS_PER_NODE):
        own = range(first, min(ranks, first + RANKS_PER_NODE))
        shift_ns = chance.randrange(FARTHEST_NS) if first else 0
        with tempfile.TemporaryDirectory() as scratch:
            part, run_folder = _node_folder(Path(scratch), own, ranks)
            for rank in own:
                events = _as_rank(sources[rank % len(sources)], rank, ranks, part.node, shift_ns, rank == first)
                write_profile(run_folder / "profiles" / f"rank{rank}.profile", [events])
            begun = time.perf_counter()
            data = archive.pack(run_folder, own)
            pack_s += time.perf_counter() - begun
        (folder / f"{part.node}.part").write_bytes(data)
        total += len(data)
    nodes = -(-ranks // RANKS_PER_NODE)
    print(
        f"parts: {ranks} ranks on {nodes} nodes, {total / 1e6:.1f} MB ({total / ranks / 1e3:.0f} kB a rank), "
        f"packed in {1e3 * pack_s / nodes:.0f} ms a node",
        flush=True,
    )


def _node_folder(root: Path, own: range, ranks: int) -> tuple[Part, Path]:
    """The part and run folder of a node, with samples and without profiles."""
    node, run_id = f"node{own.start // RANKS_PER_NODE:04}", f"{own.start:08x}"
    job = Job(
        name="train", workload=SCRIPT, sizes={"command": "torchrun train.py"}, recipe=Recipe(tokens_per_step=0),
        layout=Layout(dp_replicate=ranks), measure=Measure(warmup=0, steps=STEPS, repeats=1, profiled=3),
    )  # fmt: skip
    samples = tuple(
        Sample(step=step, rank=rank, repeat=0, wall_ns=10**8 + rank, tokens=4096, memory_bytes=10**9)
        for rank in own
        for step in range(STEPS)
    )
    run = Run(id=run_id, job=job, started="2026-01-01T00:00:00+00:00", state="complete", samples=samples)
    store = Store(root)
    folder = store.begin(run, "# torchrun train.py\n")
    store.finish(run)
    (folder / "profiles").mkdir()
    part = Part(job_id="benchmark", node=node, ranks=tuple(own), world_size=ranks, started=run.started, run=run_id)
    write_part(folder, part)
    return part, folder


def _as_rank(events: Events, rank: int, ranks: int, node: str, shift_ns: int, leads: bool) -> Events:
    """A real rank as rank `rank` of the job on the host `node`, whose clock is `shift_ns` ahead. `leads`: its host's
    clock was compared with that of rank 0."""
    begin = START_NS + shift_ns
    moved = ClockCorrection(offset=begin - events.window[0]).corrected(events)
    offset = ClockOffset(
        reference=0, low_ns=-shift_ns - UNCERTAINTY_NS, high_ns=-shift_ns + UNCERTAINTY_NS, at_ns=begin
    )
    compared = offset if leads and rank else None
    return replace(moved, rank=rank, world=ranks, host_name=node, clock_offset=compared)


def join_parts(folder: Path) -> None:
    """Join the archives in the folder into a store in it, analyse the run and print seconds."""
    from trainyard import api

    start = time.perf_counter()
    session = api.Session(Store(folder / "store", say=print), say=print)
    result = api.join(sorted(folder.glob("*.part")), session=session)
    print(f"joined and analysed in {time.perf_counter() - start:.1f} s: {result.headline}", flush=True)
    for line in (*result.warnings, *result.notes, *result.limits):
        print(f"  {line[:300]}")


def main(args: Sequence[str]) -> None:
    """Run one stage, or all stages as processes of their own, and print the memory of joining."""
    if args[0] == "make":
        make_parts(Path(args[1]), int(args[2]))
        return
    if args[0] == "join":
        join_parts(Path(args[1]))
        return
    for ranks in args:
        with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
            command = [sys.executable, "-m", "benchmarks.join_parts"]
            subprocess.run([*command, "make", folder, ranks], check=True)
            process = subprocess.Popen([*command, "join", folder])
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            print(
                f"join: {usage.ru_utime + usage.ru_stime:.1f} s of CPU time, peak "
                f"{usage.ru_maxrss * 1024 / 1e6:.0f} MB of the largest process, exit code {process.returncode}",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
