"""A table of keys read with a type check per value, which records the keys that were read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from trainyard import limits
from trainyard.errors import BadFile


class TypedKeys(ABC):
    """`values`: the values by key. `where`: the name of their file. `requested`: the keys read so far."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where
        self.requested: set[str] = set()

    @abstractmethod
    def invalid(self, key: str, expected: str) -> BadFile:
        """The error for a value that is missing or not `expected`."""

    def get(self, key: str) -> Any:
        """The value; None for a key that is null or missing."""
        self.requested.add(key)
        return self.values.get(key)

    def integer(self, key: str, default: int | None = None, least: int = 1, most: int | None = None) -> int:
        """A whole number from `least` to `most`, by default the limit of the key's quantity; `default` if the key is
        absent or null. Raises the error of `invalid` for another value."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        most = limits.of_key(key).most if most is None else most
        if type(value) is not int or not least <= value <= most:
            raise self.invalid(key, f"a whole number from {least} to {most:,}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """A Boolean; `default` if the key is absent or null. Raises the error of `invalid` for another value."""
        value = self.get(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.invalid(key, "true or false")
        return value
