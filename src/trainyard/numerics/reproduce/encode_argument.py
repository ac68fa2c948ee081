"""Arguments of operations as JSON.

A tensor is `{"tensor": NAME}`, with `"output": N` if it is one of several results. Numbers, bools, strings and None are
themselves; NaN and infinities are `{"float": TEXT}`; a dtype, device, layout or memory format is `{"torch": TEXT}`; a
process group is `{"group": RANKS}`, the operation of a reduction `{"reduce_op": NAME}`. A value that cannot be written
as source is `{"opaque": TYPE}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_MEMBERS: Any = dist.ReduceOp.RedOpType.__members__
_REDUCTIONS = {int(value): name for name, value in _MEMBERS.items() if name != "PREMUL_SUM"}
"""Number of an operation of a reduction -> its name; one with a factor is left out."""


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
    if isinstance(value, torch.ScriptObject):
        return _encode_script_object(value)
    if isinstance(value, dist.ProcessGroup):
        return {"group": dist.get_process_group_ranks(value)}
    return {"opaque": type(value).__name__}


def _encode_script_object(value: Any) -> Any:
    """An argument of a collective, which has a type of TorchScript."""
    match str(value._type()).rpartition(".")[2]:
        case "ProcessGroup":
            return {"group": dist.get_process_group_ranks(dist.ProcessGroup.unbox(value))}
        case "ReduceOp" if name := _REDUCTIONS.get(value.op()):
            return {"reduce_op": name}
        case kind:
            return {"opaque": kind}
