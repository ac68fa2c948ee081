"""The result of the gate for two revisions, as one document.

A pair is a run of the base and a run of the head; a rule has the error rate, the margin and the largest number of pairs
of the test; a verdict is the outcome for one metric.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import msgspec

from trainyard.compare.differences import Difference, find_differences
from trainyard.compare.gate.changed_accounts import MIN_PAIRS, ChangedAccounts, find_changed_accounts
from trainyard.compare.gate.changed_operations import ReadProfile, find_changed_operations
from trainyard.compare.gate.machine_readings import MachineReading, find_changed_readings
from trainyard.compare.gate.pairs import Pair, PairedRuns, compute_log_ratios, pair_ledgers
from trainyard.compare.gate.verdict import Rule, Verdict, judge
from trainyard.compare.metric import compute_metrics
from trainyard.errors import BadInput

SCHEMA = "trainyard/gate/2"


class MetricPairs(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a metric on both sides of every pair."""

    base: tuple[float, ...]
    head: tuple[float, ...]


class GateRequest(NamedTuple):
    """`metrics` are judged together: the error rate of `rule` holds for all of them."""

    metrics: tuple[str, ...]
    rule: Rule


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """`base`, `head`: names of the two sides; `commit`: head's, if known; `machine`, `time`: of head's last run.
    `runs`: ids of each pair's runs, base first. `values`: metric -> its values. `differences`: those between the runs
    of the first pair. `changed_accounts`: None if too few pairs have ledgers. `changed_readings`: readings of the
    machine. `changed_operations`: account that caused the slowdown -> its operations, if there are traces."""

    job: str
    base: str
    head: str
    commit: str
    machine: str
    time: str
    runs: tuple[tuple[str, str], ...]
    verdicts: tuple[Verdict, ...]
    values: dict[str, MetricPairs]
    changed_accounts: ChangedAccounts | None
    differences: tuple[Difference, ...]
    changed_readings: tuple[MachineReading, ...] = ()
    caveats: tuple[str, ...] = ()
    changed_operations: dict[str, ChangedAccounts] = {}
    schema: Literal["trainyard/gate/2"] = SCHEMA

    @property
    def outcome(self) -> Literal["worse", "not worse", "unclear"]:
        """Worse if any metric is worse; not worse if all metrics are not worse."""
        outcomes = {verdict.outcome for verdict in self.verdicts}
        return "worse" if "worse" in outcomes else "unclear" if "unclear" in outcomes else "not worse"

    @property
    def exit_code(self) -> int:
        return {"not worse": 0, "worse": 1, "unclear": 3}[self.outcome]

    @property
    def first(self) -> Verdict:
        """The first verdict that equals the overall result."""
        return next(verdict for verdict in self.verdicts if verdict.outcome == self.outcome)


def judge_metrics(pairs: Sequence[Pair], request: GateRequest) -> tuple[Verdict, ...]:
    rule = request.rule.among(len(request.metrics))
    return tuple(judge(metric, compute_log_ratios(pairs, metric), rule) for metric in request.metrics)


def gate(
    base: str, head: str, runs: PairedRuns, request: GateRequest, profile: ReadProfile, ignored: Collection[str] = ()
) -> GateResult:
    """Judges head against base: the verdict on each metric, the accounts, operations and readings of the machine that
    changed, and the differences of the settings. `base`, `head`: names of the sides; `runs`: their runs in pairs;
    `profile`: reads the traces of a run, called only if an account caused a slowdown; `ignored`: kinds of difference to
    leave out. Raises `BadInput` if there is no pair or a run lacks a metric."""
    pairs = runs.pairs
    if not pairs:
        raise BadInput(f"0 pairs of runs: a comparison of {head} with {base} needs at least 1 run of each.")
    paired_ledgers = pair_ledgers(pairs)
    has_enough_pairs = len(paired_ledgers) >= MIN_PAIRS
    changed_accounts = (
        find_changed_accounts(paired_ledgers, request.rule.alpha, request.rule.negligible) if has_enough_pairs else None
    )
    return GateResult(
        job=pairs[0].base.job.name, base=base, head=head,
        commit=pairs[0].head.provenance.code.get("sha", ""),
        machine=pairs[-1].head.provenance.host.get("name", ""), time=pairs[-1].head.started,
        runs=tuple((pair.base.id, pair.head.id) for pair in pairs), verdicts=judge_metrics(pairs, request),
        values={metric: _collect_values(pairs, metric) for metric in request.metrics},
        changed_accounts=changed_accounts,
        changed_operations=find_changed_operations(pairs, changed_accounts, profile) if changed_accounts else {},
        differences=tuple(difference for difference in find_differences(*pairs[0]) if difference.kind not in ignored),
        changed_readings=find_changed_readings(pairs, request.rule.alpha), caveats=runs.caveats,
    )  # fmt: skip


def _collect_values(pairs: Sequence[Pair], metric: str) -> MetricPairs:
    return MetricPairs(
        base=tuple(compute_metrics(pair.base)[metric] for pair in pairs),
        head=tuple(compute_metrics(pair.head)[metric] for pair in pairs),
    )
