"""What came of each fault of a plan: a pure function of two runs, one with the faults and one without. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise

import msgspec

from trainyard.launch.supervisor.event_log import JobEvent
from trainyard.record import Incident, Run, Sample
from trainyard.run.chaos.chaos_files import InjectedFault
from trainyard.run.chaos.fault_plan import Fault, FaultPlan

CLOSE = 1e-5
"""Relative: losses this near are the same training on another layout."""
_S = 1_000_000_000


class FaultScore(msgspec.Struct, frozen=True, kw_only=True):
    """One fault. `rank`, `node` and `step` as planned, -1 for none; `made`: the step before which it was, -1 if never.

    `blamed`, `blamed_rank`, `blamed_node`: the incident (words.FAULTS) that was told of it, empty and -1 where none
    was; `right`: it is of the fault's kind, and names the rank or node that was struck. Times in seconds: `detect_s`
    from the fault itself to its being noticed, `restart_s` from then until all ranks train again, of which `import_s`
    went into a new supervisor that loaded torch, `lost_s` training that was done again.
    `outcome`: recovered: the run is complete; failed: it said of what and ended; stuck: neither; unmade: nothing was
    struck. `losses` of the steps that ended from the fault to the next one, in every attempt, against the run without
    faults: identical to the bit, close (1e-5), different, or missing: some were never taken. `loss_error`: the largest
    relative one.
    """

    kind: str
    step: int
    rank: int = -1
    node: int = -1
    made: int = -1
    blamed: str = ""
    blamed_rank: int = -1
    blamed_node: int = -1
    right: bool = False
    detect_s: float = 0.0
    restart_s: float = 0.0
    import_s: float = 0.0
    lost_s: float = 0.0
    outcome: str = "unmade"
    losses: str = "missing"
    loss_error: float = 0.0

    @property
    def well(self) -> bool:
        """As it should be, to the last digit."""
        return self.right and self.outcome == "recovered" and self.losses in ("identical", "close")


def score(
    run: Run, calm: Run, plan: FaultPlan, made: Mapping[int, InjectedFault], events: Sequence[JobEvent] = ()
) -> tuple[FaultScore, ...]:
    """A row a fault, in the order of the plan. `calm`: the run without faults. `made`: by place in the plan. `events`:
    of the run's life, for the time that importing took.

    Each incident is set down to one fault at most, which was made before it was noticed: to one that must be found as
    this where there is one, else to the first that was found as nothing.
    """
    order = sorted(made, key=lambda number: made[number].at)
    faults = {number: plan.fault[number] for number in order}
    blamed = _blamed(run, faults, made)
    ends = {number: made[after].at for number, after in pairwise(order)}
    rows: list[FaultScore] = []
    for number, fault in enumerate(plan.fault):
        row = FaultScore(kind=fault.kind, step=fault.step, rank=fault.rank, node=fault.node)
        if number in made:
            at = made[number].at
            row = _struck(row, fault, made[number], blamed.get(number, []), events)
            losses, error = _losses(run, calm, at, ends.get(number, 0))
            row = msgspec.structs.replace(row, outcome=_outcome(run), losses=losses, loss_error=error)
        rows.append(row)
    return tuple(rows)


def strays(run: Run, plan: FaultPlan, made: Mapping[int, InjectedFault]) -> tuple[Incident, ...]:
    """Incidents that no fault of the plan accounts for: false alarms, or faults that nobody planned."""
    faults = {number: plan.fault[number] for number in sorted(made, key=lambda number: made[number].at)}
    known = [one for each in _blamed(run, faults, made).values() for one in each]
    return tuple(one for one in run.incidents if all(one is not other for other in known))


def _blamed(run: Run, faults: Mapping[int, Fault], made: Mapping[int, InjectedFault]) -> dict[int, list[Incident]]:
    """By place in the plan, those that were told of it, what names it first."""
    free = list(run.incidents)  # those that are alike are taken one by one
    found: dict[int, list[Incident]] = {}

    def take(number: int, fits: Iterable[Incident]) -> None:
        one = next((one for one in fits if _noticed(one) >= made[number].at), None)
        if one is not None:
            free[:] = [other for other in free if other is not one]
            found.setdefault(number, []).append(one)

    for number, fault in faults.items():
        take(number, [one for one in free if _names(one, fault)])
    for number, fault in faults.items():
        if fault.kind == "flip_byte":  # the kill that has the byte read
            take(number, [one for one in free if one.kind == "worker_death" and one.rank == fault.rank])
    for number in faults:
        if number not in found:
            take(number, list(free))
    return found


def _names(one: Incident, fault: Fault) -> bool:
    """Whether an incident says what was done, and to whom. A damaged checkpoint is nobody's."""
    if one.kind != fault.blamed:
        return False
    if fault.kind == "flip_byte":
        return True
    return (fault.rank < 0 or one.rank == fault.rank) and (fault.node < 0 or one.node == fault.node)


def _noticed(one: Incident) -> int:
    """ns since the epoch, no earlier than it was: an incident's time is kept to the millisecond."""
    return round(datetime.fromisoformat(one.when).timestamp() * 1000) * 1_000_000 + round(one.detect_s * _S) + 999_999


def _struck(
    row: FaultScore, fault: Fault, made: InjectedFault, blamed: Sequence[Incident], events: Sequence[JobEvent]
) -> FaultScore:
    row = msgspec.structs.replace(row, made=made.step)
    if not blamed:
        return row
    named, first = blamed[0], min(blamed, key=_noticed)
    restart = max(one.restart_s for one in blamed)
    until = max(_noticed(one) + round(one.restart_s * _S) for one in blamed)
    return msgspec.structs.replace(
        row,
        blamed=named.kind,
        blamed_rank=named.rank,
        blamed_node=named.node,
        right=_names(named, fault),
        detect_s=max(0.0, (_noticed(first) - made.at) / _S),
        restart_s=restart,
        import_s=min(restart, sum(_imports(events, made.at, until))),
        lost_s=sum(one.lost_s for one in blamed),
    )


def _imports(events: Sequence[JobEvent], since: int, until: int) -> Iterator[float]:
    """Seconds from the start of each supervisor to its first ranks: torch is loaded in them, and agents meet."""
    for place, event in enumerate(events):
        if event.what == "started" and since <= event.at <= until:
            launched = next((one.at for one in events[place:] if one.what == "launched"), event.at)
            yield (launched - event.at) / _S


def _outcome(run: Run) -> str:
    if run.state == "complete":
        return "recovered"
    return "failed" if run.state == "failed" and run.failure else "stuck"


def _losses(run: Run, calm: Run, since: int, until: int) -> tuple[str, float]:
    """Of the steps that ended since a fault and, where another came, before that one; (verdict, largest error)."""
    expected = {one.step: one.loss for one in _told(calm)}
    steps = [one for one in _told(run) if one.ended_ns >= since and (not until or one.ended_ns < until)]
    never = expected.keys() - {one.step for one in _told(run)}
    if not expected or never or (not steps and not until):
        return "missing", 0.0
    pairs = [(expected.get(one.step), one.loss) for one in steps]
    errors = [_error(a, b) for a, b in pairs]
    worst = max(errors, default=0.0)
    return "identical" if worst == 0 else "close" if worst <= CLOSE else "different", worst


def _told(run: Run) -> list[Sample]:
    return [one for one in run.samples if one.rank == 0]


def _error(a: float | None, b: float | None) -> float:
    """Relative; 0 only of what is the same to the bit."""
    if a is None or b is None:
        return math.inf
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    error = abs(a - b) / max(abs(a), abs(b))
    return error if math.isfinite(error) else math.inf
