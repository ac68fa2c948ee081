"""An agent without answers of the supervisor is ended by the kernel, and its ranks see that it may not run them."""

from __future__ import annotations

import os
import signal
import time

import pytest

from trainyard.errors import EnvironmentFailed
from trainyard.launch.agents import lease as leases
from trainyard.launch.agents.lease import Lease
from trainyard.launch.agents.rank_progress import HeartbeatBoard
from trainyard.launch.supervisor.agent_reports import SILENT_S


def test_a_lease_ends_before_the_agent_is_replaced() -> None:
    assert leases.FENCE_S < SILENT_S


@pytest.mark.parametrize("renewals", [0, 3])
def test_process_without_answers_is_ended_by_the_kernel(renewals: int) -> None:
    pid = os.fork()
    if not pid:
        try:
            lease = Lease(HeartbeatBoard(1))
            for _ in range(renewals):
                lease.renew(time.monotonic() - leases.FENCE_S + 0.2)
                time.sleep(0.1)
            lease.renew(time.monotonic() - leases.FENCE_S + 0.05)
            time.sleep(60)
        finally:
            os._exit(3)
    began_s = time.monotonic()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGALRM
    assert time.monotonic() - began_s < 30


def test_given_up_lease_ends_nothing() -> None:
    pid = os.fork()
    if not pid:
        lease = Lease(HeartbeatBoard(1))
        lease.renew(time.monotonic() - leases.FENCE_S + 0.05)
        lease.end()
        time.sleep(0.2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_ranks_of_an_agent_without_lease_end_themselves() -> None:
    board = HeartbeatBoard(3)
    own = board.heartbeat(1)
    assert not own.must_leave_before(0), "no lease, no limit"
    board.lend(time.monotonic_ns() + 10**11)
    assert not own.must_leave_before(1)
    later = board.heartbeat(2)  # of the next generation: it inherits the lease
    board.lend(time.monotonic_ns() - 1)
    for heartbeat in (own, later, board.heartbeat(0)):
        with pytest.raises(EnvironmentFailed):
            heartbeat.must_leave_before(2)
    assert board.read(1).begun == 1, "the step does not count as begun"
