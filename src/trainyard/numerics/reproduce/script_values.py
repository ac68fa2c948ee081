"""The values that enter a reproducer, as Python source: random numbers of the same size, or the captured bytes."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from trainyard.numerics.record.flat_values import flat_values
from trainyard.numerics.reproduce.captured_slice import CapturedInput

_MOST_LITERAL = 8
"""Elements of a tensor that is written as a list."""
_MOST_EMBEDDED = 48 << 10
"""Characters of a tensor in the script; longer ones are files next to it."""


class Value(NamedTuple):
    """A tensor that enters the operations, in its shape and memory format. `parameter`: as of `CapturedInput`."""

    name: str
    tensor: Tensor
    parameter: str = ""


class ValueSource(NamedTuple):
    """`text`: an expression; `file`: the bytes that it reads from a file next to the script, None without one."""

    text: str
    file: bytes | None = None
    is_random: bool = False


def read_value(folder: Path, described: CapturedInput, name: str) -> Value:
    """The value of a captured input."""
    dtype = getattr(torch, described.dtype)
    data = bytearray((folder / described.file).read_bytes())
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(described.shape)
    if tensor.stride() != described.stride and 0 not in described.stride:
        tensor = torch.empty_strided(described.shape, described.stride, dtype=dtype).copy_(tensor)
    return Value(name, tensor, described.parameter)


def random_source(value: Value) -> ValueSource:
    """Random numbers with the mean and deviation of a tensor; its values where that would change their meaning."""
    tensor = value.tensor
    wide = tensor.double() if tensor.is_floating_point() else tensor
    if tensor.numel() <= _MOST_LITERAL or tensor.is_complex() or not bool(wide.isfinite().all()):
        return captured_source(value, f"{value.name}.bin")
    shape = list(tensor.shape)
    if bool((wide == wide.reshape(-1)[0]).all()):
        constant = wide.reshape(-1)[0].item()
        return ValueSource(_with_format(tensor, f"torch.full({shape}, {constant!r}, dtype={tensor.dtype})"))
    if tensor.dtype == torch.bool:
        return captured_source(value, f"{value.name}.bin")
    if not tensor.is_floating_point():
        text = f"torch.randint({int(tensor.min())}, {int(tensor.max()) + 1}, {shape}, dtype={tensor.dtype})"
    else:
        mean, deviation = wide.mean().item(), wide.std().item()
        offset = f" + {mean:.3g}" if abs(mean) > 0.01 * deviation else ""
        text = f"torch.randn({shape}) * {deviation:.3g}{offset}"
        if tensor.dtype != torch.float32:
            text = f"({text}).to({tensor.dtype})"
    return ValueSource(_with_format(tensor, text), is_random=True)


def captured_source(value: Value, file: str) -> ValueSource:
    """The captured values: a list, text in the script, or a file of the name `file` next to it."""
    tensor = value.tensor
    if tensor.numel() <= _MOST_LITERAL and not tensor.is_complex():
        return ValueSource(f"torch.tensor({_literal(tensor.tolist())}, dtype={tensor.dtype})")
    data = flat_values(tensor).view(torch.uint8).numpy().tobytes()
    text = base64.b64encode(zlib.compress(data, 9)).decode()
    if len(text) <= _MOST_EMBEDDED:
        return ValueSource(_with_format(tensor, f'load("{text}", {tensor.dtype}, {list(tensor.shape)})'))
    return ValueSource(
        _with_format(tensor, f'load_file("{file}", {zlib.crc32(data)}, {tensor.dtype}, {list(tensor.shape)})'),
        file=data,
    )


def _with_format(tensor: Tensor, text: str) -> str:
    """An expression for a tensor of the same strides."""
    if tensor.is_contiguous():
        return text
    return f"torch.empty_strided({list(tensor.shape)}, {list(tensor.stride())}, dtype={tensor.dtype}).copy_({text})"


def _literal(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_literal(item) for item in value)}]"
    return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)


def shared_names(a: Sequence[Value], b: Sequence[Value], tolerance: float) -> dict[str, str]:
    """The inputs of A that are inputs of B: name in A -> name in B. `tolerance`: relative distance."""
    names: dict[str, str] = {}
    for value in a:
        for other in b:
            if other.name not in names.values() and _is_close(value.tensor, other.tensor, tolerance):
                names[value.name] = other.name
                break
    return names


def is_rearranged(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same elements in any order, as a tensor and its transpose."""
    if a.numel() != b.numel() or a.dtype != b.dtype or a.is_complex():
        return False
    return torch.equal(a.reshape(-1).sort().values, b.reshape(-1).sort().values)


def _is_close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    if a.shape != b.shape or a.is_floating_point() != b.is_floating_point():
        return False
    if not a.is_floating_point():
        return a.dtype == b.dtype and torch.equal(a, b)
    if torch.equal(a.double(), b.double()):
        return True
    tolerance = max(tolerance, 2 * torch.finfo(a.dtype).eps, 2 * torch.finfo(b.dtype).eps)
    distance, norm = torch.linalg.vector_norm(a.double() - b.double()), torch.linalg.vector_norm(a.double())
    return bool(distance <= tolerance * norm)
