"""Read tensors from files and from other processes in float64.

They are built from bytes, whose format a mode that widens every format would change: loading runs without modes, and
each tensor is widened when it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import _utils, serialization
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map


@contextmanager
def widened_loading(widen: Callable[[Any], Any]) -> Iterator[None]:
    """Context in which tensors that `torch.load` reads, and those from the processes of data loaders, are widened; of
    files in the format before torch 1.6 those in dictionaries and lists. `widen`: returns a tensor in the wider format,
    and other values unchanged."""
    load, load_legacy, rebuild = torch.load, serialization._legacy_load, _utils._rebuild_tensor

    @wraps(load)
    def load_without_modes(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return load(*args, **kwargs)

    @wraps(load_legacy)
    def load_legacy_wide(*args: Any, **kwargs: Any) -> Any:
        _utils._rebuild_tensor = rebuild  # files of this format have the values after the tensors
        try:
            return tree_map(widen, load_legacy(*args, **kwargs))
        finally:
            _utils._rebuild_tensor = rebuild_wide

    @wraps(rebuild)
    def rebuild_wide(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return widen(rebuild(*args, **kwargs))

    torch.load = serialization.load = load_without_modes
    serialization._legacy_load = load_legacy_wide
    _utils._rebuild_tensor = rebuild_wide
    try:
        yield
    finally:
        torch.load = serialization.load = load
        serialization._legacy_load = load_legacy
        _utils._rebuild_tensor = rebuild
