"""The result of the gate for two revisions, as one document."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import msgspec

from trainyard.compare.differences import Difference, differences
from trainyard.compare.gate.changed_accounts import FEWEST, ChangedAccounts, find_changed_accounts
from trainyard.compare.gate.changed_operations import Profile, addresses
from trainyard.compare.gate.machine_readings import MachineReading, moved
from trainyard.compare.gate.pairs import Pair, PairedRuns, ledgers, worse_by
from trainyard.compare.gate.verdict import Rule, Verdict, judge
from trainyard.compare.metric import values
from trainyard.errors import BadInput

SCHEMA = "trainyard/gate/1"


class MetricPairs(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a metric on both sides of every pair."""

    base: tuple[float, ...]
    head: tuple[float, ...]


class GateRequest(NamedTuple):
    """`metrics` are judged together: the error rate of `rule` holds for all of them."""

    metrics: tuple[str, ...]
    rule: Rule


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """`base`, `head`: names of the two sides; `commit`: head's, if known; `machine`, `when`: of head's last run.
    `runs`: ids of each pair's runs, base first. `differ`: differences between the runs of the first pair. `why`: the
    changed accounts, None if too few pairs have ledgers. `moved`: machine readings that changed. `addresses`: account
    that caused the slowdown -> its operations, if there are traces."""

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
        """Worse if any metric is worse; not worse if all metrics are not worse."""
        results = {verdict.says for verdict in self.verdicts}
        return "worse" if "worse" in results else "unclear" if "unclear" in results else "not worse"

    @property
    def exit_code(self) -> int:
        return {"not worse": 0, "worse": 1, "unclear": 3}[self.says]

    @property
    def first(self) -> Verdict:
        """The first verdict that equals the overall result."""
        return next(verdict for verdict in self.verdicts if verdict.says == self.says)


def verdicts(pairs: Sequence[Pair], request: GateRequest) -> tuple[Verdict, ...]:
    rule = request.rule.among(len(request.metrics))
    return tuple(judge(metric, worse_by(pairs, metric), rule) for metric in request.metrics)


def gate(
    base: str, head: str, runs: PairedRuns, request: GateRequest, profile: Profile, ignored: Collection[str] = ()
) -> GateResult:
    """Judge head against base. `profile`: called only if an account caused a slowdown; `ignored`: kinds of difference
    to leave out. Raises `BadInput` if there is no pair or a run lacks a metric."""
    pairs = runs.pairs
    if not pairs:
        raise BadInput(f"0 pairs of runs: a comparison of {head} with {base} needs at least 1 run of each.")
    paired_ledgers = ledgers(pairs)
    enough = len(paired_ledgers) >= FEWEST
    changed = find_changed_accounts(paired_ledgers, request.rule.alpha, request.rule.negligible) if enough else None
    return GateResult(
        job=pairs[0].base.job.name, base=base, head=head,
        commit=pairs[0].head.provenance.code.get("sha", ""),
        machine=pairs[-1].head.provenance.host.get("name", ""), when=pairs[-1].head.started,
        runs=tuple((pair.base.id, pair.head.id) for pair in pairs), verdicts=verdicts(pairs, request),
        figures={metric: _figures(pairs, metric) for metric in request.metrics},
        why=changed, addresses=addresses(pairs, changed, profile) if changed else {},
        differ=tuple(difference for difference in differences(*pairs[0]) if difference.kind not in ignored),
        moved=moved(pairs, request.rule.alpha), caveats=runs.caveats,
    )  # fmt: skip


def _figures(pairs: Sequence[Pair], metric: str) -> MetricPairs:
    return MetricPairs(
        base=tuple(values(pair.base)[metric] for pair in pairs), head=tuple(values(pair.head)[metric] for pair in pairs)
    )
