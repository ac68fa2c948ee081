"""The failures to which a fault can be due, each with its time: a rank's death, a hung rank, a lost agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainyard.launch.launch_spec import FAILED
from trainyard.launch.supervisor.agent_reports import Now
from trainyard.launch.supervisor.failure_report import STOPPED_BY_RECIPE, Failure
from trainyard.launch.supervisor.hang_investigation import HungRank
from trainyard.launch.supervisor.messages import RankReport


class Cause(NamedTuple):
    """A failure and its time `at` in ns since the epoch. `node`: the failed node if no single rank is to blame."""

    at: int
    failure: Failure
    node: int = -1


def rank_death(now: Now, rank: RankReport) -> Cause:
    """The failure of a rank that ended, at the time that it reported or its end was seen."""
    failure = Failure(
        rank=rank.rank,
        pid=rank.pid,
        exit_code=rank.exit_code or 0,
        when=now.epoch / 1e9,
        last_words=rank.reason,
        shortage=rank.shortage,
    )
    return Cause(at=rank.reported_ns or rank.ended_ns, failure=failure)


def rank_stop(now: Now, rank: RankReport) -> Failure:
    """The end of a training that its ranks stopped as the recipe demands."""
    return Failure(
        rank=rank.rank,
        pid=rank.pid,
        exit_code=rank.exit_code or 0,
        when=now.epoch / 1e9,
        last_words=rank.reason,
        kind=STOPPED_BY_RECIPE,
    )


def rank_hang(now: Now, hung: HungRank, ranks: Sequence[RankReport]) -> Cause:
    """The failure of a hung rank at its last heartbeat, or at the last of all `ranks` if none is to blame."""
    reports = [report for report in ranks if report.rank == hung.rank]
    failure = Failure(
        rank=hung.rank,
        pid=reports[0].pid if reports else 0,
        exit_code=FAILED,
        when=now.epoch / 1e9,
        last_words=hung.evidence,
        kind="hang",
        verdict=hung.verdict,
    )
    return Cause(at=max(report.at for report in reports or ranks), failure=failure)


def agent_death(now: Now, node: int, last_heard_ns: int, message: str) -> Cause:
    """The failure of a node whose agent ended, was replaced or is silent, at the time of its last report (ns since the
    epoch)."""
    failure = Failure(rank=-1, pid=0, exit_code=FAILED, when=now.epoch / 1e9, last_words=message, kind="agent_death")
    return Cause(at=last_heard_ns, failure=failure, node=node)
