"""Makes the parts of a job as its nodes would record them: run folders with samples, and profiles if wanted."""

from pathlib import Path

from msgspec.structs import replace

from tests.trace_maker import trace, write
from trainyard.job import SCRIPT, Job, Measure
from trainyard.layout import Layout
from trainyard.recipe import Recipe
from trainyard.record import Provenance, Run, Sample
from trainyard.run.parts.part import Part, write_part
from trainyard.store.store import Store
from trainyard.trace.reduce import reduce_trace

STEP_NS = 1_000_000


def make_part(
    store: Path, id: str, node: str, ranks, world: int = 4, *, job_id: str = "job.1", clock_ns: int = 0, late=None,
    profiles: bool = False, state: str = "complete", hosts=None, code=None, started: str = "2026-01-01T00:00:00+00:00",
    **more,
) -> Path:  # fmt: skip
    """A node's part in a store; returns its run folder. `late`: the rank that arrives late in each step's
    collective."""
    job = Job(
        name="train", workload=SCRIPT, sizes={"command": "python train.py"}, recipe=Recipe(tokens_per_step=0),
        layout=Layout(dp_replicate=world), measure=Measure(warmup=0, steps=4, repeats=1, profiled=2),
    )  # fmt: skip
    samples = tuple(
        Sample(step=step, rank=rank, repeat=0, wall_ns=STEP_NS + rank, tokens=8, memory_bytes=1)
        for rank in ranks
        for step in range(4)
    )
    run = Run(id=id, job=job, started=started, state=state, samples=samples, provenance=Provenance(code=code or {}))
    opened = Store(store)
    folder = opened.begin(run, "# python train.py\n")
    opened.finish(run)
    part = Part(
        job_id=job_id, node=node, ranks=tuple(ranks), world_size=world, started=started, run=id, code=code or {},
        agreed_by="process group", hosts=hosts or {},
    )  # fmt: skip
    write_part(folder, replace(part, **more))
    if profiles:
        for rank in ranks:
            document = rank_document(rank, world, late, clock_ns, node)
            path = write(folder / "traces", document, f"rank{rank}.json")
            reduce_trace(path, folder / "profiles" / f"rank{rank}.profile", host_name=node)
    return folder


def rank_document(rank: int, world: int, late, clock_ns: int, node: str) -> dict:
    """The Kineto document of a rank: four steps, each a product and an all-reduce that ends on all ranks at once."""
    device, marks = [], []
    for step in range(4):
        begin = clock_ns + step * STEP_NS
        own = 600_000 if rank == late else 300_000
        device.append(("gemm", 7, begin, begin + own, begin + 1))
        device.append(("ncclDevKernel_AllReduce_Sum", 8, begin + own, begin + 700_000, begin + 2))
        marks.append((str(step), begin, begin + STEP_NS))
    return trace(device=device, host=[], marks=marks, rank=rank, world=world, host_name=node)
