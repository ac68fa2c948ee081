"""Progress messages of a running job, one line each: faults, changes of nodes, resumed checkpoints.

The events come from the log that the supervisor and the ranks write in the run's folder.
"""

from __future__ import annotations

from pathlib import Path

from trainyard.job import Job
from trainyard.launch.supervisor.event_log import EventLogReader, JobEvent
from trainyard.launch.supervisor.failure_report import NO_OUTPUT
from trainyard.run.resume.resume_hint import describe_resume_point, saved_steps

ENDS = {"worker_death", "agent_death", "hang"}
"""Faults after which all ranks are restarted."""


class ProgressMessages:
    """Messages on the events of the run in `folder` from now on, without earlier ones."""

    def __init__(self, folder: Path, job: Job) -> None:
        """Begin at the current end of the run's event log."""
        self.folder, self.job = folder, job
        self._ended_attempts: set[int] = set()
        """Numbers of attempts; each takes one restart, however many faults ended it."""
        self._events = EventLogReader(folder)
        self._resume_step = saved_steps(folder)
        """Number of steps at the checkpoint that the last message named."""

    def lines(self) -> list[str]:
        """Return the messages on events since the last call."""
        return [line for event in self._events.new() if (line := self.line(event))]

    def line(self, event: JobEvent) -> str:
        """The message on an event, empty if it needs none.

        Updates the count of restarts and the last named checkpoint: call it once for each event, in order.
        """
        if event.type == "launched" and event.message:
            return f"{event.message}: {event.nodes} of {self.job.recovery.nodes} nodes, {self._describe_resume_point()}"
        if event.type == "loaded" and event.step != self._resume_step:
            self._resume_step = event.step
            return describe_resume_point(event.step, self.job)
        if event.type != "fault" or event.kind == "preempted":
            return ""
        message = event.message.partition("\n")[0].removesuffix(f" {NO_OUTPUT}").rstrip(".:")
        if event.kind not in ENDS:
            return message
        self._ended_attempts.add(event.attempt)
        allowed_restarts = self.job.recovery.max_restarts
        if len(self._ended_attempts) > allowed_restarts:
            return ""  # the job is over, and its error gives the reason
        return f"{message}; {self._describe_resume_point()}, restart {len(self._ended_attempts)} of {allowed_restarts}"

    def _describe_resume_point(self) -> str:
        self._resume_step = saved_steps(self.folder)
        return describe_resume_point(self._resume_step, self.job)
