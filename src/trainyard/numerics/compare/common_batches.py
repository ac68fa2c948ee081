"""Records of the same training with other micro-batches.

The same samples may be divided into other micro-batches, or padded on one side and packed on the other. Activations
then have other shapes; gradients and weights of a step are comparable all the same.
"""

from __future__ import annotations

from trainyard.numerics.compare.align_tensors import Alignment, Tensors

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
    """The alignment of what does not depend on how samples are divided: everything from the optimizer's step on."""
    return alignment._replace(
        pairs=tuple(pair for pair in alignment.pairs if pair.a.tensor.phase == "optimizer"),
        only_a=tuple(key for key in alignment.only_a if key.tensor.phase == "optimizer"),
        only_b=tuple(key for key in alignment.only_b if key.tensor.phase == "optimizer"),
    )
