"""A table of keys that is read value by value, with a type for each, and that knows which keys were read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from trainyard import limits
from trainyard.errors import BadFile


class TypedKeys(ABC):
    """`said`: the values by key. `where`: the file that they are in."""

    def __init__(self, said: Mapping[str, Any], where: str) -> None:
        self.said = said
        self.where = where
        self.asked: set[str] = set()

    @abstractmethod
    def wrong(self, key: str, expected: str) -> BadFile:
        """The error for a value that is missing or not `expected`."""

    def get(self, key: str) -> Any:
        """The value; None for a key that is null or missing."""
        self.asked.add(key)
        return self.said.get(key)

    def whole(self, key: str, default: int | None = None, least: int = 1, most: int | None = None) -> int:
        """`most`: by default the limit of the quantity that the key gives."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        most = limits.of_key(key).most if most is None else most
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(key, f"a whole number from {least} to {most:,}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.wrong(key, "true or false")
        return value
