"""The first tensor of a record that is not finite, and where it came from."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trainyard.numerics.compare.align_tensors import Tensors
from trainyard.numerics.compare.data_flow import DataFlow
from trainyard.numerics.compare.logical_tensors import LogicalKey
from trainyard.numerics.compare.losses import is_loss
from trainyard.numerics.tensor_record import TensorRecord
from trainyard.numerics.triage.triage_result import NonFiniteOrigin, TriagedTensor


def describe_record(key: LogicalKey, record: TensorRecord) -> TriagedTensor:
    """A record as the diagnosis shows it."""
    counts = record.nonfinite
    return TriagedTensor(
        step=record.step,
        phase=record.phase,
        module=record.module,
        operation=record.operation,
        role=record.role,
        name=record.name,
        rank=key.rank,
        shape=record.shape,
        dtype=record.dtype,
        location=record.location,
        norm=record.norm,
        maximum=record.maximum,
        nan=counts.nan if counts else 0,
        positive_infinities=counts.positive if counts else 0,
        negative_infinities=counts.negative if counts else 0,
    )


def unmasked_nonfinite(tensors: Tensors) -> list[LogicalKey]:
    """The tensors, in order of execution, with values that are not finite and that no mask explains."""
    masked = _masked(tensors)
    return [key for key, record in tensors.items() if record.nonfinite is not None and key not in masked]


def find_nonfinite(tensors: Tensors, handled: Collection[int] = ()) -> NonFiniteOrigin | None:
    """The first tensor, in order of execution, with values that are not finite and that no mask explains. `handled`:
    steps that are left out, as the scaler of the loss skipped them."""
    wrong = [key for key in unmasked_nonfinite(tensors) if key.tensor.step not in handled]
    if not wrong:
        return None
    first, *later = wrong
    sources = DataFlow(tensors, tensors[first].step).inputs(first)
    return NonFiniteOrigin(
        tensor=describe_record(first, tensors[first]),
        inputs=tuple(describe_record(key, tensors[key]) for key in sources),
        affected=len(later),
        first_loss=_first(tensors, [key for key in later if is_loss(key, tensors[key])]),
        first_gradient=_first(tensors, [key for key in later if key.tensor.role == "gradient"]),
        first_weight=_first(tensors, [key for key in later if key.tensor.role == "weight"]),
    )


def _masked(tensors: Tensors) -> set[LogicalKey]:
    """The tensors whose values are not finite because of a mask: negative infinities only, written by a mask or
    computed from such a tensor."""
    masked: set[LogicalKey] = set()
    flows: dict[int, DataFlow] = {}
    for key, record in tensors.items():
        counts = record.nonfinite
        if counts is None or counts.nan or counts.positive:
            continue
        if record.step not in flows:
            flows[record.step] = DataFlow(tensors, record.step)
        if counts.masked or any(source in masked for source in flows[record.step].inputs(key)):
            masked.add(key)
    return masked


def _first(tensors: Tensors, keys: Sequence[LogicalKey]) -> TriagedTensor | None:
    return describe_record(keys[0], tensors[keys[0]]) if keys else None
