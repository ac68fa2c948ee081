"""Record the death of a job's supervisor, which cannot record it, in the event log."""

from __future__ import annotations

from pathlib import Path

from trainyard.launch import epoch
from trainyard.launch.supervisor import event_log
from trainyard.launch.supervisor.event_log import SUPERVISOR, EventLogWriter, JobEvent
from trainyard.store.run_folder import read_samples


def record_supervisor_death(folder: Path) -> None:
    """Record that the last supervisor of the run in `folder` ended without recording its end, if it did.

    Its time is that of the last known event or sample. A death that is recorded already is not recorded again.
    """
    events = event_log.read(folder)
    own = [event for event in events if event.type in ("started", "launched", "ended", "fault")]
    if not own or own[-1].type == "ended" or own[-1].kind == "supervisor_death":
        return
    times = [event.noticed or event.at for event in events] + [sample.ended_ns for sample in read_samples(folder)]
    at = max(times)
    EventLogWriter(folder, SUPERVISOR).add(
        JobEvent(
            type="fault",
            kind="supervisor_death",
            at=at,
            noticed=max(at, epoch.now_ns()),
            attempt=max(0, event_log.last_attempt(events)),
            node=0,
            step=max((event.step for event in events if event.type == "saved"), default=-1),
            message="the supervisor on node 0 was lost, and all ranks with it",
        )
    )
