"""Score the recovery from each fault of a plan: a pure function of two runs, with and without the faults. No torch.

A fault of the plan is identified by its index in it (`number`). An incident is a fault as the supervisor of the run
detected it, with the rank or node that it blames. Times of events are ns since the epoch.
"""

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
"""Relative loss difference up to which two runs count as the same training on different layouts."""
_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000


class FaultScore(msgspec.Struct, frozen=True, kw_only=True):
    """The score of one fault.

    `rank`, `node`, `step`: as planned; -1 if not given. `injected_step`: the step before which the fault was
    injected; -1 if it never was. `blamed`, `blamed_rank`, `blamed_node`: kind (words.FAULTS), rank and node of the
    incident attributed to it; empty and -1 if there is none. `correctly_blamed`: that incident has the
    fault's kind, and its rank or node.

    Times in seconds: `detect_s` from the injection to the detection; `restart_s` from the detection until all ranks
    train again, including `import_s` for a new supervisor to load torch; `lost_s` of training that was repeated.

    `outcome`: "recovered": the run is complete; "failed": it ended with a reason; "stuck": neither; or
    "not injected". `losses`: comparison with the run without faults, over the steps that ended between this fault and
    the next one, in every attempt: "identical" (bitwise), "close" (1e-5), "different", or "missing" if some steps were
    never taken. `loss_error`: the largest relative error; None if it is infinite or
    not a number.
    """

    kind: str
    step: int
    rank: int = -1
    node: int = -1
    injected_step: int = -1
    blamed: str = ""
    blamed_rank: int = -1
    blamed_node: int = -1
    correctly_blamed: bool = False
    detect_s: float = 0.0
    restart_s: float = 0.0
    import_s: float = 0.0
    lost_s: float = 0.0
    outcome: str = "not injected"
    losses: str = "missing"
    loss_error: float | None = 0.0

    @property
    def correct(self) -> bool:
        """Whether the right incident was reported, the run recovered and its losses match."""
        return self.correctly_blamed and self.outcome == "recovered" and self.losses in ("identical", "close")


def score_faults(
    run: Run, reference: Run, plan: FaultPlan, injected: Mapping[int, InjectedFault], events: Sequence[JobEvent] = ()
) -> tuple[FaultScore, ...]:
    """Score each fault, in the order of the plan.

    `reference`: the run without faults. `injected`: injected faults by index in the plan. `events`: the run's event
    log, for the time spent on imports.

    Each incident is attributed to at most one fault, which was injected before the incident was noticed: preferably to
    a fault of the matching kind and target, else to the first fault without an incident.
    """
    order = sorted(injected, key=lambda number: injected[number].at)
    faults = {number: plan.fault[number] for number in order}
    incidents_by_fault = _attribute_incidents(run, faults, injected)
    # Index of a fault -> time of the next injection, which ends the steps whose losses count for it.
    next_injection_ns = {number: injected[after].at for number, after in pairwise(order)}
    rows: list[FaultScore] = []
    for number, fault in enumerate(plan.fault):
        row = FaultScore(kind=fault.kind, step=fault.step, rank=fault.rank, node=fault.node)
        if number in injected:
            row = _add_incidents(row, fault, injected[number], incidents_by_fault.get(number, []), events)
            losses, error = _compare_losses(run, reference, injected[number].at, next_injection_ns.get(number, 0))
            row = msgspec.structs.replace(
                row, outcome=_outcome(run), losses=losses, loss_error=error if math.isfinite(error) else None
            )
        rows.append(row)
    return tuple(rows)


def strays(run: Run, plan: FaultPlan, injected: Mapping[int, InjectedFault]) -> tuple[Incident, ...]:
    """Return the incidents that no fault of the plan accounts for: false alarms, or faults that were not planned.
    `injected`: by the fault's index in the plan."""
    faults = {number: plan.fault[number] for number in sorted(injected, key=lambda number: injected[number].at)}
    scored_incidents = [
        incident for incidents in _attribute_incidents(run, faults, injected).values() for incident in incidents
    ]
    return tuple(incident for incident in run.incidents if all(incident is not scored for scored in scored_incidents))


def _attribute_incidents(
    run: Run, faults: Mapping[int, Fault], injected: Mapping[int, InjectedFault]
) -> dict[int, list[Incident]]:
    """Map each fault's index in the plan to the incidents attributed to it, the one that identifies it first.

    `faults`, `injected`: by the fault's index in the plan, in order of injection. First each fault gets the earliest
    incident of its kind and target, then a flipped byte also the death of its rank, then a fault without any the
    earliest that is left.
    """
    unattributed = list(run.incidents)  # equal incidents are taken one by one
    by_fault: dict[int, list[Incident]] = {}

    def attribute(number: int, candidates: Iterable[Incident]) -> None:
        """Attribute the first candidate that was noticed after the injection of fault `number`, if there is one."""
        incident = next((candidate for candidate in candidates if _noticed_ns(candidate) >= injected[number].at), None)
        if incident is not None:
            unattributed[:] = [other for other in unattributed if other is not incident]
            by_fault.setdefault(number, []).append(incident)

    for number, fault in faults.items():
        attribute(number, [incident for incident in unattributed if _identifies(incident, fault)])
    for number, fault in faults.items():
        if fault.kind == "flip_byte":  # the fault also kills the rank, so that the checkpoint is read
            deaths = [incident for incident in unattributed if incident.kind == "worker_death"]
            attribute(number, [incident for incident in deaths if incident.rank == fault.rank])
    for number in faults:
        if number not in by_fault:
            attribute(number, list(unattributed))
    return by_fault


