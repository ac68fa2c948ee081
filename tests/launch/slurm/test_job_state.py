"""Status from the output of Slurm's tools, without a cluster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.launch.slurm.batch_script import show_limit
from trainyard.launch.slurm.job_state import expand_hosts, parse_accounting, parse_jobs, status_of

LINE = (
    "JobId=7 JobName=a JobState={state} Reason={reason} Restarts=1 ExitCode={code} TimeLimit=01:00:00 Partition=gpu "
    "NodeList=n[1-2] NumNodes=2 Comment=JobState=COMPLETED StdOut=/a b/logs/slurm-7.log Power="
)


@pytest.mark.parametrize(
    ("state", "reason", "code", "expected", "words"),
    [
        ("RUNNING", "None", "0:0", "running", ""),
        ("COMPLETED", "None", "0:0", "ended", ""),
        ("FAILED", "NonZeroExitCode", "75:0", "preempted", "left on request"),
        ("FAILED", "NonZeroExitCode", "4:0", "failed", "4:0"),
        ("TIMEOUT", "TimeLimit", "0:15", "failed", "01:00:00"),
        ("NODE_FAIL", "NodeDown", "0:0", "failed", "n[1-2]"),
        ("OUT_OF_MEMORY", "OutOfMemory", "0:125", "failed", "memory"),
        ("CANCELLED", "None", "0:15", "cancelled", ""),
        ("PREEMPTED", "None", "0:15", "preempted", ""),
        ("A_NEW_STATE", "None", "0:0", "failed", "A_NEW_STATE"),
        ("PENDING", "Priority", "0:0", "pending", "priority"),
        ("PENDING", "PartitionTimeLimit", "0:0", "pending", "gpu"),
        ("PENDING", "ReqNodeNotAvail,_UnavailableNodes:n1", "0:0", "pending", "not available"),
        ("PENDING", "ANewReason", "0:0", "pending", "ANewReason"),
    ],
)
def test_state_and_reason(state: str, reason: str, code: str, expected: str, words: str) -> None:
    (job,) = parse_jobs(LINE.format(state=state, reason=reason, code=code))
    status = status_of([job])
    assert (status.state, status.nodes, status.restarts) == (expected, ("n1", "n2"), 1)
    assert words in status.reason
    assert job.fields["StdOut"] == "/a b/logs/slurm-7.log"


def test_a_job_has_the_worst_state_of_its_elements() -> None:
    states = ["COMPLETED", "RUNNING", "FAILED"]
    jobs = [job for state in states for job in parse_jobs(LINE.format(state=state, reason="None", code="1:0"))]
    assert [status_of(jobs[: count + 1]).state for count in range(3)] == ["ended", "running", "failed"]


def test_accounting_has_the_state_of_a_forgotten_job() -> None:
    (job,) = parse_accounting("7|CANCELLED by 0|0:15|n[1-2]|01:00:00\n")
    assert status_of([job]).state == "cancelled"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("(null)", []),
        ("n1", ["n1"]),
        ("n[1-3],m07", ["n1", "n2", "n3", "m07"]),
        ("gpu[008-010,12]-ib", ["gpu008-ib", "gpu009-ib", "gpu010-ib", "gpu12-ib"]),
        ("n[1-99999999]", ["n[1-99999999]"]),
    ],
)
def test_lists_of_hosts(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names


@given(st.text())
def test_any_output_is_parsed_without_an_error(text: str) -> None:
    for job in [*parse_jobs(text), *parse_accounting(text)]:
        assert status_of([job]).state


@given(st.integers(1, 10**7))
def test_time_limit_is_at_least_what_was_asked(seconds: int) -> None:
    days, _, clock = show_limit(seconds).rpartition("-")
    hours, minutes, rest = map(int, clock.split(":"))
    limit = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + rest
    assert seconds <= limit < seconds + 60
