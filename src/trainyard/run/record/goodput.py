"""Incidents and goodput of a run, from the events of its supervisor. Pure, and no torch.

The time of a job goes from the start of its supervisor to its end (for a resumed run, of each supervisor in turn), and
each nanosecond of it has exactly one cause (words.TIMES).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from trainyard import words
from trainyard.job import Job
from trainyard.launch.supervisor.event_log import JobEvent
from trainyard.record import Incident, Sample

_FATAL = {"worker_death", "agent_death", "hang", "preempted"}
"""Faults that end an attempt; it survives the others."""


def last_ranks(events: Sequence[JobEvent], job: Job) -> int:
    """The number of ranks in the last attempt, which left-over files of other ranks do not belong to; 0 if unknown."""
    nodes = [event.nodes for event in events if event.what == "launched"]
    return job.layout.ranks // job.recovery.nodes * nodes[-1] if nodes else 0


def incidents(events: Sequence[JobEvent], samples: Iterable[Sample]) -> tuple[Incident, ...]:
    """Return the run's incidents, in the order in which they were noticed."""
    steps = _steps(samples)
    incidents: list[Incident] = []
    ended: set[int] = set()
    for event in events:
        if event.what == "fault":
            incidents.append(_incident(event, steps, shared=event.attempt in ended))
            ended |= {event.attempt} if event.kind in _FATAL else set()
    return tuple(incidents)


def _incident(event: JobEvent, steps: Sequence[Sample], shared: bool) -> Incident:
    """`shared`: an earlier incident ended the same attempt, and the lost time is charged to it."""
    own = [step for step in steps if step.attempt == event.attempt]
    before = [step.step for step in steps if step.ended_ns <= event.at and step.attempt <= event.attempt]
    again = next((step for step in steps if step.attempt > event.attempt), None) if event.kind in _FATAL else None
    lost = 0
    if again is not None and own and not shared:
        lost = sum(step.wall_ns for step in own if step.step >= again.step)
        if event.kind != "preempted":
            lost += max(0, event.at - own[-1].ended_ns)  # of the step that was cut short
    return Incident(
        kind=event.kind,
        when=datetime.fromtimestamp(event.at / 1e9, UTC).isoformat(timespec="milliseconds"),
        attempt=event.attempt,
        says=event.says,
        rank=event.rank,
        node=event.node,
        step=before[-1] if before else event.step,
        detect_s=max(0, event.noticed - event.at) / 1e9,
        restart_s=max(0, again.ended_ns - again.wall_ns - event.noticed) / 1e9 if again else 0.0,
        lost_s=lost / 1e9,
        resumed=again.step if again else -1,
    )


def goodput(events: Sequence[JobEvent], samples: Iterable[Sample]) -> dict[str, float]:
    """Seconds of the job's time by cause (words.TIMES); empty for a run without a supervisor."""
    return {cause: ns / 1e9 for cause, ns in spent(events, samples).items() if ns}


def spent(events: Sequence[JobEvent], samples: Iterable[Sample]) -> dict[str, int]:
    """The job's time by cause (words.TIMES) in ns, with all causes."""
    steps = _steps(samples)
    total = dict.fromkeys(words.TIMES, 0)
    starts = [index for index, event in enumerate(events) if event.what == "started"]
    for number, index in enumerate(starts):
        until = starts[number + 1] if number + 1 < len(starts) else len(events)
        _Supervision(events[index:until], steps, total).spend()
    return total


def _steps(samples: Iterable[Sample]) -> list[Sample]:
    """The steps of rank 0 in chronological order."""
    own = [sample for sample in samples if sample.rank == 0 and sample.ended_ns]
    return sorted(own, key=lambda sample: (sample.attempt, sample.ended_ns))


class _Supervision:
    """The time of one supervisor: from its start to its end or, if it was killed, to its last known event."""

    def __init__(self, events: Sequence[JobEvent], steps: Sequence[Sample], total: dict[str, int]) -> None:
        """`steps`: those of rank 0 under all supervisors. `total`: ns by cause (words.TIMES), to which the time is
        added."""
        self.total = total
        self.events = [event for event in events if event.what != "started"]
        self.launched = [event for event in events if event.what == "launched"]
        attempts = {event.attempt for event in self.launched}
        self.steps = [step for step in steps if step.attempt in attempts]
        self.known = {step.step for step in steps if attempts and step.attempt < min(attempts)}
        self.at = events[0].at
        ended = [event.at for event in events if event.what == "ended"]
        last = [event.noticed or event.at for event in events] + [step.ended_ns for step in self.steps]
        self.end = max(self.at, ended[-1] if ended else max(last))

    def _charge(self, until: int, cause: str) -> None:
        """Charge the time up to `until`, as far as it is not charged yet, to `cause`."""
        until = min(until, self.end)
        if until > self.at:
            self.total[cause] += until - self.at
            self.at = until

    def spend(self) -> None:
        for number, launched in enumerate(self.launched):
            self._charge(launched.at, "restart" if number else "init")
            self._attempt(launched.attempt)
        self._charge(self.end, "finish" if self.launched else "init")

    def _attempt(self, attempt: int) -> None:
        """Charge the time of one attempt: its start, its steps and saves and, if a fault ended it, the time until that
        was noticed."""
        own = [step for step in self.steps if step.attempt == attempt]
        events = [event for event in self.events if event.attempt == attempt]
        fault = next((event for event in events if event.what == "fault" and event.kind in _FATAL), None)
        if own:
            first = own[0].ended_ns - own[0].wall_ns
            self._start(first, sum(event.ns for event in events if event.what == "loaded"))
            saves = [event for event in events if event.what == "saved"]
            self._train(own, saves)
        if fault is not None:
            # A pre-empted job leaves on request: no step is cut short, and no time passes undetected.
            self._charge(fault.at, "lost" if own and fault.kind != "preempted" else "finish" if own else "init")
            self._charge(fault.noticed, "stall")

    def _start(self, first: int, load: int) -> None:
        self._charge(max(self.at, first - load), "init")
        self._charge(first, "load")

    def _train(self, own: Sequence[Sample], saves: Sequence[JobEvent]) -> None:
        """Charge each step with the time since the previous one; checkpoint saves in between are charged separately."""
        marks = sorted(
            [(step.ended_ns, 0, step) for step in own] + [(save.at, 1, save) for save in saves],
            key=lambda mark: mark[:2],
        )
        ahead = list(own)
        for at, _, mark in marks:
            if isinstance(mark, Sample):
                ahead.pop(0)
                self._charge(at, self._cause(mark))
                self.known.add(mark.step)
            else:
                self._charge(mark.at - mark.ns, self._cause(ahead[0]) if ahead else "finish")
                self._charge(mark.at, "save")

    def _cause(self, step: Sample) -> str:
        return "recompute" if step.step in self.known else "good"
