"""The last report of each node's agent, when it arrived, and which agents are live. No process, store or clock.

A node may have two agents for a moment, if a second one is started while the first one still reports. `life`, a random
id, distinguishes agents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from trainyard.launch.supervisor.messages import AgentPlan, AgentReport, RankReport

SILENT_S = 8.0
"""An agent without a new report for this long is lost; agents report 20 times a second."""
TWICE_S = 1.0
"""Time without a report of a node's agent after which a second agent of that node replaces it."""


class Now(NamedTuple):
    """A moment: `seconds` of a monotonic clock, and `epoch` in ns since the epoch."""

    seconds: float
    epoch: int


class LastReport(NamedTuple):
    """The last report of an agent, and when it arrived. `dead`: the agent has ended since."""

    when: Now
    report: AgentReport
    dead: bool = False


class AgentReports:
    """The reports of a job's agents. `last`: the last report by node; `last_heard`: when an agent last reported, by its
    `life`."""

    def __init__(self) -> None:
        """No agent has reported yet."""
        self.last: dict[int, LastReport] = {}
        self.last_heard: dict[str, Now] = {}
        self._given_up: dict[str, int] = {}
        """`life` of each agent that was given up while it was silent -> serial of the plan at that moment."""

    def receive(self, now: Now, reports: Mapping[int, AgentReport]) -> None:
        """Take the last report of each agent, node -> report, and note when a new one arrived.

        Ignores a second agent of a node while the first one still reports, and reports of a given-up agent that were
        sent before it knew a later plan: a broken network may deliver them long after the agent has ended.
        """
        for node, report in reports.items():
            if report.life in self._given_up and report.serial <= self._given_up[report.life]:
                continue
            known = self.last.get(node)
            is_other_agent = known is not None and known.report.life != report.life
            if known and is_other_agent and not known.dead and now.seconds - known.when.seconds < TWICE_S:
                continue
            if known is None or (known.report.life, known.report.beat) != (report.life, report.beat):
                self.last[node] = LastReport(when=now, report=report)
                self.last_heard[report.life] = now

    def mark_dead(self, node: int) -> None:
        """Note that the agent of this node has ended, which the supervisor knows at once as its parent."""
        if node in self.last:
            self.last[node] = self.last[node]._replace(dead=True)

    def give_up(self, node: int, serial: int) -> None:
        """Treat the silent agent of this node as ended until it reports that it knows a plan after `serial`."""
        self._given_up[self.last[node].report.life] = serial
        self.mark_dead(node)

    def live(self, now: Now) -> dict[int, AgentReport]:
        """The last report of each agent that has not ended and has reported in the last `SILENT_S` seconds, by node."""
        return {
            node: last.report
            for node, last in sorted(self.last.items())
            if not last.dead and now.seconds - last.when.seconds < SILENT_S
        }

    def live_nodes(self, now: Now) -> dict[int, str]:
        """The `life` of each live agent, by node."""
        return {node: report.life for node, report in self.live(now).items()}

    def ranks(self, plan: AgentPlan) -> list[RankReport]:
        """All ranks of the plan's generation that its members have reported; for a lost node, as in its last report."""
        members = {member.node: member.life for member in plan.members}
        return [
            rank
            for node, (_, report, _) in self.last.items()
            if report.generation == plan.generation and members.get(node) == report.life
            for rank in report.ranks
        ]
