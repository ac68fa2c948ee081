"""What the gate says of two revisions, as one document."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import msgspec

from trainyard.compare.differences import Difference, differences
from trainyard.compare.gate.changed_accounts import FEWEST, ChangedAccounts, why
from trainyard.compare.gate.changed_operations import Profile, addresses
from trainyard.compare.gate.machine_readings import MachineReading, moved
from trainyard.compare.gate.pairs import Pair, PairedRuns, ledgers, worse_by
from trainyard.compare.gate.verdict import Rule, Verdict, judge
from trainyard.compare.metric import values
from trainyard.errors import BadInput

SCHEMA = "trainyard/gate/1"


class MetricPairs(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of every pair's two runs."""

    base: tuple[float, ...]
    head: tuple[float, ...]


class GateRequest(NamedTuple):
    """`metrics` are judged together: all of them err as seldom as `rule` says."""

    metrics: tuple[str, ...]
    rule: Rule


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """`base`, `head`: what was held against each other, in words; `commit`: head's, where it is known; `machine` and
    `when`: of head's last run. `runs`: ids of
    each pair's runs, base first. `differ`: what the runs of the first pair differ in. `why`: None where too few pairs
    have ledgers. `moved`: what the machine itself read otherwise. `addresses`: account that did it -> its operations,
    where traces are kept."""

    job: str
    base: str
    head: str
    commit: str
    machine: str
    when: str
    runs: tuple[tuple[str, str], ...]
    verdicts: tuple[Verdict, ...]
    figures: dict[str, MetricPairs]
    why: ChangedAccounts | None
    differ: tuple[Difference, ...]
    moved: tuple[MachineReading, ...] = ()
    caveats: tuple[str, ...] = ()
    addresses: dict[str, ChangedAccounts] = {}
    schema: Literal["trainyard/gate/1"] = SCHEMA

    @property
    def says(self) -> Literal["worse", "not worse", "unclear"]:
        """Worse where any metric is; not worse where all are not."""
        said = {verdict.says for verdict in self.verdicts}
        return "worse" if "worse" in said else "unclear" if "unclear" in said else "not worse"

    @property
    def exit_code(self) -> int:
        return {"not worse": 0, "worse": 1, "unclear": 3}[self.says]

    @property
    def first(self) -> Verdict:
        """The verdict that decides."""
        return next(verdict for verdict in self.verdicts if verdict.says == self.says)


def verdicts(pairs: Sequence[Pair], asked: GateRequest) -> tuple[Verdict, ...]:
    rule = asked.rule.among(len(asked.metrics))
    return tuple(judge(metric, worse_by(pairs, metric), rule) for metric in asked.metrics)


def gate(
    base: str, head: str, found: PairedRuns, asked: GateRequest, profile: Profile, ignored: Collection[str] = ()
) -> GateResult:
    """`profile`: is asked only where an account did it. Raises `BadInput` where there is no pair, or a run has no such
    figure."""
    pairs = found.pairs
    if not pairs:
        raise BadInput(f"0 pairs of runs: a comparison of {head} with {base} needs at least 1 run of each.")
    paired_ledgers = ledgers(pairs)
    enough = len(paired_ledgers) >= FEWEST
    because = why(paired_ledgers, asked.rule.alpha, asked.rule.negligible) if enough else None
    return GateResult(
        job=pairs[0].base.job.name, base=base, head=head,
        commit=pairs[0].head.provenance.code.get("sha", ""),
        machine=pairs[-1].head.provenance.host.get("name", ""), when=pairs[-1].head.started,
        runs=tuple((pair.base.id, pair.head.id) for pair in pairs), verdicts=verdicts(pairs, asked),
        figures={metric: _figures(pairs, metric) for metric in asked.metrics},
        why=because, addresses=addresses(pairs, because, profile) if because else {},
        differ=tuple(one for one in differences(*pairs[0]) if one.kind not in ignored),
        moved=moved(pairs, asked.rule.alpha), caveats=found.caveats,
    )  # fmt: skip


def _figures(pairs: Sequence[Pair], metric: str) -> MetricPairs:
    return MetricPairs(
        base=tuple(values(pair.base)[metric] for pair in pairs), head=tuple(values(pair.head)[metric] for pair in pairs)
    )
