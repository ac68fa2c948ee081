"""Incidents and goodput of a run, from the events of its supervisor. Pure, and no torch.

The time of a job goes from the start of its supervisor to its end (for a resumed run, of each supervisor in turn), and
each nanosecond of it has exactly one cause (words.TIMES).

An attempt is the time from one launch of the ranks to their end; after a fault the supervisor launches them again.
Events have a time `at` and, for a fault, the time `noticed` at which it was detected, both ns since the epoch. Samples
are the timings of single steps; `ended_ns` and `wall_ns` are the end and the duration of a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from trainyard import words
from trainyard.job import Job
from trainyard.launch.supervisor.event_log import JobEvent
from trainyard.record import Incident, Sample

_FATAL = {"worker_death", "agent_death", "supervisor_death", "hang", "preempted"}
_FATAL_ACTIONS = {"stop", "rollback"}
"""Faults that end an attempt, by kind or by the action of the run; it survives the others."""


def last_ranks(events: Sequence[JobEvent], job: Job) -> int:
    """The number of ranks in the last attempt, 0 if unknown. After a loss of nodes it is smaller than before; files of
    ranks with higher numbers are left over from earlier attempts."""
    nodes = [event.nodes for event in events if event.type == "launched"]
    return job.ranks_on(nodes[-1]) if nodes else 0


def incidents(events: Sequence[JobEvent], samples: Iterable[Sample]) -> tuple[Incident, ...]:
    """Return the run's incidents (detected faults), in the order in which they were noticed.

    `events`: of the job, in order; `samples`: of all ranks.
    """
    steps = _steps(samples)
    incidents: list[Incident] = []
    ended_attempts: set[int] = set()
    for event in events:
        if event.type == "fault":
            incidents.append(_incident(event, steps, shared=event.attempt in ended_attempts))
            ended_attempts |= {event.attempt} if _is_fatal(event) else set()
    return tuple(incidents)


def _is_fatal(event: JobEvent) -> bool:
    """Whether a fault ended its attempt."""
    return event.kind in _FATAL or event.action in _FATAL_ACTIONS


def _incident(event: JobEvent, steps: Sequence[Sample], shared: bool) -> Incident:
    """The incident of a fault: the times to detect it and to restart, and the training time lost, in seconds.

    `event`: the fault; `steps`: samples of rank 0 in all attempts, in order; `shared`: an earlier incident ended the
    same attempt, and the lost time is charged to it. Lost are steps that later attempts repeat and the step that the
    fault cut short.
    """
    attempt_steps = [step for step in steps if step.attempt == event.attempt]
    earlier_steps = [step.step for step in steps if step.ended_ns <= event.at and step.attempt <= event.attempt]
    first_step_after = (
        next((step for step in steps if step.attempt > event.attempt), None) if _is_fatal(event) else None
    )
    lost_ns = 0
    if first_step_after is not None and attempt_steps and not shared:
        lost_ns = sum(step.wall_ns for step in attempt_steps if step.step >= first_step_after.step)
        if event.kind != "preempted":
            lost_ns += max(0, event.at - attempt_steps[-1].ended_ns)  # of the step that was cut short
    return Incident(
        kind=event.kind,
        time=datetime.fromtimestamp(event.at / 1e9, UTC).isoformat(timespec="milliseconds"),
        attempt=event.attempt,
        summary=event.message,
        verdict=event.verdict,
        action=event.action,
        rank=event.rank,
        node=event.node,
        step=earlier_steps[-1] if earlier_steps and not event.action else event.step,
        detect_s=max(0, event.noticed - event.at) / 1e9,
        restart_s=max(0, first_step_after.ended_ns - first_step_after.wall_ns - event.noticed) / 1e9
        if first_step_after
        else 0.0,
        lost_s=lost_ns / 1e9,
        resumed_step=first_step_after.step if first_step_after else -1,
    )


def goodput(events: Sequence[JobEvent], samples: Iterable[Sample]) -> dict[str, float]:
    """Seconds of the job's time by cause (words.TIMES); empty for a run without a supervisor."""
    return {cause: ns / 1e9 for cause, ns in time_by_cause(events, samples).items() if ns}


def time_by_cause(events: Sequence[JobEvent], samples: Iterable[Sample]) -> dict[str, int]:
    """The job's time by cause: key of words.TIMES -> ns, with all causes.

    `events`: of the job, in order; `samples`: of all ranks. The events of each supervisor (a resumed run has several)
    begin with its `started`.
    """
    steps = _steps(samples)
    ns_by_cause = dict.fromkeys(words.TIMES, 0)
    starts = [index for index, event in enumerate(events) if event.type == "started"]
    for number, index in enumerate(starts):
        next_start = starts[number + 1] if number + 1 < len(starts) else len(events)
        _Supervision(events[index:next_start], steps, ns_by_cause).charge_all()
    return ns_by_cause


