"""Made-up runs, traces and plans for the tests of pages that compare runs.

`python -m tests.compared_runs FOLDER` writes their pages to FOLDER for inspection.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from tests.page_views import HOSTILE
from tests.stored import JOB, samples
from tests.trace_maker import MAIN, trace, write
from trainyard.api.named_inputs import Named
from trainyard.finding import Finding
from trainyard.job import Job
from trainyard.ledger import Account, Entry, Ledger, Scope, mean
from trainyard.plan import Plan
from trainyard.predict.economics.step_cost import Bill
from trainyard.predict.inputs.constant_sets import ConstantSet
from trainyard.record import DeviceSeen, Provenance, Run
from trainyard.report.comparison.compared_run import ComparedRun
from trainyard.report.comparison.comparison_page import page
from trainyard.report.plans.plans_file import SCHEMA, PlanRecord, Plans
from trainyard.trace.measure import measure, read

MATMUL, GAP, GATHER = Account("compute", "matmul"), Account("launch_gap", "python"), Account("comm", "all_gather", "dp")
PROVENANCE = Provenance(
    code={"sha": "1111111", "dirty": "no"},
    packages={"torch": "2.13.0", "numpy": "2.4.0", "msgspec": "0.20"},
    devices=(DeviceSeen(index=0, name="Accelerator X", vendor="nvidia"),),
    environment={"NCCL_ALGO": "Ring"},
    host={"name": "node-1", "cpu": "a CPU"},
)


CONSTANTS = ConstantSet(name="x", description="", devices=(), software="fsdp", source="", date="2026-01-01", rows=1)


def ledgers(*steps: Sequence[int], ranks: int = 1) -> tuple[Ledger, ...]:
    """A ledger for each step and rank, then their mean. A step: ns of matmul, Python, all-gather and small accounts."""
    accounts = (MATMUL, GAP, GATHER, Account("compute", "norm"), Account("compute", "softmax"))
    singles = tuple(
        Ledger(
            wall_ns=sum(step),
            entries=tuple(Entry(account=account, ns=ns) for account, ns in zip(accounts, step)),
            scope=Scope(steps=(str(number),), ranks=(rank,)),
        )
        for rank in range(ranks)
        for number, step in enumerate(steps)
    )
    return (*singles, mean(singles))


def stored_run(
    id: str, *steps: Sequence[int], job: Job = JOB, provenance: Provenance = PROVENANCE, loss: float = 5.0
) -> Run:
    """A complete run with the ledgers of `steps`, none if there are none."""
    return Run(
        id=id, job=job, started="2025-01-01T00:00:00.000+00:00", state="complete", samples=samples(loss),
        ledgers=ledgers(*steps, ranks=2) if steps else (), provenance=provenance,
    )  # fmt: skip


def compared(run: Run) -> ComparedRun:
    """A stored run without traces, as it is compared."""
    return Named(run.id, run=run).compared()


def traced(folder: Path, name: str, *, matmul_ns: int = 4000, ranks: int = 1, op: str = "aten::mm") -> ComparedRun:
    """Traces of `ranks` ranks with four steps of the op, whose kernel takes `matmul_ns`, and of an addition, as
    they are compared."""
    files = []
    for rank in range(ranks):
        starts = range(0, 40_000, 10_000)
        marks = [(str(step), start, start + 9_000) for step, start in enumerate(starts)]
        ops = [(op, MAIN, start + 100, start + 500, "cpu_op") for start in starts]
        ops += [("aten::add", MAIN, start + 500, start + 900, "cpu_op") for start in starts]
        ends = [start + 1000 + matmul_ns for start in starts]
        device = [("gemm", 7, start + 1000, end, start + 200) for start, end in zip(starts, ends)]
        device += [("add", 7, end, end + matmul_ns // 4, start + 600) for start, end in zip(starts, ends)]
        document = trace(device=device, host=ops, marks=marks, rank=rank, world=ranks)
        files.append(write(folder, document, f"{name}-{rank}.json"))
    return Named(name, measured=measure(read(files))).compared()


def plans(*wall_ns: int, job: Job = JOB, memory_bytes: int = 2000) -> Plans:
    """Plans of `job` with these predicted steps, and an interval of 10 % on either side."""
    records = tuple(
        PlanRecord(
            plan=Plan(
                job=job,
                ledger=replace(ledgers((ns - 3, 1, 2, 0, 0))[0], basis="predicted", source="Accelerator X"),
                low=ns * 9 // 10, high=ns * 11 // 10, memory={"parameter": memory_bytes},
            ),
            bill=Bill(tokens_per_s=1.0, mfu=0.4, days=0.0, dollars=None, kwh=None),
            reserved_bytes=memory_bytes,
        )
        for ns in wall_ns
    )  # fmt: skip
    return Plans(
        schema=SCHEMA, machine="x", device="Accelerator X", devices=2, searched=1, fit_in_memory=1, refused=(),
        constants=CONSTANTS, choices=records, memory_bytes=1e9,
    )  # fmt: skip


def planned(document: Plans, *jobs: Job) -> ComparedRun:
    """Plans as they are compared with runs of `jobs`."""
    return Named("plan", plans=document).compared(jobs)


def finding(rule: str, account: Account, cost_ns: int, summary: str = "") -> Finding:
    return Finding(rule=rule, severity="medium", account=account, cost_ns=cost_ns, summary=summary or f"{rule} costs")


def hostile_runs() -> list[ComparedRun]:
    """Two runs with hostile names, settings and findings, and a plan of a hostile machine."""
    names = [name for name in HOSTILE if "\ud800" not in name]
    provenance = replace(
        PROVENANCE,
        environment=dict.fromkeys(names, names[0]),
        code={"sha": names[1]},
        host={"name": names[2]},
        packages={"p" * 10_000: "v" * 10_000},
    )
    first = stored_run("aaaa", (9_000, 100, 500, 2, 3), (9_100, 110, 510, 2, 3))
    second = stored_run("bbbb", (9_900, 100, 400, 2, 3), (9_990, 112, 410, 2, 3), provenance=provenance)
    runs = [compared(run).renamed(name) for run, name in zip((first, second), (names[0], names[1] + 10_000 * "n"))]
    findings = tuple(finding("host_sync", GAP, 90 + at, name) for at, name in enumerate(names))
    second_run = runs[1]._replace(analysis=replace(runs[1].analysis, findings=findings, subject=names[3]))
    return [runs[0], second_run, planned(replace(plans(9_500), machine=names[4], device=names[5]), JOB)]


def findings_of(run: ComparedRun, *findings: Finding) -> ComparedRun:
    """The run with these findings."""
    assert run.analysis
    return run._replace(analysis=replace(run.analysis, findings=findings))


PAGES: dict[str, Callable[[Path], list[ComparedRun]]] = {
    "traces": lambda folder: [traced(folder, "before"), traced(folder, "after", matmul_ns=5000)],
    "runs": lambda folder: [
        compared(stored_run("aaaa", (1000, 100, 500, 2, 3), (1010, 110, 510, 2, 3))),
        compared(stored_run("bbbb", (1200, 100, 400, 2, 3), (1210, 112, 410, 2, 3), loss=5.2)),
        compared(stored_run("cccc", loss=5.1)),
    ],
    "plan": lambda folder: [
        planned(plans(140, job=JOB), JOB),
        findings_of(compared(stored_run("aaaa", (90, 20, 30, 2, 3))), finding("host_sync", GAP, 20)),
    ],
    "ranks": lambda folder: [
        traced(folder, "one"), traced(folder, "three", ranks=3), compared(replace(stored_run("dddd"), samples=()))
    ],
    "empty": lambda folder: [compared(replace(stored_run(name), samples=())) for name in ("aaaa", "bbbb")],
    "hostile": lambda folder: hostile_runs(),
}  # fmt: skip
"""Name -> function that makes the runs of a page; it writes traces to `folder`."""

if __name__ == "__main__":
    for called, make in PAGES.items():
        (Path(sys.argv[1]) / f"{called}.html").write_text(page(make(Path(sys.argv[1]))), "utf-8")
