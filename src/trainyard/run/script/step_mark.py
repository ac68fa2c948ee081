"""`with trainyard.step():` around a training step: marks it where somebody watches, and is nothing elsewhere."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Watcher(Protocol):
    def step(self, tokens: int, loss: float | None) -> AbstractContextManager[object]: ...


_watcher: list[Watcher] = []


def watched_by(watcher: Watcher) -> None:
    """From here on, `watcher` hears of each step."""
    _watcher[:] = [watcher]


def step(tokens: int = 0, loss: float | None = None) -> AbstractContextManager[object]:
    """Around one training step of your own script, for `trainyard run -- python my_train.py`.

    `tokens`: how many this rank trains on in it, for the throughput. `loss`: of the step before, as a number, where
    the script has it at hand. Outside of `trainyard run` it does nothing.
    """
    return _watcher[0].step(tokens, loss) if _watcher else nullcontext()
