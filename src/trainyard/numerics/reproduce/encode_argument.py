"""Arguments of operations as JSON.

A tensor is `{"tensor": NAME}`, with `"output": N` if it is one of several results. Numbers, bools, strings and None are
themselves; NaN and infinities are `{"float": TEXT}`; a dtype, device, layout or memory format is `{"torch": TEXT}`. A
value that cannot be written as source is `{"opaque": TYPE}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def encode_argument(value: Any, reference: Callable[[Tensor], Any]) -> Any:
    """An argument as JSON; `reference`: gives the JSON of a tensor."""
    if isinstance(value, Tensor):
        return reference(value)
    if isinstance(value, (list, tuple)):
        return [encode_argument(item, reference) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.device):
        return {"torch": f'device("{value}")'}
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return {"torch": str(value).removeprefix("torch.")}
    return {"opaque": type(value).__name__}
