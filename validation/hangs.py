"""Plant hangs in real gloo jobs and count the exact verdicts: `python -m validation.hangs [--number 100] [--seed 1]`.

Each trial forks two to four ranks that train on random groups, plants one of eight kinds of faults at a random rank,
step and collective, waits until no rank makes progress, collects the flight records, and compares the verdict with the
plan. A verdict is exact if its kind and its ranks are those of the plan. If gloo ends the ranks with an error instead
of hanging, or the job ends in spite of the fault, the records are judged as well.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from trainyard.hangs.decode_record import decode_record
from trainyard.hangs.find_culprit import find_culprit
from trainyard.hangs.flight_record import FlightRecord
from trainyard.hangs.verdict import HangAnalysis
from trainyard.launch.agents.flight_recorder import NAMING_MODULE, SIGNAL
from validation.hang_rank import KINDS, SLOTS, HangPlan, PlannedCollective, main

OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce", "all_to_all", "barrier")
STEPS, STILL_S, START_S, DUMP_S = 7, 0.6, 30.0, 3.0
"""Steps of a trial; seconds without progress that count as a hang, once all ranks have started; seconds to start; and
seconds to write the records."""


class Trial(NamedTuple):
    """A finished trial. `outcome`: `hang`, `error` (all ranks ended, some with an error) or `completed`."""

    plan: HangPlan
    analysis: HangAnalysis
    outcome: str
    seconds: float

    @property
    def is_exact(self) -> bool:
        return self.analysis.kind == self.plan.kind and self.analysis.ranks == (self.plan.rank,)


def draw_plan(kind: str, draw: random.Random) -> HangPlan:
    """A random plan with this fault, which affects at least two ranks. The first steps run without it, so that a rank's
    earlier steps show its usual operations. The size of an all-to-all may differ between ranks, and a barrier has none,
    so that they are not used for a wrong size or number format."""
    while True:
        world = draw.randint(2, 4)
        ranks = range(world)
        groups = [tuple(ranks)]
        for _ in range(draw.randint(0, 2) if world > 2 else 0):
            groups.append(tuple(sorted(draw.sample(ranks, draw.randint(2, world)))))
        collectives = []
        for _ in range(draw.randint(3, SLOTS)):
            group = draw.randrange(len(groups)) if draw.random() < 0.5 else 0
            collectives.append(
                PlannedCollective(
                    draw.choice(OPERATIONS), group, draw.choice((4, 8, 24, 120)), draw.randrange(len(groups[group]))
                )
            )
        plan = HangPlan(
            kind=kind,
            world=world,
            groups=tuple(groups),
            collectives=tuple(collectives),
            steps=STEPS,
            rank=draw.randrange(world),
            step=draw.randint(2, STEPS - 2),
            slot=draw.randrange(len(collectives)),
            loops=draw.random() < 0.2,
            variant=draw.randrange(3),
        )
        if _takes_effect(plan):
            return plan


def _takes_effect(plan: HangPlan) -> bool:
    """Whether the deviation of a plan is one: the rank takes part in the collective, and a swap changes the order."""
    planned = plan.collectives[plan.slot]
    members = plan.groups[planned.group]
    if plan.rank not in members:
        return False
    if plan.kind in ("wrong_size", "wrong_dtype"):
        return planned.operation not in ("barrier", "all_to_all")
    if plan.kind != "wrong_order":
        return True
    if plan.slot + 1 >= len(plan.collectives):
        return False
    other = plan.collectives[plan.slot + 1]
    if other.group == planned.group:
        is_barrier = other.operation == planned.operation == "barrier"
        return not is_barrier and (other.operation, other.elements) != (planned.operation, planned.elements)
    shared = set(members) & set(plan.groups[other.group])
    return plan.rank in shared and len(shared) > 1


def run_trial(plan: HangPlan, folder: Path) -> Trial:
    """Run a plan in real processes, collect the records of its ranks, and judge them. No process outlives the call.

    `folder`: an empty one for the ranks' files."""
    began_s = time.monotonic()
    counters = memoryview(mmap.mmap(-1, 8 * plan.world)).cast("q")
    pids: dict[int, int] = {}
    for rank in range(plan.world):
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)  # loader workers end with their rank

            def count(rank: int = rank) -> None:
                counters[rank] += 1

            main(plan, rank, folder, count)
        pids[rank] = pid
    exits: dict[int, int] = {}
    try:
        outcome = _wait_for_hang(plan, pids, exits, counters)
        states = {rank: _process_state(pid) for rank, pid in pids.items() if rank not in exits}
        _collect(pids, exits, states, folder)
        analysis = find_culprit([_record(rank, folder, exits.get(rank), states.get(rank)) for rank in pids])
    finally:
        _end_all(pids, exits)
    return Trial(plan, analysis, outcome, time.monotonic() - began_s)


