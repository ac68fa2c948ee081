"""Infers the use of allocations from before the trace, from their sizes and from the passes that the trace holds.

A parameter is allocated when the model is built, and often before recording starts: then no stack is known. What is
known is that it is never freed, that its gradient has its size, and that an optimizer keeps as many tensors of this
size per parameter (none for SGD, one for momentum, two for Adam; twice the size for 32-bit states of 16-bit
parameters). Three kinds of evidence are used, the strongest that the trace offers:

- `gradients`: a backward pass allocates gradients and keeps them: their sizes are those of the parameters;
- `accumulation`: it allocates one tensor per parameter and frees it at once: gradients exist already and are added to;
- `sizes`: no backward pass: the sizes are multiples of the model's smallest repeated tensor (a norm's weight, a bias).

What does not fit stays unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import reduce
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard import units, words
from trainyard.trace.memory.replay_allocations import Lives

_KINDS = tuple(words.MEMORY)
_UNKNOWN, _GRADIENT = _KINDS.index("unknown"), _KINDS.index("gradient")
_PARAMETER, _STATE, _EARLIER_GRADIENT = (
    _KINDS.index(kind) for kind in ("parameter_inferred", "optimizer_state_inferred", "gradient_inferred")
)
_MAX_COPIES, _MAX_WIDE_COPIES = 4, 3
"""Most tensors of a parameter's size (itself, its gradient, two states), and of twice its size, per parameter."""
_MIN_FIT = 0.9
"""Least fraction of the bytes of the sizes concerned that an explanation must fit exactly."""
_MAIN_BYTES = 0.95
"""The sizes that together hold this fraction of the bytes show how many tensors there are per parameter."""
_MIN_TRACED = 0.25
"""Least number of allocations in the trace for each one from before it."""
_MIN_VECTORS = 3
"""Least number of tensors of the size of which others are multiples."""
_REASONS = {
    "gradients": "they are never freed, and the backward pass of the trace keeps a gradient for each size",
    "accumulation": "they are never freed, and the backward pass allocates one tensor for each and frees it at once, "
    "as if it added it to a gradient",
    "sizes": "they are never freed, and their sizes are multiples of one that repeats; the trace has no backward pass",
}
"""Kind of evidence -> how it shows parameters."""
Bytes = Counter[int]
"""Size in bytes -> number of allocations."""


class Inference(NamedTuple):
    """`category`: index into words.MEMORY of each allocation; `evidence`: sentences on what was inferred, and why."""

    category: NDArray[np.int8]
    evidence: tuple[str, ...]


class _Copies(NamedTuple):
    """An explanation of the live allocations: each parameter has `same` tensors of its size in all (itself included),
    `gradients` of them (0 or 1) its gradient, and `wide` of twice its size. `parameters`: size in bytes -> number of
    parameters of that size; `evidence`: a key of `_REASONS`."""

    parameters: Mapping[int, int]
    same: int
    wide: int
    gradients: int
    evidence: str


def infer_earlier_allocations(
    lives: Lives, event_count: int, category: NDArray[np.int8], is_backward: NDArray[np.bool_]
) -> Inference:
    """Replaces `unknown` by inferred categories for allocations from before the trace, in a copy of `category` (index
    into words.MEMORY of each of `lives`). `is_backward`: whether each was allocated by a backward pass of the trace of
    `event_count` events."""
    earlier = (lives.start < 0) & (category == _UNKNOWN)
    stays = np.flatnonzero(earlier & (lives.stop >= event_count))
    traced_count = int((lives.start >= 0).sum())
    # A trace with few allocations does not show that an allocation that it never frees is long-lived.
    if not len(stays) or traced_count < _MIN_TRACED * len(stays):
        return Inference(category, ())
    category = category.copy()
    live = Counter(lives.requested[stays].tolist())
    kept, transient = _backward_sizes(lives, category, is_backward)
    copies = _explain_by_gradients(live, kept) or _explain_by_accumulation(live, transient) or _explain_by_sizes(live)
    evidence: list[str] = []
    if copies is not None:
        evidence.extend(_assign(lives, stays, category, copies))
        evidence.extend(_assign_earlier_gradients(lives, earlier, event_count, category, copies))
    return Inference(category, tuple(evidence))


