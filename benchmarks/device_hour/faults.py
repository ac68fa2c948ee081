"""Part 6: recovery from injected faults on the device, and flight records of NCCL, one process per fault."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.collect import LOG_END, Session
from benchmarks.device_hour import nccl_process
from benchmarks.evidence import Devices
from trainyard.store.store import Store

JOB = Path(__file__).parent / "jobs" / "recovery.toml"
STEP = 12
KINDS: Mapping[str, str] = {
    "kill_worker": "rank",
    "stop": "rank",
    "drop_collective": "rank",
    "fill_disk": "rank",
    "flip_byte": "rank",
    "kill_agent": "node",
    "preempt": "",
}
"""Fault -> its target, of which the first is chosen. A delayed rank is found by comparison with others."""
EXPECTED: Mapping[str, tuple[str, str]] = {
    "none": ("no_hang", ""),
    "device_stuck": ("device_stuck", "all_reduce"),
    "watchdog": ("device_stuck", "all_reduce"),
}
"""Fault of `nccl_process` -> the verdict on its record, and the collective that has not ended. The only rank of a group
has no peers or network to wait for."""
NCCL_S, FAULT_S = 100.0, 90.0
"""Seconds at most for a process with a NCCL fault, and for a run with an injected one."""


class Verdict(NamedTuple):
    """The result of one fault. `passed`: whether it is the expected one."""

    fault: str
    result: str
    passed: bool

    def __str__(self) -> str:
        return f"| {self.fault} | {self.result} | {'yes' if self.passed else 'no'} |\n"


def run(session: Session, devices: Devices) -> bool:
    """Whether every record of NCCL has its verdict, and the job recovered from every fault."""
    verdicts = [*(flight_record(session, fault) for fault in nccl_process.FAULTS), *recoveries(session)]
    rows = "".join(map(str, verdicts))
    head = "# Recovery and flight records\n\n| fault | result | as expected |\n|---|---|---|\n"
    session.keep("README.md", head + rows)
    return all(verdict.passed for verdict in verdicts)


def flight_record(session: Session, fault: str) -> Verdict:
    """The verdict of `trainyard trace hangs` on the record of a process with a NCCL group and one fault."""
    folder = session.store.with_name(f"nccl-{fault}")
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "benchmarks.device_hour.nccl_process", fault, str(folder)]
    ended = session.call(command, min(NCCL_S, session.left_s))
    # NCCL's own dump, if it wrote one, and the record of trainyard are of the same rank: one of them is read.
    dumps = sorted(folder.glob("nccl_trace_rank_*")) or sorted(folder.glob("rank0.flight"))
    hangs = session.trainyard("trace", "hangs", *map(str, dumps[:1]), "--json", limit=60) if dumps else None
    session.keep(f"nccl-{fault}.txt", (ended.stdout + ended.stderr)[-LOG_END // 4 :])
    if hangs is None or hangs.returncode not in (0, 1):
        why = hangs.stderr.strip().splitlines()[-1:] if hangs else [f"no record, exit code {ended.returncode}"]
        return Verdict(f"NCCL: {fault}", " ".join(why), passed=False)
    session.keep(f"nccl-{fault}.json", hangs.stdout)
    analysis: dict[str, Any] = json.loads(hangs.stdout)
    verdict = (analysis["kind"], analysis.get("operation", ""))
    return Verdict(
        f"NCCL: {fault}", f"{' '.join(filter(None, verdict))}, read from {dumps[0].name}", verdict == EXPECTED[fault]
    )


def recoveries(session: Session) -> list[Verdict]:
    """The score of each fault of `KINDS`, against one run without faults."""
    done = session.trainyard("run", str(JOB), "--quiet", limit=min(FAULT_S, session.left_s))
    if done.returncode:
        session.keep("recovery.txt", (done.stdout + done.stderr)[-LOG_END:])
        return [Verdict("none", f"exit code {done.returncode}, see recovery.txt", passed=False)]
    reference = Store(session.store).rows()[0].id
    return [recovery(session, kind, reference) for kind in KINDS]


def recovery(session: Session, kind: str, reference: str) -> Verdict:
    """The score of one fault. `reference`: the id of the run without faults."""
    if session.left_s < FAULT_S / 3:
        return Verdict(kind, "not injected: no time left", passed=False)
    plan = session.store.with_name("plan.toml")
    plan.write_text(plan_text(kind), "utf-8")
    limit_s = min(FAULT_S, session.left_s)
    done = session.trainyard("run", "chaos", str(plan), str(JOB), "--against", reference, "--json", limit=limit_s)
    try:
        score: dict[str, Any] = json.loads(done.stdout)["chaos"]["faults"][0]
    except (ValueError, KeyError, TypeError, IndexError):
        session.keep(f"{kind}.txt", (done.stdout + done.stderr)[-LOG_END // 2 :])
        return Verdict(kind, f"exit code {done.returncode}, see {kind}.txt", passed=False)
    session.keep(f"{kind}.json", json.dumps(score) + "\n")
    blamed = f"blamed {score['blamed'] or 'nothing'}, detected after {score['detect_s']:.1f} s"
    result = f"{score['outcome']}, {blamed}, restarted in {score['restart_s']:.1f} s, losses {score['losses']}"
    is_correct = score["correctly_blamed"] and score["outcome"] == "recovered"
    return Verdict(kind, result, is_correct and score["losses"] in ("identical", "close"))


def plan_text(kind: str) -> str:
    """A fault plan with one fault, of the first rank or node."""
    target = f"{KINDS[kind]} = 0\n" if KINDS[kind] else ""
    return f'[[fault]]\nkind = "{kind}"\nstep = {STEP}\n{target}'
