"""Import the ranks' modules in the process that they are forked from, once for all of them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from contextlib import suppress


def preload(modules: Iterable[str]) -> None:
    for name in modules:
        with suppress(ImportError):  # the rank that needs it reports what is missing
            importlib.import_module(name)