def _backward_sizes(lives: Lives, category: NDArray[np.int8], is_backward: NDArray[np.bool_]) -> tuple[Bytes, Bytes]:
    """Returns (gradients kept, other tensors allocated), each by size in bytes: for each size the number in the
    backward pass of the trace that has most of it. `category`, `is_backward`: of each of `lives`."""
    # Allocations of the trace in order; consecutive ones of backward passes form one pass.
    order = np.argsort(lives.start, kind="stable")
    order = order[lives.start[order] >= 0]
    in_pass = is_backward[order]
    pass_number = np.cumsum(np.append(True, in_pass[1:] != in_pass[:-1])[: len(order)])
    kept: Bytes = Counter()
    transient: Bytes = Counter()
    for number in np.unique(pass_number[in_pass]).tolist():
        rows = order[in_pass & (pass_number == number)]
        is_kept = category[rows] == _GRADIENT
        for sizes, most in ((lives.requested[rows[is_kept]], kept), (lives.requested[rows[~is_kept]], transient)):
            most |= Counter(sizes.tolist())
    return kept, transient


def _explain_by_gradients(live: Bytes, gradients: Bytes) -> _Copies | None:
    """The explanation by gradients that the trace allocates, None if they fit no numbers of tensors per parameter. The
    gradients are not among the `live` allocations. Of several numbers, those that explain most bytes are taken."""
    best, most_bytes = None, 0
    for same in range(1, _MAX_COPIES):
        for wide in range(_MAX_WIDE_COPIES + 1):
            fitting = {size: count for size, count in gradients.items() if _fits(size, live, gradients, same, wide)}
            fitted = _bytes(fitting)
            concerned = {size: count for size, count in gradients.items() if live[size]}
            if fitted >= _MIN_FIT * _bytes(concerned) > 0 and fitted * (same + 2 * wide) > most_bytes:
                # A pass may also keep other tensors of a parameter's size.
                more = {
                    size: live[size] // same
                    for size, count in concerned.items()
                    if size not in fitting and not wide and not live[size] % same and live[size] < same * count
                }
                best = _Copies(parameters=fitting | more, same=same, wide=wide, gradients=0, evidence="gradients")
                most_bytes = fitted * (same + 2 * wide)
    return best