def _identifies(incident: Incident, fault: Fault) -> bool:
    """Whether an incident has the fault's kind and its rank or node. A damaged checkpoint belongs to no rank."""
    if incident.kind != fault.blamed:
        return False
    if fault.kind == "flip_byte":
        return True
    return (fault.rank < 0 or incident.rank == fault.rank) and (fault.node < 0 or incident.node == fault.node)


def _noticed_ns(incident: Incident) -> int:
    """When an incident was noticed, in ns since the epoch: the time of the fault and the time to detect it.

    The time of the fault is stored in whole milliseconds, rounded down; the end of that millisecond is used, so that an
    incident never seems to come before its cause.
    """
    return (
        round(datetime.fromisoformat(incident.time).timestamp() * 1000) * _NS_PER_MS
        + round(incident.detect_s * _NS_PER_S)
        + _NS_PER_MS
        - 1
    )


def _add_incidents(
    row: FaultScore, fault: Fault, injection: InjectedFault, incidents: Sequence[Incident], events: Sequence[JobEvent]
) -> FaultScore:
    """Return `row` with the figures of the incidents attributed to the fault.

    `incidents`: the one that identifies the fault first, may be empty; `injection`: when the fault was injected;
    `events`: the event log of the whole job. `detect_s` is that of the earliest incident, `restart_s` the longest,
    `lost_s` the sum, in seconds.
    """
    row = msgspec.structs.replace(row, injected_step=injection.step)
    if not incidents:
        return row
    main_incident, earliest = incidents[0], min(incidents, key=_noticed_ns)
    restart_s = max(incident.restart_s for incident in incidents)
    trains_again_ns = max(_noticed_ns(incident) + round(incident.restart_s * _NS_PER_S) for incident in incidents)
    return msgspec.structs.replace(
        row,
        blamed=main_incident.kind,
        blamed_rank=main_incident.rank,
        blamed_node=main_incident.node,
        correctly_blamed=_identifies(main_incident, fault),
        detect_s=max(0.0, (_noticed_ns(earliest) - injection.at) / _NS_PER_S),
        restart_s=restart_s,
        import_s=min(restart_s, sum(_import_seconds(events, injection.at, trains_again_ns))),
        lost_s=sum(incident.lost_s for incident in incidents),
    )


def _import_seconds(events: Sequence[JobEvent], since_ns: int, until_ns: int) -> Iterator[float]:
    """For each supervisor that started between `since_ns` and `until_ns`, yield the seconds until it launched ranks:
    the time to load torch and for the agents to meet."""
    for index, event in enumerate(events):
        if event.type == "started" and since_ns <= event.at <= until_ns:
            launched_ns = next((later.at for later in events[index:] if later.type == "launched"), event.at)
            yield (launched_ns - event.at) / _NS_PER_S


def _outcome(run: Run) -> str:
    """`recovered`, `failed` or `stuck`, as in `FaultScore`."""
    if run.state == "complete":
        return "recovered"
    return "failed" if run.state == "failed" and run.failure else "stuck"


def _compare_losses(run: Run, reference: Run, since_ns: int, until_ns: int) -> tuple[str, float]:
    """Compare the losses of rank 0 with those of `reference`, the run without faults: (verdict, largest relative
    error).

    Compared are the steps, of any attempt, that ended from `since_ns` to `until_ns` (0: to the end). Verdicts:
    "identical" (bitwise), "close" (a relative error of at most `CLOSE`), "different", or "missing" if the run lacks a
    step of the reference, or no step ended after `since_ns`.
    """
    expected = {sample.step: sample.loss for sample in _rank0_samples(reference)}
    steps = [
        sample
        for sample in _rank0_samples(run)
        if sample.ended_ns >= since_ns and (not until_ns or sample.ended_ns < until_ns)
    ]
    missing_steps = expected.keys() - {sample.step for sample in _rank0_samples(run)}
    if not expected or missing_steps or (not steps and not until_ns):
        return "missing", 0.0
    pairs = [(expected.get(sample.step), sample.loss) for sample in steps]
    largest_error = max((_relative_error(a, b) for a, b in pairs), default=0.0)
    return "identical" if largest_error == 0 else "close" if largest_error <= CLOSE else "different", largest_error


def _rank0_samples(run: Run) -> list[Sample]:
    return [sample for sample in run.samples if sample.rank == 0]


def _relative_error(a: float | None, b: float | None) -> float:
    """|a - b| over the larger absolute value; 0 only for equal losses or two NaN, infinite if a loss is missing."""
    if a is None or b is None:
        return math.inf
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    error = abs(a - b) / max(abs(a), abs(b))
    return error if math.isfinite(error) else math.inf
