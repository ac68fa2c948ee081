"""What happens to a job while it runs, as lines for whoever watches it: faults, nodes that come and go, checkpoints."""

from __future__ import annotations

from pathlib import Path

from trainyard.job import Job
from trainyard.launch.supervisor.event_log import EventLogReader, JobEvent
from trainyard.launch.supervisor.failure_report import NO_OUTPUT
from trainyard.run.resume.resume_hint import saved, where

ENDS = {"worker_death", "agent_death", "hang"}
"""Faults after which all ranks are started again."""


class ProgressMessages:
    """Of the run in `folder`, from now on: what happened before is no news."""

    def __init__(self, folder: Path, job: Job) -> None:
        self.folder, self.job = folder, job
        self._ended: set[int] = set()  # attempts, each of which takes a restart however many faults ended it
        self._events = EventLogReader(folder)
        self._from = saved(folder)

    def lines(self) -> list[str]:
        """Of what happened since this was asked last."""
        return [line for event in self._events.new() if (line := self.line(event))]

    def line(self, event: JobEvent) -> str:
        """Empty for what goes without saying."""
        if event.what == "launched" and event.says:
            return f"{event.says}: {event.nodes} of {self.job.recovery.nodes} nodes, {self._where()}"
        if event.what == "loaded" and event.step != self._from:
            self._from = event.step
            return where(event.step, self.job)
        if event.what != "fault" or event.kind == "preempted":
            return ""
        says = event.says.partition("\n")[0].removesuffix(f" {NO_OUTPUT}").rstrip(".:")
        if event.kind not in ENDS:
            return says
        self._ended.add(event.attempt)
        allowed = self.job.recovery.restarts
        if len(self._ended) > allowed:
            return ""  # the job is over, and its error says why
        return f"{says}; {self._where()}, restart {len(self._ended)} of {allowed}"

    def _where(self) -> str:
        self._from = saved(self.folder)
        return where(self._from, self.job)
