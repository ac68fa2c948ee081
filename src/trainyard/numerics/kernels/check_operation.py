"""Compare the result of one operation with float64, element by element.

The bound of an element with the float64 value y is

    u_out |y| + tiny + M ((u + v) (|y| + sqrt(n) k + a) + sqrt(n) d + (v / u) d)

`u_out` is the unit round-off of the result's dtype, u that of the format in which the operation computes, and v that
of intermediate results in half precision, 0 for most operations. d is the sensitivity of y to its inputs: the largest
change among `SAMPLES` float64 evaluations whose inputs are moved by u relative to each element. It accounts for the
condition of the operation. n is the number of terms that are added: adding them in sequence has an error of up to
u sqrt(n) times the sum of absolute values with high probability (Higham and Mary 2019, A New Approach to Probabilistic
Rounding Error Analysis, SIAM Journal on Scientific Computing 41). a is the size of an intermediate result that cancels
(`cancelling_size`), and k that of the result of a norm, times the condition of its variance (`variance_noise`); `tiny`
covers results and intermediate results below the smallest normal number.

Operations that only move or round values have the bound |round(y) - y|.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from trainyard.numerics.kernels.added_terms import added_terms
from trainyard.numerics.kernels.cancelling_size import cancelling_size, largest
from trainyard.numerics.kernels.check_result import MOST_RATIO, InputTensor, WorstElement
from trainyard.numerics.kernels.compute_roundoff import (
    compute_roundoff,
    intermediate_roundoff,
    roundoff_of,
    scalar_roundoff,
)
from trainyard.numerics.kernels.exact_operations import is_exact
from trainyard.numerics.kernels.perturbed_inputs import SAMPLES, perturbed_inputs
from trainyard.numerics.kernels.unchecked_reason import NO_FLOATS, NO_KERNEL, SUBCLASS, is_special
from trainyard.numerics.kernels.variance_noise import variance_noise
from trainyard.numerics.record.float64_mode import widened_copies
from trainyard.numerics.record.module_paths import tensors_in
from trainyard.numerics.record.tensor_writers import tensors_among

MARGIN = 4.0
"""M: errors of kernels in units of u, with the largest of a few samples as an estimate of the sensitivity."""
_MOST_UNDERFLOW = 2.0**-100
"""The largest `tiny`."""
_WRITTEN: Mapping[str, tuple[str, ...]] = dict.fromkeys(
    ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), ("running_mean", "running_var")
)
"""Operation -> arguments that it writes without declaring it in its schema."""


class NotChecked(Exception):
    """A call cannot be checked for this reason."""


class OperationCheck(NamedTuple):
    """See `CheckedOperation`. `worst`: without location, step, call and rank."""

    elements: int
    undetectable: int
    exceeding: int
    ratio: float
    worst: WorstElement | None


class OperationInputs(NamedTuple):
    """The arguments of a call in float64, as they were before it, and the formats that they had."""

    func: Any
    args: list[Any]
    kwargs: dict[str, Any]
    roundoff: float
    intermediate_roundoff: float
    scalar_roundoff: float
    tensors: tuple[InputTensor, ...]


def copy_inputs(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OperationInputs:
    """The inputs of a call that is about to run and has floating-point tensors."""
    with torch.no_grad(), _disable_current_modes():
        wide_args, wide_kwargs = widened_copies(list(args), dict(kwargs))
    given = list(tensors_among(args, kwargs))
    values = [tensor for tensor in given if tensor.is_floating_point()]
    return OperationInputs(
        func,
        wide_args,
        wide_kwargs,
        compute_roundoff(func, values),
        intermediate_roundoff(func, values),
        scalar_roundoff(values),
        tuple(InputTensor(shape=tuple(tensor.shape), dtype=_name(tensor.dtype)) for tensor in given),
    )


def check_operation(
    inputs: OperationInputs, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> OperationCheck:
    """Compares the result of a call, and the arguments that it wrote, with float64.

    `inputs`: from `copy_inputs` before the call; `args`, `kwargs`: the arguments after it. Raises `NotChecked` if the
    operation lacks a float64 kernel, or a result in a narrower format.
    """
    func = inputs.func
    given = results_of(func, args, kwargs, result)
    if not any(_is_checked(tensor) for tensor in given):
        raise NotChecked(NO_FLOATS)
    if any(map(is_special, given)):
        raise NotChecked(SUBCLASS)
    with torch.no_grad(), _disable_current_modes(), torch._C._DisableAutocast():
        exact = is_exact(func, args, kwargs)
        references = _evaluate(inputs, 0, 0.0)
        if len(references) != len(given):
            raise NotChecked(NO_KERNEL)
        for tensor, reference in zip(given, references):
            if _is_checked(tensor) and (reference.dtype != torch.float64 or reference.shape != tensor.shape):
                raise NotChecked(NO_KERNEL)
        sensitivities = [] if exact else _sensitivities(inputs, references)
        terms = added_terms(func, args, kwargs, [tensor for tensor in given if tensor.is_floating_point()])
        checks = [
            _check_tensor(inputs, number, tensor, references, None if exact else sensitivities[number], terms)
            for number, tensor in enumerate(given)
            if _is_checked(tensor)
        ]
    return _combine(checks)


def results_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> list[Tensor]:
    """The tensors that a call wrote, in order of its arguments, and then those that it returned."""
    arguments = func._schema.arguments
    undeclared = _WRITTEN.get(func.overloadpacket.__name__, ())
    written: list[Tensor] = []
    for at, argument in enumerate(arguments):
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        if is_written or argument.name in undeclared:
            written += tensors_in(args[at] if at < len(args) else kwargs.get(argument.name))
    returned = result if isinstance(result, (list, tuple)) and len(func._schema.returns) > 1 else (result,)
    for value, schema in zip(returned, func._schema.returns):
        if schema.alias_info is None:
            written += tensors_in(value)
    return written


def _evaluate(inputs: OperationInputs, sample: int, roundoff: float) -> list[Tensor]:
    """The results in float64 from perturbed inputs."""
    args, kwargs = perturbed_inputs((inputs.args, inputs.kwargs), sample, roundoff, inputs.scalar_roundoff)
    try:
        result = inputs.func(*args, **kwargs)
    except torch.OutOfMemoryError:
        raise
    except (NotImplementedError, RuntimeError) as error:  # torch raises either if a kernel does not take the format
        raise NotChecked(NO_KERNEL) from error
    return results_of(inputs.func, args, kwargs, result)


def _sensitivities(inputs: OperationInputs, references: Sequence[Tensor]) -> list[Tensor]:
    """The largest change of each result over the samples; not a number where a sample is not finite."""
    largest = [torch.zeros_like(reference) for reference in references]
    for sample in range(SAMPLES):
        moved = _evaluate(inputs, sample, inputs.roundoff)
        largest = [
            torch.maximum(before, (value - reference).abs()) if value.dtype == torch.float64 else before
            for before, value, reference in zip(largest, moved, references)
        ]
    return [_widen_to_tiles(inputs.func, tensor) for tensor in largest]


def _widen_to_tiles(func: Any, sensitivity: Tensor) -> Tensor:
    """The largest sensitivity of an image's channel, for convolutions: fast algorithms (Winograd, Fourier transforms)
    compute tiles, whose elements have the errors of the largest."""
    if "convolution" not in func.overloadpacket.__name__ or sensitivity.ndim < 3 or not sensitivity.numel():
        return sensitivity
    return sensitivity.amax(dim=tuple(range(2, sensitivity.ndim)), keepdim=True).expand_as(sensitivity)


def _underflow(inputs: OperationInputs) -> float:
    """The largest absolute error if an intermediate result of the size of 1 is not normal in float32."""
    product = float(torch.finfo(torch.float32).tiny)
    for tensor in tensors_among(inputs.args, inputs.kwargs):
        if tensor.dtype == torch.float64:
            product = min(product * (1 + largest(tensor)), _MOST_UNDERFLOW)
    return product


def _check_tensor(
    inputs: OperationInputs,
    number: int,
    given: Tensor,
    references: Sequence[Tensor],
    sensitivity: Tensor | None,
    terms: int,
) -> OperationCheck:
    reference = references[number]
    value, limits = given.to(torch.float64), torch.finfo(given.dtype)
    magnitude, rounded = reference.abs(), reference.to(given.dtype).to(torch.float64)
    if sensitivity is None:
        bound = (rounded - reference).abs().nan_to_num(nan=0.0, posinf=0.0)
    else:
        roundoff = roundoff_of(given.dtype)
        intermediate = inputs.intermediate_roundoff
        call = inputs.func, inputs.args, inputs.kwargs
        of_variance = sqrt(terms) * variance_noise(*call, references, number)
        noise = (inputs.roundoff + intermediate) * (magnitude + of_variance + cancelling_size(*call, number))
        noise = noise + (sqrt(terms) + intermediate / inputs.roundoff) * sensitivity
        bound = roundoff * magnitude + max(limits.tiny, _underflow(inputs)) + MARGIN * noise
        bound = bound.nan_to_num(nan=float("inf"), posinf=float("inf"))
    error = (value - reference).abs()
    is_finite, is_defined = value.isfinite(), reference.isfinite()
    is_same = (value == rounded) | (value.isnan() & reference.isnan())
    overflows = ~is_finite & (magnitude + bound >= limits.max)
    is_wrong = torch.where(is_finite, error > bound, ~overflows)
    exceeds = ~is_same & torch.where(is_defined, is_wrong & bound.isfinite(), reference.isinf() & is_finite)
    is_unknown = ~is_same & ~(is_finite & is_defined)
    undetectable = ~exceeds & (is_unknown | is_defined & (bound >= magnitude) & (bound > 2 * limits.tiny))
    ratio = torch.where(is_finite & is_defined, error / bound, MOST_RATIO)
    ratio = ratio.where(~is_same & ~undetectable, 0.0).nan_to_num(nan=0.0).clamp(max=MOST_RATIO)
    if not ratio.numel():
        return OperationCheck(0, 0, 0, 0.0, None)
    position = int(ratio.flatten().argmax())
    index = tuple(int(at) for at in torch.unravel_index(torch.tensor(position), given.shape))
    worst_value, exact = float(value[index]), float(reference[index])
    worst = WorstElement(
        output=number,
        index=index,
        value=worst_value if isfinite(worst_value) else None,
        reference=exact if isfinite(exact) else None,
        nonfinite="" if isfinite(worst_value) else str(worst_value),
        bound=min(float(bound[index]), limits.max),
        dtype=_name(given.dtype),
        inputs=inputs.tensors,
    )
    return OperationCheck(
        given.numel(), int(undetectable.sum()), int(exceeds.sum()), float(ratio.flatten()[position]), worst
    )


def _combine(checks: Sequence[OperationCheck]) -> OperationCheck:
    worst = max(checks, key=lambda check: (check.worst is not None, check.ratio))
    return OperationCheck(
        sum(check.elements for check in checks),
        sum(check.undetectable for check in checks),
        sum(check.exceeding for check in checks),
        worst.ratio,
        worst.worst,
    )


def _is_checked(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype != torch.float64


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
