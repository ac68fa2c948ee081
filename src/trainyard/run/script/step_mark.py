"""`with trainyard.step():` around a training step: marks it under `trainyard run`, and does nothing elsewhere."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Watcher(Protocol):
    """Receives the steps of a script, as `watch_steps.ScriptWatch` does."""

    def step(self, tokens: int, loss: float | None) -> AbstractContextManager[object]: ...


_watcher: list[Watcher] = []


def set_watcher(watcher: Watcher) -> None:
    """Pass each step from now on to `watcher`."""
    _watcher[:] = [watcher]


def step(tokens: int = 0, loss: float | None = None) -> AbstractContextManager[object]:
    """Mark one training step of your own script, for `trainyard run -- python my_train.py`.

    `tokens`: number of tokens this rank trains on in the step, for the throughput. `loss`: loss of the previous step as
    a number, if available. Outside of `trainyard run` it does nothing.
    """
    return _watcher[0].step(tokens, loss) if _watcher else nullcontext()