def _fits(size: int, live: Bytes, gradients: Bytes, same: int, wide: int) -> bool:
    """Whether there are exactly as many live allocations of a gradient's `size`, and of twice that size, as `same`
    tensors of its size and `wide` of twice its size per parameter imply. Wide tensors of parameters of half the size
    have this size, too."""
    narrower = wide * gradients[size // 2] if size % 2 == 0 else 0
    wider = same * gradients[2 * size] + wide * gradients[size]
    return live[size] == same * gradients[size] + narrower and (not wide or live[2 * size] == wider)


def _explain_by_accumulation(live: Bytes, transient: Bytes) -> _Copies | None:
    """The explanation by tensors that a backward pass adds to gradients that exist already; None if they do not fit.

    Both arguments: size in bytes -> number of allocations. `live`: those from before the trace that are never freed;
    `transient`: those that a backward pass allocates and frees, one per parameter, which adds up in its gradient. Tried
    are numbers of tensors per parameter (`same`: itself, its gradient and state of the optimizer).
    """
    concerned = {size: count for size, count in live.items() if transient[size]}
    for same in range(_MAX_COPIES, 1, -1):
        # A pass may also free other tensors of this size.
        fitting = {
            size: count // same
            for size, count in concerned.items()
            if count % same == 0 and transient[size] >= count // same
        }
        exact = {size: count for size, count in fitting.items() if transient[size] == count}
        if _bytes(exact) * same >= _MIN_FIT * _bytes(concerned) > 0:
            return _Copies(parameters=fitting, same=same, wide=0, gradients=1, evidence="accumulation")
    return None


def _explain_by_sizes(live: Bytes) -> _Copies | None:
    """The explanation by sizes alone; None if they are not multiples of one that repeats. The number of tensors per
    parameter is the greatest common divisor of the counts of the main sizes, if it is from 2 to `_MAX_COPIES`, else 1.
    """
    vector = _find_vector(live)
    if not vector:
        return None
    repeated_bytes = _bytes({size: count for size, count in live.items() if count > 1})
    # A single tensor may be an embedding; one that is larger than all the rest is rather data.
    model = {
        size: count for size, count in live.items() if size % vector == 0 and (count > 1 or size <= repeated_bytes)
    }
    main: list[int] = [model[vector]]
    left = _MAIN_BYTES * _bytes(model)
    for size, count in sorted(model.items(), key=lambda item: -item[0] * item[1]):
        if left <= 0:
            break
        main.append(count)
        left -= size * count
    same = reduce(gcd, main)
    same = same if 1 < same <= _MAX_COPIES else 1
    parameters = {size: count // same for size, count in model.items() if count >= same}
    return _Copies(parameters=parameters, same=same, wide=0, gradients=0, evidence="sizes")


def _find_vector(live: Bytes) -> int:
    """The size, of at least `_MIN_VECTORS` allocations, of whose multiples most repeated bytes are; 0 if these are not
    nearly all."""
    repeated = {size: count for size, count in live.items() if count > 1}
    candidates = [size for size, count in live.items() if count >= _MIN_VECTORS]
    covered = {
        vector: _bytes({size: count for size, count in repeated.items() if size % vector == 0})
        for vector in candidates
        if any(size > vector and size % vector == 0 for size in repeated)
    }
    best = max(covered, key=lambda vector: (covered[vector], vector), default=0)
    return best if best and covered[best] >= _MIN_FIT * _bytes(repeated) else 0


def _assign(lives: Lives, stays: NDArray[np.intp], category: NDArray[np.int8], copies: _Copies) -> list[str]:
    """Sets the categories of the allocations that are never freed, in place; returns the evidence as sentences.

    `stays`: their rows in `lives`; `category`: of each row of `lives`, an index into words.MEMORY. `copies.parameters`:
    size in bytes -> number of parameters; each has `same` tensors of its size in all (itself, perhaps its gradient and
    state of the optimizer) and `wide` of twice its size (state). Of equal blocks, those at the lowest addresses count
    as parameters.
    """
    # Requested size -> rows, in order of address.
    rows_of: dict[int, list[int]] = {}
    for row in stays[np.argsort(lives.address[stays], kind="stable")].tolist():
        rows_of.setdefault(int(lives.requested[row]), []).append(row)
    for size, count in copies.parameters.items():
        rows = rows_of.get(size, [])
        category[rows[:count]] = _PARAMETER
        rest = rows[count : count * copies.same]
        if copies.gradients:
            category[rest[:count]] = _EARLIER_GRADIENT
            rest = rest[count:]
        if copies.evidence != "sizes":
            category[rest] = _STATE
    for size, count in copies.parameters.items() if copies.wide else ():
        rows = [row for row in rows_of.get(2 * size, []) if category[row] == _UNKNOWN]
        category[rows[: count * copies.wide]] = _STATE
    if copies.evidence != "sizes":
        _assign_without_gradient(lives, stays, category, copies)
    return _describe(lives, stays, category, copies)


def _assign_without_gradient(
    lives: Lives, stays: NDArray[np.intp], category: NDArray[np.int8], copies: _Copies
) -> None:
    """Sets, in place, the category of repeated allocations without gradients to parameters if their sizes are multiples
    of a parameter's: frozen weights and buffers."""
    rest = stays[category[stays] == _UNKNOWN]
    counts = Counter(lives.requested[rest].tolist())
    vectors = [size for size, count in copies.parameters.items() if count >= _MIN_VECTORS]
    vector = min(vectors, default=0)
    for size, count in counts.items():
        if vector and size % vector == 0 and count > 1 and size not in copies.parameters:
            category[rest[lives.requested[rest] == size]] = _PARAMETER


def _assign_earlier_gradients(
    lives: Lives, earlier: NDArray[np.bool_], event_count: int, category: NDArray[np.int8], copies: _Copies
) -> list[str]:
    """Sets, in place, the category of allocations from before the trace that the trace frees, if there is exactly one
    for each parameter: the gradients of the step before. `earlier`: whether each of `lives` is from before the trace.
    Returns the evidence as sentences."""
    freed = np.flatnonzero(earlier & (lives.stop < event_count))
    counts = Counter(lives.requested[freed].tolist())
    fitting = {size: count for size, count in copies.parameters.items() if counts[size] == count}
    if copies.evidence != "gradients" or _bytes(fitting) < _MIN_FIT * _bytes(copies.parameters):
        return []
    rows = freed[np.isin(lives.requested[freed], list(fitting))]
    category[rows] = _EARLIER_GRADIENT
    return [
        f"Gradients (inferred): {units.counted(len(rows), 'block')} ({_size(lives, rows)}) from before the trace, "
        "which frees them: one of each parameter's size."
    ]


def _describe(lives: Lives, stays: NDArray[np.intp], category: NDArray[np.int8], copies: _Copies) -> list[str]:
    """Sentences on the inferred categories of the allocations in rows `stays`, and the evidence."""
    blocks = {
        kind: f"{units.counted(int((category[stays] == kind).sum()), 'block')} "
        f"({_size(lives, stays[category[stays] == kind])})"
        for kind in (_PARAMETER, _STATE, _EARLIER_GRADIENT, _UNKNOWN)
    }
    present = set(category[stays].tolist())
    sentences = [f"Parameters (inferred): {blocks[_PARAMETER]} from before the trace; {_REASONS[copies.evidence]}."]
    has_gradient = np.isin(lives.requested[stays], list(copies.parameters))
    without_gradient = stays[(category[stays] == _PARAMETER) & ~has_gradient]
    if len(without_gradient):
        sentences.append(
            f"{units.counted(len(without_gradient), 'block')} of them ({_size(lives, without_gradient)}) have no "
            "gradient in the trace: frozen weights or buffers."
        )
    if _EARLIER_GRADIENT in present:
        sentences.append(f"Gradients (inferred): {blocks[_EARLIER_GRADIENT]}, one of each parameter's size.")
    if _STATE in present:
        width = f", {copies.wide} of them of twice its size" if copies.wide else ", of the same size"
        sentences.append(
            f"Optimizer state (inferred): {blocks[_STATE]}, {copies.same - 1 - copies.gradients + copies.wide} per "
            f"parameter{width}. Which of equal blocks is the parameter is not known."
        )
    if copies.evidence == "sizes" and copies.same > 1:
        sentences.append(
            f"All main sizes occur {copies.same} times per parameter: the others may be gradients or optimizer state, "
            "and are counted as unknown."
        )
    if _UNKNOWN in present:
        sentences.append(
            f"Unknown: {blocks[_UNKNOWN]} from before the trace of other sizes, such as data, caches and workspaces."
        )
    return sentences


def _size(lives: Lives, rows: NDArray[np.intp]) -> str:
    return units.show_size(int(lives.size[rows].sum()))


def _bytes(counts: Mapping[int, int]) -> int:
    """Total bytes of allocations by size."""
    return sum(size * count for size, count in counts.items())
