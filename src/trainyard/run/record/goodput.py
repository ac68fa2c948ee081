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
"""Faults that end an attempt; the others it outlives."""


def last_ranks(events: Sequence[JobEvent], job: Job) -> int:
    """How many ranks the last attempt had: what others left is not of it. 0 where nobody said it."""
    nodes = [event.nodes for event in events if event.what == "launched"]
    return job.layout.ranks // job.recovery.nodes * nodes[-1] if nodes else 0


def incidents(events: Sequence[JobEvent], samples: Iterable[Sample]) -> tuple[Incident, ...]:
    """What went wrong, in the order in which it was noticed."""
    steps = _steps(samples)
    incidents: list[Incident] = []
    ended: set[int] = set()
    for event in events:
        if event.what == "fault":
            incidents.append(_incident(event, steps, shared=event.attempt in ended))
            ended |= {event.attempt} if event.kind in _FATAL else set()
    return tuple(incidents)


def _incident(event: JobEvent, steps: Sequence[Sample], shared: bool) -> Incident:
    """`shared`: an earlier incident ended the same attempt, and has the lost time."""
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
    """Seconds of the job's life by cause; empty where nobody watched it."""
    return {cause: ns / 1e9 for cause, ns in spent(events, samples).items() if ns}


def spent(events: Sequence[JobEvent], samples: Iterable[Sample]) -> dict[str, int]:
    """The same in ns, every cause."""
    steps = _steps(samples)
    total = dict.fromkeys(words.TIMES, 0)
    starts = [place for place, event in enumerate(events) if event.what == "started"]
    for number, place in enumerate(starts):
        until = starts[number + 1] if number + 1 < len(starts) else len(events)
        _Life(events[place:until], steps, total).spend()
    return total


def _steps(samples: Iterable[Sample]) -> list[Sample]:
    """The steps of rank 0 in the order of their time."""
    own = [sample for sample in samples if sample.rank == 0 and sample.ended_ns]
    return sorted(own, key=lambda sample: (sample.attempt, sample.ended_ns))


class _Life:
    """One supervisor's, from its start to its end, or where it was killed to the last that is known of it."""

    def __init__(self, events: Sequence[JobEvent], steps: Sequence[Sample], total: dict[str, int]) -> None:
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

    def _to(self, until: int, cause: str) -> None:
        """What is left of the time until then went into `cause`."""
        until = min(until, self.end)
        if until > self.at:
            self.total[cause] += until - self.at
            self.at = until

    def spend(self) -> None:
        for number, launched in enumerate(self.launched):
            self._to(launched.at, "restart" if number else "init")
            self._attempt(launched.attempt)
        self._to(self.end, "finish" if self.launched else "init")

    def _attempt(self, attempt: int) -> None:
        own = [step for step in self.steps if step.attempt == attempt]
        events = [event for event in self.events if event.attempt == attempt]
        fault = next((event for event in events if event.what == "fault" and event.kind in _FATAL), None)
        if own:
            first = own[0].ended_ns - own[0].wall_ns
            self._start(first, sum(event.ns for event in events if event.what == "loaded"))
            saves = [event for event in events if event.what == "saved"]
            self._train(own, saves)
        if fault is not None:
            # A pre-empted job is told to leave: nothing is cut short, and nobody fails to notice.
            self._to(fault.at, "lost" if own and fault.kind != "preempted" else "finish" if own else "init")
            self._to(fault.noticed, "stall")

    def _start(self, first: int, load: int) -> None:
        self._to(max(self.at, first - load), "init")
        self._to(first, "load")

    def _train(self, own: Sequence[Sample], saves: Sequence[JobEvent]) -> None:
        """Each step with what lies between it and the one before; the saving in there is told of."""
        marks = sorted(
            [(step.ended_ns, 0, step) for step in own] + [(save.at, 1, save) for save in saves],
            key=lambda mark: mark[:2],
        )
        ahead = list(own)
        for at, _, mark in marks:
            if isinstance(mark, Sample):
                ahead.pop(0)
                self._to(at, self._cause(mark))
                self.known.add(mark.step)
            else:
                self._to(mark.at - mark.ns, self._cause(ahead[0]) if ahead else "finish")
                self._to(mark.at, "save")

    def _cause(self, step: Sample) -> str:
        return "recompute" if step.step in self.known else "good"