def _steps(samples: Iterable[Sample]) -> list[Sample]:
    """The steps of rank 0 in chronological order."""
    rank0_samples = [sample for sample in samples if sample.rank == 0 and sample.ended_ns]
    return sorted(rank0_samples, key=lambda sample: (sample.attempt, sample.ended_ns))


class _Supervision:
    """Charges the time of one supervisor: from its start to its end or, if it was killed, to its last known event.

    Time is charged in order, so that `charged_until_ns` moves forward from the start to the end.
    """

    def __init__(self, events: Sequence[JobEvent], steps: Sequence[Sample], total: dict[str, int]) -> None:
        """`steps`: those of rank 0 under all supervisors. `total`: ns by cause (words.TIMES), to which the time is
        added."""
        self.total_ns = total
        self.events = [event for event in events if event.type != "started"]
        self.launched = [event for event in events if event.type == "launched"]
        attempts = {event.attempt for event in self.launched}
        self.steps = [step for step in steps if step.attempt in attempts]
        self.steps_taken = {step.step for step in steps if attempts and step.attempt < min(attempts)}
        """Numbers of the steps taken so far: taking one again is recomputation."""
        self.charged_until_ns = events[0].at
        end_times_ns = [event.at for event in events if event.type == "ended"]
        known_times_ns = [event.noticed or event.at for event in events] + [step.ended_ns for step in self.steps]
        self.end_ns = max(self.charged_until_ns, end_times_ns[-1] if end_times_ns else max(known_times_ns))

    def _charge(self, until_ns: int, cause: str) -> None:
        """Charge the time up to `until_ns`, as far as it is not charged yet, to `cause`."""
        until_ns = min(until_ns, self.end_ns)
        if until_ns > self.charged_until_ns:
            self.total_ns[cause] += until_ns - self.charged_until_ns
            self.charged_until_ns = until_ns

    def charge_all(self) -> None:
        """Charge all of the supervisor's time to `total`, attempt by attempt."""
        for number, launched in enumerate(self.launched):
            self._charge(launched.at, "restart" if number else "init")
            self._charge_attempt(launched.attempt)
        self._charge(self.end_ns, "finish" if self.launched else "init")

    def _charge_attempt(self, attempt: int) -> None:
        """Charge the time of one attempt: its start, its steps and saves and, if a fault ended it, the time from the
        last step to the fault and from the fault until it was noticed."""
        attempt_steps = [step for step in self.steps if step.attempt == attempt]
        events = [event for event in self.events if event.attempt == attempt]
        fault = next((event for event in events if event.type == "fault" and _is_fatal(event)), None)
        if attempt_steps:
            first_begin_ns = attempt_steps[0].ended_ns - attempt_steps[0].wall_ns
            self._charge_start(first_begin_ns, sum(event.ns for event in events if event.type == "loaded"))
            saves = [event for event in events if event.type == "saved"]
            self._charge_training(attempt_steps, saves)
        if fault is not None:
            # A pre-empted job leaves on request: no step is cut short, and no time passes undetected.
            self._charge(
                fault.at,
                "lost" if attempt_steps and fault.kind != "preempted" else "finish" if attempt_steps else "init",
            )
            self._charge(fault.noticed, "stall")

    def _charge_start(self, first_begin_ns: int, load_ns: int) -> None:
        self._charge(max(self.charged_until_ns, first_begin_ns - load_ns), "init")
        self._charge(first_begin_ns, "load")

    def _charge_training(self, attempt_steps: Sequence[Sample], saves: Sequence[JobEvent]) -> None:
        """Charge the time from each step's end back to the previous one to that step, and checkpoint `saves` in between
        to `save`. `attempt_steps`: of one attempt, in order."""
        # (end, steps before saves, step or save), in order.
        marks = sorted(
            [(step.ended_ns, 0, step) for step in attempt_steps] + [(save.at, 1, save) for save in saves],
            key=lambda mark: mark[:2],
        )
        steps_ahead = list(attempt_steps)
        for end_ns, _, mark in marks:
            if isinstance(mark, Sample):
                steps_ahead.pop(0)
                self._charge(end_ns, self._cause(mark))
                self.steps_taken.add(mark.step)
            else:
                self._charge(mark.at - mark.ns, self._cause(steps_ahead[0]) if steps_ahead else "finish")
                self._charge(mark.at, "save")

    def _cause(self, step: Sample) -> str:
        if step.skipped:
            return "lost"
        return "recompute" if step.step in self.steps_taken else "good"
