"""A store with runs of two jobs, one run in progress, one that failed, one that is damaged, and hostile names.

`python tests/serve/served_runs.py FOLDER` writes it to FOLDER for inspection.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from tests.page_views import HOSTILE
from tests.stored import JOB, JOB_TEXT
from trainyard.job import Measure
from trainyard.launch.supervisor.event_log import SUPERVISOR, EventLogWriter
from trainyard.layout import Layout
from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.record import DeviceSeen, Provenance, Run, Sample
from trainyard.store.store import Store, new_id

ACCOUNTS = {
    "compute/matmul": 182, "compute/attention": 61, "compute/elementwise": 34, "comm/all_gather": 22,
    "comm/reduce_scatter": 31, "straggler/reduce_scatter": 9, "launch_gap/python": 7, "unexplained": 2,
}  # fmt: skip
"""Account -> ms in a step."""
SLOWER = {"comm/reduce_scatter": 12, "launch_gap/python": 5}
"""Account -> further ms since the change."""
BEGIN = datetime(2026, 10, 1, 4, 0, tzinfo=UTC)
STEPS = 40


def run_of(number: int, name: str, layout: Layout, slower: bool, host: str) -> Run:
    """A complete run, with a step time that differs by a fraction of a percent from those of its neighbours."""
    wobble = random.Random(number).gauss(1, 0.001)  # noqa: S311
    ms = {account: time_ms + (SLOWER.get(account, 0) if slower else 0) for account, time_ms in ACCOUNTS.items()}
    entries = tuple(
        Entry(account=Account(*account.split("/")), ns=round(each * 1e6 * wobble)) for account, each in ms.items()
    )
    wall_ns = sum(entry.ns for entry in entries)
    ledgers = tuple(
        Ledger(wall_ns=wall_ns, entries=entries, scope=Scope(steps=(str(step),), ranks=(0,))) for step in (1, 2)
    )
    samples = tuple(
        Sample(
            step=step, rank=0, repeat=0, wall_ns=round(wall_ns * (1 + (step * 37 % 11 - 5) / 2000)), tokens=524288,
            loss=10.8 / (1 + step / 9) + 2.1, memory_bytes=61 << 30, warmup=step < 2,
        )
        for step in range(STEPS)
    )  # fmt: skip
    provenance = Provenance(
        code={"sha": hashlib.sha1(bytes([number // 3, slower])).hexdigest(), "dirty": "no"},  # noqa: S324
        host={"name": host, "cpu": "Xeon"},
        devices=(DeviceSeen(index=0, name="NVIDIA H100 SXM 80GB", vendor="nvidia"),),
        packages={"torch": "2.11.0" if slower else "2.10.0"},
    )
    job = msgspec.structs.replace(
        JOB, name=name, layout=layout, recipe=msgspec.structs.replace(JOB.recipe, tokens_per_step=524288),
        measure=Measure(warmup=2, steps=STEPS - 2, repeats=1, profiled=0),
    )  # fmt: skip
    return Run(
        id=new_id(), job=job, started=(BEGIN + timedelta(hours=6 * number)).isoformat(timespec="milliseconds"),
        state="complete", provenance=provenance, samples=samples, ledgers=ledgers,
    )  # fmt: skip


def store_run(store: Store, run: Run) -> Run:
    """Stores a run as it is."""
    store.begin(run, JOB_TEXT)
    return store.finish(run)


def begin_live(store: Store, name: str = "llama3-8b-pretrain", steps: int = 25) -> tuple[Run, Path]:
    """A run in progress with samples of `steps` steps and an incident; returns it and its folder."""
    whole = run_of(90, name, Layout(dp_shard=64), True, "node-03")
    run = msgspec.structs.replace(whole, samples=(), ledgers=(), state="incomplete", id=new_id())
    folder = store.begin(run, JOB_TEXT)
    append_samples(folder, whole.samples[:steps])
    log = EventLogWriter(folder, SUPERVISOR)
    log.fault("slow", "rank 17 takes 1.4x the median step", rank=17, step=12)
    return run, folder


def append_samples(folder: Path, samples: tuple[Sample, ...]) -> None:
    """Adds lines to the samples of rank 0, as a running rank does."""
    with (folder / "samples" / "rank0.jsonl").open("ab") as file:
        for sample in samples:
            file.write(msgspec.json.encode(msgspec.structs.replace(sample, ended_ns=time.time_ns())) + b"\n")


def fill(store: Store, count: int = 36) -> dict[str, str]:
    """Fills the store; returns the ids of notable runs by name: `before`, `after`, `live`, `failed`, `damaged`,
    `hostile`."""
    ids: dict[str, str] = {}
    for number in range(count):
        slower = number >= count * 2 // 3
        run = store_run(
            store, run_of(number, "llama3-8b-pretrain", Layout(dp_shard=64), slower, f"node-{number % 4:02}")
        )
        ids["after" if slower else "before"] = run.id
        if number % 2:
            store_run(store, run_of(number, "moe-finetune", Layout(dp_shard=8, tp=8, pp=2), False, "gpu-a"))
    store.tag(ids["before"], "baseline")
    store.tag(ids["after"], "nightly")
    failed = msgspec.structs.replace(run_of(80, "moe-finetune", Layout(dp_shard=8), False, "gpu-a"), ledgers=())
    ids["failed"] = store_run(
        store, msgspec.structs.replace(failed, state="failed", failure="rank 3 ended: out of memory")
    ).id
    damaged = store_run(store, run_of(81, "moe-finetune", Layout(dp_shard=8), False, "gpu-a"))
    (store.runs / damaged.id / "ledgers.json").write_bytes(b"{}")
    ids["damaged"] = damaged.id
    hostile = run_of(82, "".join(HOSTILE[:3]) + HOSTILE[3].replace("\x00", "") + "x" * 300, Layout(), False, HOSTILE[0])
    ids["hostile"] = store_run(store, hostile).id
    ids["live"] = begin_live(store)[0].id
    return ids


if __name__ == "__main__":
    print(fill(Store(Path(sys.argv[1]), say=print)))  # noqa: T201
