"""Records of the same training with other micro-batches.

The same samples may be divided into other micro-batches, or padded on one side and packed on the other. Activations
then have other shapes; gradients and weights of a step are comparable all the same.
"""

from __future__ import annotations

from trainyard.numerics.compare.align_tensors import Alignment, Tensors
from trainyard.numerics.compare.logical_tensors import LogicalKey, has_other_size, is_of_parameter


def has_other_batches(a: Tensors, b: Tensors, alignment: Alignment) -> bool:
    """Whether the sides divide their samples differently: the first tensor of another size is of the batch, not a
    result of a module."""
    for pair in alignment.pairs:
        if has_other_size(a[pair.a], b[pair.b]):
            return pair.a.tensor.role == "data" or not pair.a.tensor.module
    return False


def without_activations(alignment: Alignment) -> Alignment:
    """The alignment without the tensors that depend on how samples are divided. The gradients of parameters, and all
    tensors of the optimizer's step, stay."""
    return alignment._replace(
        pairs=tuple(pair for pair in alignment.pairs if _is_of_step(pair.a)),
        only_a=tuple(key for key in alignment.only_a if _is_of_step(key)),
        only_b=tuple(key for key in alignment.only_b if _is_of_step(key)),
    )


def _is_of_step(key: LogicalKey) -> bool:
    return key.tensor.phase == "optimizer" or is_of_parameter(key.tensor)
