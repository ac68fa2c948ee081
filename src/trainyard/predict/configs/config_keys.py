"""A configuration's keys: which were asked for, and what becomes of the others. None is dropped in silence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from trainyard.errors import BadFile, near
from trainyard.job import Job, Model
from trainyard.models.typed_keys import TypedKeys

LARGEST = 1 << 20
"""Bytes a file may have."""
_LARGEST_NUMBER = 10**9
_DEEPEST = 8
"""Tables in tables that are told apart; what lies deeper is one value."""
_OFF = (None, False, 0, "", "none", "None", "disabled", [], {})
Kind = TypeVar("Kind")


class CommandArguments(NamedTuple):
    """What a configuration may leave to the command that starts it: `devices` are ranks; `model` is trained instead of
    the file's own."""

    devices: int | None = None
    seq_len: int | None = None
    model: Model | None = None


class FrameworkConfig(NamedTuple):
    """Somebody's configuration. `keeps`: bytes of a weight, its gradient and its state, where they are not the usual.
    `passed`: keys that nothing here does something with. `otherwise`: what it says that is predicted otherwise."""

    framework: str
    job: Job
    keeps: tuple[int, int, int] | None
    passed: tuple[str, ...]
    otherwise: tuple[str, ...]


class KeyRules(NamedTuple):
    """Of keys that no reader asks for, as patterns of `key` or `key=value`. `nothing`: they say nothing of what a step
    costs. `otherwise`: they change it a little, and are told; `refused`: they change it, and nothing here can say how.
    Both with the reason."""

    nothing: re.Pattern[str]
    otherwise: Mapping[str, str]
    refused: Mapping[str, str]


def flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """Tables in tables as one, by dotted path."""
    found: dict[str, Any] = {}
    waiting = [("", document, 0)]
    while waiting:
        path, table, depth = waiting.pop()
        for key, value in table.items():
            if isinstance(value, dict) and value and depth < _DEEPEST:
                waiting.append((f"{path}{key}.", value, depth + 1))
            else:
                found[f"{path}{key}"] = value
    return found


class ConfigKeys(TypedKeys):
    """The keys of a framework's configuration. `before`: the text in front of a key in the file. `written`: the names
    of keys whose spelling in the file differs."""

    def __init__(
        self, said: Mapping[str, Any], where: str, before: str = "", written: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(said, where)
        self._before = before
        self._written = written or {}
        self._refused: list[str] = []
        self._otherwise: list[str] = []

    def wrong(self, key: str, expected: str) -> BadFile:
        if self.said.get(key) is None:
            return BadFile(f"{self.where}: {self.show(key)} is missing.")
        return BadFile(f"{self.where}: {self.shown(key)} is not {expected}.")

    def show(self, key: str) -> str:
        return self._before + self._written.get(key, key)

    def shown(self, key: str) -> str:
        """With its value, as it is written."""
        value = self.said[key]
        if self._before:
            return self.show(key) + ("" if value is True else f" {value!s:.60}")
        return f"{self.show(key)} = {value!r:.60}"

    def number(self, key: str, default: float) -> float:
        value = self.get(key)
        if value is None:
            return default
        if type(value) not in (int, float) or not abs(value) <= _LARGEST_NUMBER:
            raise self.wrong(key, f"a number from -{_LARGEST_NUMBER:,} to {_LARGEST_NUMBER:,}")
        return float(value)

    def choice(self, key: str, known: Mapping[str, Kind], default: Kind) -> Kind:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or value not in known:
            hint = near(value, known) if isinstance(value, str) else ""
            raise BadFile(f"{self.where}: {self.shown(key)} is not known.", hint or f"Known: {', '.join(known)}.")
        return known[value]

    def refuse(self, key: str, reason: str) -> None:
        self.asked.add(key)
        self._refused.append(f"{self.shown(key) if key in self.said else self.show(key)} ({reason})")

    def otherwise(self, key: str, reason: str) -> None:
        self.asked.add(key)
        self._otherwise.append(f"{self.shown(key) if key in self.said else f'no {self.show(key)}'}: {reason}")

    def done(self, rules: KeyRules) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Keys passed over, and what is predicted otherwise. Raises `BadFile` for all that is refused at once."""
        passed: list[str] = []
        for key, value in self.said.items():
            if key in self.asked or value in _OFF:
                continue
            if reason := _rule(rules.refused, key, value):
                self.refuse(key, reason)
            elif reason := _rule(rules.otherwise, key, value):
                self.otherwise(key, reason)
            elif not rules.nothing.fullmatch(key):
                passed.append(self.show(key))
        if self._refused:
            raise BadFile(
                f"{self.where}: what this costs cannot be said here: {'; '.join(self._refused)}.",
                "Without it the rest can be planned for.",
            )
        return tuple(passed), tuple(self._otherwise)


def _rule(rules: Mapping[str, str], key: str, value: object) -> str:
    texts = (key, f"{key}={value:.60}") if isinstance(value, str) else (key,)
    return next((reason for pattern, reason in rules.items() if any(re.fullmatch(pattern, text) for text in texts)), "")
