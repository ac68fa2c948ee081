"""Compares the records of two trainings: B with A, of which a float64 reference and jittered replicas were recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trainyard.errors import BadInput
from trainyard.numerics.compare.align_tensors import Alignment, align_tensors
from trainyard.numerics.compare.common_batches import has_other_batches, without_activations
from trainyard.numerics.compare.comparison_result import RecordComparison, RecordSide, Verdict
from trainyard.numerics.compare.error_histogram import count_errors
from trainyard.numerics.compare.exact_checks import ExactFinding, check_exactly, random_state_differs
from trainyard.numerics.compare.find_divergences import DivergenceFinder, Divergences
from trainyard.numerics.compare.judge_tensors import NOT_COMPARED, Judgements, RunsOfA, judge_tensors
from trainyard.numerics.compare.list_tensors import list_tensors
from trainyard.numerics.compare.logical_tensors import LogicalTensors, has_other_size, is_of_parameter
from trainyard.numerics.compare.losses import compare_losses
from trainyard.numerics.compare.match_ranks import equal_on_all_ranks, join_ranks, ranks_correspond
from trainyard.numerics.compare.read_run import RecordedRun, read_run
from trainyard.numerics.compare.run_columns import run_columns
from trainyard.numerics.compare.summarise_tensors import count_tensors, summarise_modules, summarise_steps
from trainyard.numerics.record_state import read_state, usable_variants
from trainyard.numerics.tensor_record import TensorKey

_MOST_UNDETECTABLE = 0.5
"""Share of undetectable tensors in the first common step from which a comparison without an alarm does not pass."""
_OTHER_BATCHES = (
    "The sides divide the samples of a step differently: activations are not compared, only gradients, weights and "
    "states of the optimizer."
)
_MIN_MATCHED = 0.5
"""Share of the modules of the smaller record that both have; fewer are different models."""


class MatchedRecords(NamedTuple):
    """The plain runs of two records, of their common steps, tensor by tensor. `a`, `b`: with their ranks joined."""

    run_a: RecordedRun
    run_b: RecordedRun
    common: frozenset[int]
    a: LogicalTensors
    b: LogicalTensors
    alignment: Alignment
    has_other_batches: bool
    judgements: Judgements
    exact: Sequence[ExactFinding]
    divergences: Divergences


def compare_records(a: Path, b: Path, *, identical: bool = False) -> RecordComparison:
    """Compares the plain run of the record in folder `b` with the record in folder `a`. `identical`: both must be equal
    bit by bit.

    Raises `BadInput` for records that do not belong together, `BadFile` for one that cannot be read.
    """
    matched = match_records(a, b, identical=identical)
    alignment, judgements, first = matched.alignment, matched.judgements, matched.divergences.first
    side_a, side_b = _side(a, matched.run_a), _side(b, matched.run_b)
    verdict, reason = _verdict(alignment, judgements, first is not None, bool(side_a.missing))
    fault = None if first is None else first.tensor
    tensors = list_tensors(alignment, judgements, matched.a.tensors, matched.b.tensors, fault)
    return RecordComparison(
        verdict=verdict,
        reason=reason,
        a=side_a,
        b=side_b,
        rule=judgements.rule,
        counts=count_tensors(alignment, judgements),
        first=first,
        further=matched.divergences.further,
        modules=summarise_modules(alignment, judgements, matched.exact, fault),
        steps=summarise_steps(alignment, judgements),
        histogram=count_errors(alignment, judgements),
        losses=compare_losses(alignment, judgements, matched.a.tensors, matched.b.tensors),
        tensors=tensors,
        tensors_left_out=len(alignment.pairs) - len(tensors),
        undetectable_reasons=dict(Counter(filter(None, judgements.reasons)).most_common()),
        renamed=alignment.modules.renamed,
        notes=(*([_OTHER_BATCHES] if matched.has_other_batches else []), *_notes(matched)),
    )


def match_records(a: Path, b: Path, *, identical: bool = False) -> MatchedRecords:
    """Matches and judges the tensors of two records. Raises as `compare_records` does."""
    known_a, known_b = usable_variants(a), usable_variants(b)
    run_a, run_b = read_run(a, "plain", known_a), read_run(b, "plain", known_b)
    common = frozenset(run_a.steps) & frozenset(run_b.steps)
    if not common:
        raise BadInput(
            f"{a} has steps {_list(run_a.steps)} and {b} steps {_list(run_b.steps)}: none in common.",
            "Record the same steps of both, with --steps.",
        )
    join_a, join_b = _rank_joins(run_a, run_b)
    tensors_a, tensors_b = join_a(run_a.only(common)), join_b(run_b.only(common))
    alignment = align_tensors(tensors_a.tensors, tensors_b.tensors)
    _check_same_model(a, b, tensors_a, tensors_b, alignment)
    other_batches = has_other_batches(tensors_a.tensors, tensors_b.tensors, alignment)
    if other_batches:
        alignment = without_activations(alignment)
    keys = [pair.a for pair in alignment.pairs]
    runs = {
        variant: run_columns(
            keys, tensors_a.tensors, join_a(read_run(a, variant, known_a, values_only=True).only(common)).tensors
        )
        for variant in known_a
        if variant != "plain"
    }
    reference = runs.pop("float64", None)
    is_isolated = run_a.header.replaced and run_b.header.replaced
    judgements = judge_tensors(
        alignment.pairs, RunsOfA(tensors_a.tensors, list(runs.values()), reference, is_isolated), tensors_b.tensors
    )
    exact = check_exactly(tensors_a, tensors_b, alignment, identical)
    divergences = DivergenceFinder(tensors_a.tensors, tensors_b.tensors, alignment, judgements).find(exact)
    return MatchedRecords(
        run_a, run_b, common, tensors_a, tensors_b, alignment, other_batches, judgements, exact, divergences
    )


_Join = Callable[[LogicalTensors], LogicalTensors]


def _rank_joins(a: RecordedRun, b: RecordedRun) -> tuple[_Join, _Join]:
    """The functions that join the tensors of each side so that ranks correspond."""
    if ranks_correspond(a.header, b.header):
        return _unchanged, _unchanged
    return _join(equal_on_all_ranks(a.tensors.tensors)), _join(equal_on_all_ranks(b.tensors.tensors))


def _unchanged(tensors: LogicalTensors) -> LogicalTensors:
    return tensors


def _join(equal: frozenset[TensorKey]) -> _Join:
    return lambda tensors: tensors._replace(tensors=join_ranks(tensors.tensors, equal))


def _check_same_model(a: Path, b: Path, of_a: LogicalTensors, of_b: LogicalTensors, alignment: Alignment) -> None:
    """Raises `BadInput` if the records are of different models or batches."""
    for pair in alignment.pairs:
        record_a, record_b = of_a.tensors[pair.a], of_b.tensors[pair.b]
        if has_other_size(record_a, record_b) and is_of_parameter(pair.a.tensor):
            name = ".".join(filter(None, (pair.a.tensor.module, pair.a.tensor.name)))
            raise BadInput(
                f"{a} and {b} are of different models: {pair.a.tensor.role} {name} has the shape "
                f"{list(record_a.shape)} in the one and {list(record_b.shape)} in the other.",
                "Record the same model on both sides.",
            )
    modules_a, modules_b = ({key.tensor.module for key in side.tensors} for side in (of_a, of_b))
    smaller = min(len(modules_a), len(modules_b))
    if len(alignment.modules.names) < _MIN_MATCHED * smaller:
        raise BadInput(
            f"{a} and {b} are of different models: only {len(alignment.modules.names)} of their {len(modules_a)} and "
            f"{len(modules_b)} modules match.",
            "Record the same model on both sides.",
        )


def _verdict(
    alignment: Alignment, judgements: Judgements, has_divergence: bool, is_unfinished: bool
) -> tuple[Verdict, str]:
    """The verdict, and the reason if there is not enough evidence. `is_unfinished`: A lacks requested runs."""
    if has_divergence:
        return "different", ""
    if judgements.rule is None and "undetectable" in judgements.status:
        hint = "its recording did not end" if is_unfinished else "pass the record that has one first, as A"
        return "cannot tell", f"A has {next(filter(None, judgements.reasons))}: {hint}."
    if not alignment.pairs:
        return "cannot tell", "no tensor is in both records."
    first_step = alignment.pairs[0].a.tensor.step
    reasons = [
        judgements.reasons[row]
        for row, pair in enumerate(alignment.pairs)
        if pair.a.tensor.step == first_step and judgements.reasons[row] not in NOT_COMPARED
    ]
    undetectable = len(list(filter(None, reasons)))
    if undetectable > _MOST_UNDETECTABLE * len(reasons):
        reason = Counter(filter(None, reasons)).most_common(1)[0][0]
        return "cannot tell", f"{undetectable:,} of {len(reasons):,} tensors of step {first_step}: {reason}."
    return "same", ""


def _side(folder: Path, run: RecordedRun) -> RecordSide:
    header, state = run.header, read_state(folder)
    return RecordSide(
        folder=str(folder),
        command=header.command,
        layout=header.layout,
        device=header.device,
        ranks=header.ranks,
        level=header.level,
        variants=tuple(usable_variants(folder)),
        missing=state.missing if state is not None else (),
        steps=run.steps,
        tensors=len(run.tensors.tensors),
        cut=run.cut,
        versions=header.versions,
        environment=header.environment,
        deterministic=header.deterministic,
    )


def _notes(matched: MatchedRecords) -> Iterator[str]:
    """Sentences on what limits the comparison, or may explain its result."""
    run_a, run_b, common = matched.run_a, matched.run_b, matched.common
    a, b, alignment = matched.a, matched.b, matched.alignment
    for name, run in (("A", run_a), ("B", run_b)):
        if run.cut:
            count = f"{len(run.cut)} of {run.header.ranks} ranks"
            yield f"The files of {count} of {name} end early, that of rank {run.cut[0]} first."
        if run.header.replaced:
            yield f"Modules of {name} started from the values of another run."
        if left_out := sorted(set(run.steps) - common):
            yield f"Steps {_list(left_out)} are in {name} only."
        if run.tensors.incomplete:
            yield f"{len(run.tensors.incomplete):,} tensors of {name} lack shards and are not compared."
    for name, (tensors, run) in {"A": (a, run_a), "B": (b, run_b)}.items():
        apart = len(run.only(common).tensors) - len(tensors.tensors)
        if apart:
            yield f"{apart:,} tensors of single ranks of {name} are not compared, as the layouts differ."
    versions_a, versions_b = run_a.header.versions, run_b.header.versions
    for library in sorted(versions_a.keys() & versions_b.keys()):
        if versions_a[library] != versions_b[library]:
            yield f"{library} is {versions_a[library]} in A and {versions_b[library]} in B."
    if a.differing:
        yield (
            f"{len(a.differing):,} tensors of A have other values on each rank: replicas that should be equal, or "
            "shards of a layout that the record does not know."
        )
    if (key := random_state_differs(a.tensors, b.tensors, alignment)) is not None:
        yield f"The states of random-number generators differ, first in step {key.tensor.step}."


def _list(steps: Sequence[int]) -> str:
    """Steps as text: `0 to 4`, or `1, 3, 9`, the first few of many."""
    if len(steps) > 1 and list(steps) == list(range(steps[0], steps[-1] + 1)):
        return f"{steps[0]} to {steps[-1]}"
    return ", ".join(map(str, steps[:8])) + (", …" if len(steps) > 8 else "")
