"""Bytes, seconds and memory of joining the parts of many nodes: `python -m benchmarks.join_parts 1024`.

The ranks are made from the steps of the 16 different real ranks of the public traces that have device work, in turn:
`job_from_real_ranks.py` describes how their collectives meet, and which rank is late. A node has 8 ranks and a
clock of its own. Prints the cost of reducing a trace on its node, the size of all parts, the cost of joining, booking
and analysing them in one process and its workers, the late rank as the analysis names it, the cost of its page, and the
times of the page in a browser.
Fails if the clocks are not aligned or another rank is named.
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

from benchmarks.job_from_real_ranks import RANKS_PER_NODE, STEPS, job_rank, make_schedule, recorded_step
from benchmarks.page_in_browser import draw_page
from benchmarks.ranks import PUBLIC
from trainyard.events import Events
from trainyard.job import SCRIPT, Job, Measure
from trainyard.layout import Layout
from trainyard.recipe import Recipe
from trainyard.record import Run, Sample
from trainyard.run.parts import archive
from trainyard.run.parts.part import Part, write_part
from trainyard.store.store import Store
from trainyard.trace.measure import read
from trainyard.trace.readers.columns import write_profile
from trainyard.trace.reduce import reduce_trace

SAMPLED_STEPS = 20
FARTHEST_NS = 10**12
"""By how much clocks of hosts differ, at most."""


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
    files = real_ranks()
    with tempfile.TemporaryDirectory() as scratch:
        reduce_all(files, Path(scratch))
    steps = [step for path in files if (step := step_of(path)) is not None]
    schedule = make_schedule(ranks)
    chance, total, pack_s = random.Random(0), 0, 0.0
    for first in range(0, ranks, RANKS_PER_NODE):
        own = range(first, min(ranks, first + RANKS_PER_NODE))
        shift_ns = chance.randrange(FARTHEST_NS) if first else 0
        with tempfile.TemporaryDirectory() as scratch:
            part, run_folder = _node_folder(Path(scratch), own, ranks)
            for rank in own:
                events = job_rank(steps[rank % len(steps)], rank, schedule, part.node, shift_ns)
                write_profile(run_folder / "profiles" / f"rank{rank}.profile", [events])
            begun = time.perf_counter()
            data = archive.pack(run_folder, own)
            pack_s += time.perf_counter() - begun
        (folder / f"{part.node}.part").write_bytes(data)
        total += len(data)
    nodes = -(-ranks // RANKS_PER_NODE)
    print(
        f"parts: {ranks} ranks on {nodes} nodes, from {len(steps)} different real ranks with device work, "
        f"{total / 1e6:.1f} MB ({total / ranks / 1e3:.0f} kB a rank), packed in {1e3 * pack_s / nodes:.0f} ms a node",
        flush=True,
    )


def step_of(path: Path) -> Events | None:
    """The recorded step of a real rank; None if it has no device work, as ranks on CPUs."""
    try:
        return recorded_step(read([path])[0])
    except ValueError:
        return None


def _node_folder(root: Path, own: range, ranks: int) -> tuple[Part, Path]:
    """The part and run folder of a node, with samples and without profiles."""
    node, run_id = f"node{own.start // RANKS_PER_NODE:04}", f"{own.start:08x}"
    job = Job(
        name="train", workload=SCRIPT, sizes={"command": "torchrun train.py"}, recipe=Recipe(tokens_per_step=0),
        layout=Layout(dp_replicate=ranks), measure=Measure(warmup=0, steps=SAMPLED_STEPS, repeats=1, profiled=STEPS),
    )  # fmt: skip
    samples = tuple(
        Sample(step=step, rank=rank, repeat=0, wall_ns=10**8 + rank, tokens=4096, memory_bytes=10**9)
        for rank in own
        for step in range(SAMPLED_STEPS)
    )
    run = Run(id=run_id, job=job, started="2026-01-01T00:00:00+00:00", state="complete", samples=samples)
    store = Store(root)
    folder = store.begin(run, "# torchrun train.py\n")
    store.finish(run)
    (folder / "profiles").mkdir()
    part = Part(job_id="benchmark", node=node, ranks=tuple(own), world_size=ranks, started=run.started, run=run_id)
    write_part(folder, part)
    return part, folder


def join_parts(folder: Path, ranks: int) -> int:
    """Join the archives in the folder into a store in it, analyse the run, and print seconds and the late rank with its
    price. Returns 1 if clocks were not aligned by collectives, or if another rank than the late one is named."""
    from trainyard import api

    start = time.perf_counter()
    session = api.Session(Store(folder / "store", say=print), say=print)
    result = api.join(sorted(folder.glob("*.part")), session=session)
    print(f"joined and analysed in {time.perf_counter() - start:.1f} s: {result.headline}", flush=True)
    for line in (*result.warnings, *result.notes, *result.limits):
        print(f"  {line[:300]}")
    schedule, scope = make_schedule(ranks), result.ledgers[-1].scope
    print(f"clocks: aligned by {scope.aligned}")
    for finding in result.findings:
        print(f"  {finding.rule}: {finding.cost_ns / 1e6:.2f} ms a step ({finding.priced}): {finding.summary}")
    blamed = [finding for finding in result.findings if finding.rule == "straggler"]
    changes = [finding.change.text for finding in blamed if finding.change is not None]
    print(f"late: rank {schedule.late}, which costs {schedule.price_ns / 1e6:.2f} ms a step; named: {changes}")
    return int(scope.aligned != "collectives" or changes != [f"rank:{schedule.late}=typical"])


def build_page(folder: Path) -> None:
    """Book and analyse the joined run again, write its page, and print its bytes and the seconds of building alone."""
    from trainyard.api.named_inputs import find
    from trainyard.report.render import html
    from trainyard.report.view.build_analysis import analyse_run
    from trainyard.report.view.build_view import view_of
    from trainyard.report.view.timeline import timeline

    (run_folder,) = (folder / "store" / "runs").iterdir()
    named = find(str(run_folder), say=print)
    assert named.measured is not None  # noqa: S101
    analysis = analyse_run(named.stored(), named.measured)
    start = time.process_time()
    html.write(view_of(analysis, timeline(named.measured)), folder / "page.html")
    seconds = time.process_time() - start
    size = (folder / "page.html").stat().st_size
    print(f"page: {size / 1e6:.2f} MB, built in {seconds:.1f} s of CPU time after the analysis", flush=True)


def main(args: Sequence[str]) -> int:
    """Run one stage, or all stages as processes of their own, and print the CPU time and memory of each. Returns 1 if a
    stage failed."""
    if args[0] == "join":
        return join_parts(Path(args[1]), int(args[2]))
    if args[0] == "make":
        make_parts(Path(args[1]), int(args[2]))
        return 0
    if args[0] == "page":
        build_page(Path(args[1]))
        return 0
    if args[0] == "draw":
        return draw_page(Path(args[1]) / "page.html")
    failed = False
    for ranks in args:
        with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
            for stage in ("make", "join", "page", "draw"):
                process = subprocess.Popen([sys.executable, "-m", "benchmarks.join_parts", stage, folder, ranks])
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                failed |= process.returncode != 0
                print(
                    f"{stage}: {usage.ru_utime + usage.ru_stime:.1f} s of CPU time, peak "
                    f"{usage.ru_maxrss * 1024 / 1e6:.0f} MB of the process, exit code {process.returncode}",
                    flush=True,
                )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
