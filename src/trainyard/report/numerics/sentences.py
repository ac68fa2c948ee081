"""The result of a comparison of recorded tensors in words."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from trainyard import units
from trainyard.numerics.compare.comparison_result import Divergence, RecordComparison, TensorPoint
from trainyard.numerics.compare.comparison_rule import UNINFORMATIVE, ComparisonRule
from trainyard.numerics.compare.judge_tensors import NOT_COMPARED
from trainyard.numerics.compare.logical_tensors import ALL_RANKS

_SAME_DRAWS = (
    "This is not a fault of the operation: generators of other devices give other numbers. Initialise the weights and "
    "draw the data on the CPU, set dropout to 0, and seed all generators."
)
_MOST_RENAMED = 3
"""Renamed modules that are listed."""


def headline(comparison: RecordComparison) -> str:
    """The verdict in one sentence, with the first divergence."""
    counts = comparison.counts
    if comparison.first is not None:
        first = comparison.first
        if first.kind == "random values":
            return f"Random values differ, first at {describe_tensor(first.tensor)}: {describe(first)}. {_SAME_DRAWS}"
        causes = "".join(f", after {cause.description}" for cause in first.causes)
        return f"Different, first at {describe_tensor(first.tensor)}{causes}: {describe(first)}."
    compared = units.counted(counts.compared, "tensor")
    if comparison.verdict == "cannot tell":
        return f"Cannot tell: {comparison.reason}"
    undetectable = sum(count for reason, count in comparison.undetectable_reasons.items() if reason not in NOT_COMPARED)
    alone = counts.only_a + counts.only_b
    unseen = [
        *([f"{undetectable:,} could not be judged"] if undetectable else []),
        *([f"{alone:,} more on one side only, which are not compared"] if alone else []),
    ]
    verdict = "Same, bit by bit" if counts.identical == counts.compared else "Same within rounding"
    return "; ".join([f"{verdict}: {compared}", *unseen]) + "."


def describe(divergence: Divergence) -> str:
    """What is wrong with the tensor of a divergence, without a full stop."""
    count = f" ({divergence.count:,} in all)" if divergence.count > 1 else ""
    match divergence.kind:
        case "value":
            return _describe_value(divergence)
        case "shape":
            return f"its shape is {divergence.detail}"
        case "dtype":
            return f"its dtype is {divergence.detail}"
        case "non-finite":
            return f"B has values that are not finite and A has not: {divergence.detail}"
        case "data":
            return f"the data differ{count}"
        case "random values":
            return f"it follows from other random numbers, of {divergence.detail}"
        case "missing gradient":
            return f"B has no gradient of this parameter, and A has{count}"
        case "extra gradient":
            return f"B has a gradient of this parameter, and A has none{count}"
        case "not updated":
            return f"the step changes this parameter in A and not in B{count}"
        case "replicas differ":
            return f"{divergence.detail} of B should hold equal values and do not{count}"
        case "not deterministic":
            return f"the bits differ{count}"


def _describe_value(divergence: Divergence) -> str:
    if divergence.error is None:
        return "its relative error is not finite"
    return f"its relative error is {show(divergence.error)}, and rounding explains {show(divergence.limit)}"


def describe_tensor(point: TensorPoint) -> str:
    """A tensor by its operation or role and its module: `aten.mm of layers.3 in the forward pass of step 0`."""
    if point.operation:
        subject = point.operation + (f" (call {point.call})" if point.call else "")
    else:
        subject = f"the {_ROLES[point.role]}"
    owner = ".".join(filter(None, (point.module, point.name)))
    phase = "" if point.phase == "optimizer" or point.role == "data" else f" in the {point.phase} pass"
    if point.role == "weight" and point.phase == "forward":
        return f"the weight {owner} before step {point.step}{_on_rank(point)}"
    if point.role == "gradient" and not point.name:
        owner = f"the output of {owner}" if owner else "an output"
    of_owner = f" {owner}" if point.role == "weight" else f" of {owner}" if owner else ""
    return f"{subject}{of_owner}{phase} of step {point.step}{_on_rank(point)}"


def _on_rank(point: TensorPoint) -> str:
    return "" if point.rank == ALL_RANKS else f" on rank {point.rank}"


_ROLES = {
    "output": "output",
    "input": "input",
    "gradient": "gradient",
    "weight": "weight",
    "optimizer_state": "optimizer state",
    "random_state": "random state",
    "data": "data",
    "scalar": "scalar",
}


def describe_code(point: TensorPoint) -> str:
    """The lines of both sides; empty if unknown."""
    a, b = point.location_a, point.location_b
    if a == b or not (a and b):
        return a or b
    return f"{a} in A, {b} in B"


def divergence_facts(divergence: Divergence) -> Iterator[tuple[str, str]]:
    """(name, value) of each known fact of a divergence, except those in its sentence."""
    point, last = divergence.tensor, divergence.last_correct
    dtypes = " and ".join(dict.fromkeys(filter(None, (point.dtype_a, point.dtype_b))))
    yield "tensor", f"{list(point.shape)} {dtypes}"
    yield from _code_lines(point)
    if divergence.limit is not None:
        error = "not finite" if divergence.error is None else show(divergence.error)
        rho = "" if divergence.rho is None else f", rho {show(divergence.rho)}"
        yield "error", f"{error}; noise {show(divergence.noise)}, limit {show(divergence.limit)}{rho}"
    if divergence.kind == "value" and divergence.count > 1:
        yield "in all", f"{units.counted(divergence.count, 'tensor')} different"
    weight = divergence.read_weight
    if weight is not None:
        name = f"{weight.module}.{weight.name} after step {weight.step}"
        yield "weight", f"{name}: error {show(weight.error)}, limit {show(weight.limit)}"
    if last is not None:
        yield "last correct", describe_tensor(last) + (f" ({code})" if (code := describe_code(last)) else "")
    for side, operations in (("only in A", divergence.only_a), ("only in B", divergence.only_b)):
        if operations:
            yield side, ", ".join(operations)


def _code_lines(point: TensorPoint) -> Iterator[tuple[str, str]]:
    """(name, line of code) of each side, or of both if it is the same."""
    if point.location_a == point.location_b:
        yield from [("code", point.location_a)] if point.location_a else []
        return
    yield from ((f"code in {side}", code) for side, code in (("A", point.location_a), ("B", point.location_b)) if code)


def describe_phase(step: int | None, phase: str | None) -> str:
    """A phase of a step: `step 0 forward`; empty if unknown."""
    return "" if step is None else f"step {step} {phase}"


def explain(comparison: RecordComparison) -> Iterator[str]:
    """Sentences on the limits, on what could not be seen, and on the matching of the two records."""
    if comparison.a.missing:
        yield (
            f"The record of A lacks {', '.join(comparison.a.missing)}, as its recording did not end. Repeat its "
            "`trainyard numerics record` command to complete it."
        )
    if "plain" in comparison.b.missing:
        yield "The plain run of B did not end; the tensors until then are compared."
    if comparison.rule is not None:
        yield explain_rule(comparison.rule)
    if comparison.first is not None and comparison.first.tensor.phase:
        yield (
            "A module that is identical or within rounding in the step and phase of the first difference may differ "
            'later: see "differs since". An identical tensor has an error too, relative to A in float64.'
        )
    if comparison.first is not None and comparison.first.read_weight is not None:
        yield (
            "The operation reads a weight that differs by less than its limit, so that an earlier step of the "
            "optimizer may be the fault: `trainyard numerics reproduce` compares the operations of that step, too."
        )
    for reason, count in comparison.undetectable_reasons.items():
        yield f"{units.counted(count, 'tensor')} undetectable: {reason}."
    if comparison.counts.compensated:
        yield (
            f"The results of {units.counted(comparison.counts.compensated, 'operation')} differ, but the outputs of "
            "their modules are the same within rounding, as with another order of the operations of a module."
        )
    if comparison.renamed:
        pairs = [f"{pair.b} is {pair.a}" for pair in comparison.renamed[:_MOST_RENAMED]]
        more = len(comparison.renamed) - len(pairs)
        yield (
            f"{units.counted(len(comparison.renamed), 'module')} of B matched by structure: {', '.join(pairs)}"
            f"{f' and {more} more' if more > 0 else ''}."
        )
    if comparison.counts.only_a or comparison.counts.only_b:
        yield (
            f"{comparison.counts.only_a:,} tensors are in A only and {comparison.counts.only_b:,} in B only; they are "
            "not compared."
        )
    yield from comparison.notes
    if comparison.first is not None and comparison.first.kind not in ("data", "random values", "not deterministic"):
        words = ["trainyard", "numerics", "reproduce", comparison.a.folder, comparison.b.folder, "--rerun"]
        yield f"A script that shows this difference alone: {shlex.join([*words, '--out', 'reproducer.py'])}"


def explain_rule(rule: ComparisonRule) -> str:
    """A sentence on the origin of the limits."""
    return (
        f"The noise of a tensor is the largest error of A and its {units.counted(rule.replicas, 'jittered replica')}, "
        "relative to A in float64; rho is B's error divided by it. Limits are such that if B's errors had the same "
        f"distribution, {100 * rule.false_alarm:g} % of comparisons would raise an alarm, and then {rule.margin:g} "
        f"times as high, as kernels and layouts round differently. Tensors with noise from {UNINFORMATIVE:g} on are "
        "undetectable."
    )


def show(value: float | None) -> str:
    """A relative error or a ratio with two digits."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    return f"{value:.2g}" if 0.01 <= value < 100 else f"{value:,.0f}" if 100 <= value < 1e6 else f"{value:.1e}"
