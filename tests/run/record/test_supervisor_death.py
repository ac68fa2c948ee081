"""The death of a supervisor is recorded once, and leaves an incident."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from trainyard.launch import epoch
from trainyard.launch.supervisor import event_log
from trainyard.launch.supervisor.event_log import EventLogWriter, JobEvent
from trainyard.record import Sample
from trainyard.run.record import goodput
from trainyard.run.record.supervisor_death import record_supervisor_death


def recorded(folder: Path) -> list[JobEvent]:
    return [event for event in event_log.read(folder) if event.type == "fault"]


def test_run_without_a_supervisor_has_no_death(tmp_path: Path) -> None:
    record_supervisor_death(tmp_path)
    assert event_log.read(tmp_path) == []


def test_death_is_recorded_once_with_the_time_of_the_last_sample(tmp_path: Path) -> None:
    log = EventLogWriter(tmp_path, event_log.SUPERVISOR)
    for event in (JobEvent(type="started", at=100), JobEvent(type="launched", at=200, nodes=2)):
        log.add(event)
    sample = Sample(step=4, rank=0, repeat=0, wall_ns=5, tokens=1, memory_bytes=1, ended_ns=300)
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "rank0.jsonl").write_bytes(msgspec.json.encode(sample) + b"\n")
    record_supervisor_death(tmp_path)
    record_supervisor_death(tmp_path)
    (fault,) = recorded(tmp_path)
    assert (fault.kind, fault.node, fault.at) == ("supervisor_death", 0, 300)
    assert fault.at < fault.noticed <= epoch.now_ns()
    (incident,) = goodput.incidents(event_log.read(tmp_path), [sample])
    assert (incident.kind, incident.step) == ("supervisor_death", 4)
    log.add(JobEvent(type="launched", at=fault.noticed + 1, nodes=2, attempt=1))
    record_supervisor_death(tmp_path)
    assert [event.attempt for event in recorded(tmp_path)] == [0, 1]


@pytest.mark.parametrize("kind", ["ended", "fault"])
def test_supervisor_that_recorded_its_end_did_not_die(tmp_path: Path, kind: str) -> None:
    log = EventLogWriter(tmp_path, event_log.SUPERVISOR)
    log.add(JobEvent(type="started", at=100))
    log.add(JobEvent(type="fault", kind="supervisor_death", at=200, noticed=200) if kind == "fault" else
            JobEvent(type="ended", at=200))  # fmt: skip
    record_supervisor_death(tmp_path)
    assert len(recorded(tmp_path)) == (kind == "fault")
