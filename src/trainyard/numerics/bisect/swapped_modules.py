"""The context that computes modules of a training as a `Swap` requests."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from trainyard.numerics.bisect.compiled_modules import CompiledModules
from trainyard.numerics.bisect.float64_operations import Float64Operations
from trainyard.numerics.bisect.swap import Swap
from trainyard.numerics.record.module_paths import ModulePaths


def swapped_modules(swap: Swap, paths: ModulePaths, narrow: set[str]) -> AbstractContextManager[Any]:
    """The context for a kind of swap. `paths`: names the modules of the training. `narrow`: see `Float64Operations`."""
    if swap.kind == "eager":
        return CompiledModules(swap, paths)
    return Float64Operations(partial(_is_swapped, swap, paths), narrow)


def _is_swapped(swap: Swap, paths: ModulePaths, operation: str) -> bool:
    return not swap.keeps_operation(paths.current, operation)
