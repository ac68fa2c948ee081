"""Caches for pure functions that the readers call with the same arguments again and again: most mutated inputs differ
from an earlier one in a place that much of their reader never uses.

A cached function has no side effects, and its result depends on its arguments alone. Only a worker installs the caches;
a replay of the corpus calls every function.
"""

from __future__ import annotations

import pickle
import shlex
import sys
import tomllib
import typing
from collections.abc import Callable, Hashable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import trainyard

_CAPACITY = 4096
"""Results in one cache."""


class _Cached:
    """A function of hashable arguments. Each call returns a new object, and what it raises is raised again."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._results: dict[Hashable, bytes | tuple[type[Exception], tuple[Any, ...]]] = {}

    def __call__(self, *args: Any, **named: Any) -> Any:
        key = args, tuple(named.items())
        if key not in self._results:
            if len(self._results) >= _CAPACITY:
                self._results.clear()
            try:
                self._results[key] = pickle.dumps(self._function(*args, **named))
            except (ValueError, RecursionError) as error:
                self._results[key] = type(error), error.args
        result = self._results[key]
        if isinstance(result, tuple):
            kind, arguments = result
            raise kind(*arguments)
        return pickle.loads(result)  # noqa: S301


def cached_by(key: Callable[..., Hashable], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose callers do not change its result. `key` makes a hashable value of its arguments."""
    results: dict[Hashable, Any] = {}

    def call(*args: Any) -> Any:
        arguments = key(*args)
        result = results.get(arguments)
        if result is None:
            if len(results) >= _CAPACITY:
                results.clear()
            result = results[arguments] = function(*args)
        return result

    return call


def _assembly(*args: Any) -> Hashable:
    """The key of a call of `assemble`."""
    return tuple(map(_hashable, args))


def _gathering(gather: Any, *args: Any) -> Hashable:
    """The key of a call of `Gather.events`."""
    return tuple(map(_hashable, (*vars(gather).values(), *args)))


def _hashable(value: Any) -> Hashable:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, tuple | list):
        return tuple(map(_hashable, value))
    return tuple(value.items()) if isinstance(value, dict) else value


def uninstrumented() -> list[str]:
    """Modules that run only for inputs whose results are not cached: their coverage depends on earlier inputs."""
    files = (Path(trainyard.__file__).parent / "redact").glob("*.py")
    redactor = ["trainyard.redact", *(f"trainyard.redact.{path.stem}" for path in files)]
    return [*redactor, "trainyard.trace.readers.assemble"]


def install() -> None:
    """Puts each cached function into every module that has imported the function."""
    from trainyard import machine
    from trainyard.models import presets
    from trainyard.predict.configs import detect_format
    from trainyard.redact import text_secrets
    from trainyard.trace.readers import assemble
    from trainyard.trace.readers.gather import Gather

    Gather.events = cached_by(_gathering, Gather.events)
    for module, name, cached in (
        (tomllib, "loads", _Cached),
        (shlex, "split", _Cached),
        (typing, "get_type_hints", lru_cache),
        (machine, "known", lru_cache),
        (presets, "known", lru_cache),
        (text_secrets, "redact", lru_cache(_CAPACITY)),
        (detect_format, "kind", lru_cache(_CAPACITY)),
        (assemble, "assemble", lambda function: cached_by(_assembly, function)),
    ):
        function = getattr(module, name)
        replacement = cached(function)
        ours = [each for path, each in list(sys.modules.items()) if path.startswith("trainyard")]
        for user in (module, *ours):
            if vars(user).get(name) is function:
                setattr(user, name, replacement)
