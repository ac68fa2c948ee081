"""Records of the same training with other micro-batches.

The same samples may be divided into other micro-batches, or padded on one side and packed on the other. Activations
then have other shapes; gradients and weights of a step are comparable all the same.
"""

from __future__ import annotations

from trainyard.numerics.compare.align_tensors import Alignment, Tensors
from trainyard.numerics.compare.logical_tensors import LogicalKey, is_of_parameter

_BATCH = ("data", "input")
"""Roles of the tensors that a batch enters with."""


def has_other_batches(a: Tensors, b: Tensors, alignment: Alignment) -> bool:
    """Whether the sides divide their samples differently: the first tensor of another shape is an input, not a
    result of a module."""
    for pair in alignment.pairs:
        if a[pair.a].shape != b[pair.b].shape:
            return pair.a.tensor.role in _BATCH or not pair.a.tensor.module
    return False


def without_activations(alignment: Alignment) -> Alignment:
    """The alignment without what depends on how samples are divided: the gradients of parameters, and everything of the
    optimizer's step, are left."""
    return alignment._replace(
        pairs=tuple(pair for pair in alignment.pairs if _is_of_step(pair.a)),
        only_a=tuple(key for key in alignment.only_a if _is_of_step(key)),
        only_b=tuple(key for key in alignment.only_b if _is_of_step(key)),
    )


def _is_of_step(key: LogicalKey) -> bool:
    return key.tensor.phase == "optimizer" or is_of_parameter(key.tensor)
