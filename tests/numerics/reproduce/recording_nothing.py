"""A recorder that records no operation, so that all operations on known tensors are captured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def recorder() -> Any:
    """A stand-in for `Recorder`."""
    return SimpleNamespace(
        is_recording=True,
        next_key=lambda func, args: None,
        paths=SimpleNamespace(current="", parameters=list),
        _at_operation=lambda *_: None,
    )
