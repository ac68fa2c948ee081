"""The history of the scale of the loss in a recorded training that uses `torch.amp.GradScaler`.

The scaler halves the scale after each step whose gradients are not finite, and skips its update. This is normal when
the first scale is too high, and now and then later, as the scaler raises it again. A training whose scale falls to
lower and lower values diverges, and so does one whose values overflow before they are scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from trainyard.numerics.compare.align_tensors import Tensors
from trainyard.numerics.compare.logical_tensors import LogicalKey
from trainyard.numerics.tensor_record import TensorRecord
from trainyard.numerics.triage.find_nonfinite import describe_record, unmasked_nonfinite
from trainyard.numerics.triage.triage_result import LossScaleHistory, ScaleTrend, SkippedStep

_MOST_FALLS = 1
"""Falls below all scales at which a step was taken, up to which a training is normal."""
_LEAST_SCALE = 1.0
"""Below this scale the gradients themselves overflow."""
_ROUNDED = 1e-2
"""Relative difference of a scaled loss in float16 from the product."""


class ScaledStep(NamedTuple):
    """`gradient_scale`: by which the recorded gradients are multiplied."""

    scale: float
    skipped: bool
    gradient_scale: float


def scaled_steps(tensors: Tensors) -> dict[int, ScaledStep]:
    """The steps with a scale of the loss, of the lowest rank; a step is skipped if one rank skips it."""
    steps: dict[int, ScaledStep] = {}
    for key, record in tensors.items():
        if key.tensor.role != "scalar":
            continue
        before = steps.get(record.step)
        if key.tensor.name == "loss_scale" and before is None:
            steps[record.step] = ScaledStep(record.mean, skipped=False, gradient_scale=1.0)
        elif before is not None and key.tensor.name == "found_inf" and (record.mean or record.nonfinite):
            steps[record.step] = before._replace(skipped=True)
        elif before is not None and key.tensor.name == "gradient_scale" and record.mean > 0:
            steps[record.step] = before._replace(gradient_scale=record.mean)
    return steps


def unscaled_loss(record: TensorRecord, inputs: Sequence[TensorRecord], scale: float) -> TensorRecord:
    """The loss of which `record` is the product with the scale, among the records that it was computed from; `record`
    itself if it is not such a product."""
    if record.operation != "aten.mul":
        return record
    for source in inputs:
        product = source.mean * scale
        is_product = bool(record.nonfinite) or abs(product - record.mean) <= _ROUNDED * abs(record.mean)
        if prod(source.shape) == 1 and "float" in source.dtype and source.mean != scale and is_product:
            return source
    return record


def loss_scale_history(
    tensors: Tensors, steps: Mapping[int, ScaledStep], scaled_losses: frozenset[LogicalKey]
) -> LossScaleHistory | None:
    """The history of the scale; None without one. `scaled_losses`: products of a loss and the scale, whose overflow a
    lower scale removes."""
    if not steps:
        return None
    first: dict[int, LogicalKey] = {}
    for key in unmasked_nonfinite(tensors):
        first.setdefault(key.tensor.step, key)
    skipped: list[SkippedStep] = []
    for step, state in steps.items():
        if state.skipped:
            key = first.get(step)
            skipped.append(
                SkippedStep(
                    step=step,
                    scale=state.scale,
                    overflow=None if key is None else describe_record(key, tensors[key]),
                    is_of_scale=key is None or key.tensor.phase != "forward" or key in scaled_losses,
                )
            )
    return LossScaleHistory(trend=_trend(list(steps.values())), skipped=tuple(skipped))


def _trend(steps: Sequence[ScaledStep]) -> ScaleTrend:
    """Whether the scale fell, and whether it fell again and again."""
    if not any(step.skipped for step in steps):
        return "steady"
    lowest: float | None = None
    falls = skipped = 0
    for step in steps:
        if step.skipped:
            skipped += 1
            continue
        if skipped and lowest is not None and step.scale < lowest:
            falls += 1
        skipped = 0
        lowest = step.scale if lowest is None else min(lowest, step.scale)
    falls += skipped  # those at the end, which no step ends that was taken
    is_repeated = falls > _MOST_FALLS or min(step.scale for step in steps) < _LEAST_SCALE
    return "fell repeatedly" if is_repeated else "fell once"