def _wait_for_hang(plan: HangPlan, pids: dict[int, int], exits: dict[int, int], counters: Sequence[int]) -> str:
    """Wait until all ranks have ended or none makes progress; return the outcome as in `Trial`. `exits` gets the exit
    code of each rank that ends."""
    last, since_s = list(counters), time.monotonic()
    while len(exits) < len(pids):
        _reap(pids, exits, os.WNOHANG)
        now_s = time.monotonic()
        if list(counters) != last:
            last, since_s = list(counters), now_s
        is_started = all(counters)
        if now_s - since_s > (STILL_S if is_started else START_S):
            return "hang"
        time.sleep(0.02)
    return "error" if any(exits.values()) else "completed"


def _reap(pids: dict[int, int], exits: dict[int, int], flags: int) -> None:
    for rank, pid in pids.items():
        if rank not in exits:
            ended, status = os.waitpid(pid, flags)
            if ended:
                exits[rank] = os.waitstatus_to_exitcode(status)


def _process_state(pid: int) -> str:
    """The state letter of a process, as in proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def _collect(pids: dict[int, int], exits: dict[int, int], states: dict[int, str], folder: Path) -> None:
    """Have each rank that runs write its flight record, and wait for the files."""
    signalled = [rank for rank in pids if rank not in exits and states[rank] != "T"]
    for rank in signalled:
        os.kill(pids[rank], SIGNAL)
    deadline_s = time.monotonic() + DUMP_S
    while time.monotonic() < deadline_s and not all((folder / f"rank{rank}.flight").exists() for rank in signalled):
        time.sleep(0.02)


def _record(rank: int, folder: Path, exit_code: int | None, state: str | None) -> FlightRecord:
    """The record of a rank with the state of its process, which alone is known if the rank could not write one."""
    path = folder / f"rank{rank}.flight"
    record = decode_record(path.read_bytes(), path.name, rank) if path.exists() else FlightRecord(rank)
    return record._replace(state=record.state._replace(exit_code=exit_code, is_stopped=state == "T"))


def _end_all(pids: dict[int, int], exits: dict[int, int]) -> None:
    """Kill each rank with the workers of its loader, and wait for it."""
    for rank, pid in pids.items():
        if rank not in exits:
            os.kill(pid, signal.SIGKILL)
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    _reap(pids, exits, 0)


def trials(number: int, seed: int) -> Iterator[Trial]:
    """Run `number` trials, the kinds in turn."""
    import_module(NAMING_MODULE)  # once, rather than in each rank
    for index in range(number):
        kind = KINDS[index % len(KINDS)]
        plan = draw_plan(kind, random.Random(f"{seed}/{index}"))  # noqa: S311  not for cryptography
        with tempfile.TemporaryDirectory(prefix="hang-") as folder:
            yield run_trial(plan, Path(folder))


def report(number: int, seed: int) -> int:
    """Run the trials and print each inexact one and the totals; return the number of exact verdicts."""
    exact, outcomes, totals = Counter[str](), Counter[str](), Counter[str]()
    seconds = 0.0
    for index, trial in enumerate(trials(number, seed)):
        totals[trial.plan.kind] += 1
        outcomes[f"{trial.plan.kind}: {trial.outcome}"] += 1
        exact[trial.plan.kind] += trial.is_exact
        seconds += trial.seconds
        if not trial.is_exact:
            print(f"trial {index}: planted {trial.plan.kind} on rank {trial.plan.rank}: {trial.plan}")
            print(f"    {trial.outcome}: {trial.analysis.summary} {trial.analysis.evidence}", flush=True)
    for kind in KINDS:
        if totals[kind]:
            by_outcome = ", ".join(
                f"{count} {name.partition(': ')[2]}"
                for name, count in sorted(outcomes.items())
                if name.startswith(kind)
            )
            print(f"{kind:20} {exact[kind]:3} of {totals[kind]:3} exact   ({by_outcome})")
    print(f"all                  {exact.total():3} of {totals.total():3} exact, {seconds / number:.1f} s each")
    return exact.total()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    raise SystemExit(report(arguments.number, arguments.seed) * 100 < 95 * arguments.number)
