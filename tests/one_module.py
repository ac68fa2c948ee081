"""A training of one module, for tests of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class OneModule:
    """A `Stateful` training of `module` by `optimizer`, without further numbers."""

    def __init__(self, module: Any, optimizer: Any) -> None:
        self.module, self.optimizer = module, optimizer

    def modules(self) -> list[Any]:
        return [self.module]

    def optimizers(self) -> list[Any]:
        return [self.optimizer]

    def numbers(self) -> dict[str, float]:
        return {}

    def set_numbers(self, numbers: Mapping[str, float]) -> None:
        pass
