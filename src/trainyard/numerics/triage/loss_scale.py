"""The history of the scale of the loss in a recorded training, by `torch.amp.GradScaler` or of our own jobs.

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
_MOST_FACTORS = 4
"""Operations from the product of the loss and its scale to the tensor from which the backward pass begins."""
_ROUNDED = 1e-2
"""Relative difference of a scaled loss in float16 from the product."""


class StepScale(NamedTuple):
    """`factor`: by which this rank multiplied its loss."""

    scale: float
    factor: float
    skipped: bool = False


def step_scales(tensors: Tensors) -> dict[int, StepScale]:
    """The steps with a scale of the loss, of the lowest rank; a step is skipped if one rank skips it."""
    steps: dict[int, StepScale] = {}
    for key, record in tensors.items():
        if key.tensor.role != "scalar":
            continue
        before = steps.get(record.step)
        if key.tensor.name == "loss_scale" and before is None:
            steps[record.step] = StepScale(record.mean, record.mean)
        elif before is not None and key.tensor.name == "loss_factor":
            steps[record.step] = before._replace(factor=record.mean)
        elif before is not None and key.tensor.name == "found_inf" and (record.mean or record.nonfinite):
            steps[record.step] = before._replace(skipped=True)
    return steps


class UnscaledLoss(NamedTuple):
    """`value`: None if it is not finite. `scaled`: the product with the scale, and the tensors computed from it."""

    value: float | None
    scaled: tuple[LogicalKey, ...]


def unscaled_loss(
    key: LogicalKey, tensors: Tensors, by_index: Mapping[tuple[int, int, int], LogicalKey], factor: float
) -> UnscaledLoss:
    """A loss without its `factor`, if it or a scalar that it was computed from is a product with it. `by_index`: key of
    each tensor by step, rank and index."""
    loss = tensors[key]
    chain: list[LogicalKey] = []
    while len(chain) < _MOST_FACTORS:
        chain.append(key)
        record = tensors[key]
        sources = (by_index.get((record.step, key.rank, index)) for index in record.inputs)
        scalars = [source for source in sources if source is not None and _is_scalar(tensors[source])]
        product = next((tensors[source] for source in scalars if _is_product(record, tensors[source], factor)), None)
        if product is not None:
            value = product.mean if loss.nonfinite else loss.mean / factor
            return UnscaledLoss(None if product.nonfinite else value, tuple(chain))
        if not scalars:
            break
        key = scalars[0]
    return UnscaledLoss(None if loss.nonfinite else loss.mean, ())


def _is_scalar(record: TensorRecord) -> bool:
    return prod(record.shape) == 1 and "float" in record.dtype


def _is_product(record: TensorRecord, source: TensorRecord, factor: float) -> bool:
    """Whether a scalar is the product of another one, which is not the factor itself, and the factor."""
    if record.operation != "aten.mul" or source.mean == factor:
        return False
    return bool(record.nonfinite) or abs(source.mean * factor - record.mean) <= _ROUNDED * abs(record.mean)


def loss_scale_history(
    tensors: Tensors, steps: Mapping[int, StepScale], scaled_losses: frozenset[LogicalKey]
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


def _trend(steps: Sequence[StepScale]) -> ScaleTrend:
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
