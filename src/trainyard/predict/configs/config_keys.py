"""Access to the keys of a framework's configuration. Every key that no reader requests is ignored, approximated or
refused, and reported.

A reader (`megatron_read.py`, `torchtitan_read.py`, `deepspeed_json.py`) requests keys from `ConfigKeys`, which records
each, and calls `finish` at the end, which applies the framework's `KeyRules` to the keys that were not requested.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from trainyard.errors import BadFile, most_similar, near
from trainyard.job import Job
from trainyard.model import Model
from trainyard.models.typed_keys import TypedKeys

LARGEST = 1 << 20
"""Largest size of a file in bytes."""
_LARGEST_NUMBER = 10**9
_DEEPEST = 8
"""Depth to which nested tables are flattened; a table below it is one value."""
_OFF = (None, False, 0, "", "none", "None", "disabled", [], {})
"""Values that switch a feature off: a key with one of them needs no rule."""
_MISSPELT = 0.85
"""Least similarity of an unknown key to the key that it misspells."""
Kind = TypeVar("Kind")


class CommandArguments(NamedTuple):
    """Values that a configuration may leave to the command line. `devices`: number of ranks. `model`: replaces the
    model of the file. `names_machine`: whether a machine is given, which no file but a job names."""

    devices: int | None = None
    seq_len: int | None = None
    model: Model | None = None
    names_machine: bool = False


class FrameworkConfig(NamedTuple):
    """A parsed configuration of another framework. `keeps`: bytes of a weight, its gradient and its optimizer state, if
    they differ from the framework's defaults. `unknown`: keys that are left out of the prediction. `approximated`:
    settings that the prediction replaces by another, each with the replacement. `notes`: sentences on settings that are
    predicted as they are. `columns`: columns of `Cases` (name -> value) that settings outside of the job add."""

    framework: str
    job: Job
    keeps: tuple[int, int, int] | None
    unknown: tuple[str, ...]
    approximated: tuple[str, ...]
    columns: Mapping[str, float] = {}
    notes: tuple[str, ...] = ()


class KeyRules(NamedTuple):
    """Patterns of `key` or `key=value` for the keys that no reader requests. `irrelevant`: no effect on the cost of a
    step. `approximated`: a small effect, reported and not modelled. `unsupported`: an effect that cannot be predicted,
    so the file is refused. The last two map to the reason. `similar`: keys of the framework that resemble a key of the
    reader without being a misspelling of it."""

    irrelevant: re.Pattern[str]
    approximated: Mapping[str, str]
    unsupported: Mapping[str, str]
    similar: frozenset[str] = frozenset()


def flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """Flattens nested tables into one, keyed by dotted path (`optimizer.params.lr`). An empty table is a value."""
    flattened: dict[str, Any] = {}
    pending = [("", document, 0)]  # (prefix of the keys, table, depth)
    while pending:
        path, table, depth = pending.pop()
        for key, value in table.items():
            if isinstance(value, dict) and value and depth < _DEEPEST:
                pending.append((f"{path}{key}.", value, depth + 1))
            else:
                flattened[f"{path}{key}"] = value
    return flattened


class ConfigKeys(TypedKeys):
    """The keys of a framework's configuration. `prefix`: text in front of each key in the file. `spelling`: the names
    of keys that are spelled differently in the file."""

    def __init__(
        self, values: Mapping[str, Any], where: str, prefix: str = "", spelling: Mapping[str, str] | None = None
    ) -> None:
        """`values`: flattened key -> value; `where`: the file, for messages; `prefix` and `spelling`: how messages
        write a key."""
        super().__init__(values, where)
        self._prefix = prefix
        self._spelling = spelling or {}
        self._unsupported: list[str] = []
        self._approximated: list[str] = []

    def invalid(self, key: str, expected: str) -> BadFile:
        if self.values.get(key) is None:
            return BadFile(f"{self.where}: {self.spell(key)} is missing.")
        return BadFile(f"{self.where}: {self.with_value(key)} is not {expected}.")

    def spell(self, key: str) -> str:
        return self._prefix + self._spelling.get(key, key)

    def with_value(self, key: str) -> str:
        """The key with its value, as spelled in the file."""
        value = self.values[key]
        if self._prefix:
            return self.spell(key) + ("" if value is True else f" {value!s:.60}")
        return f"{self.spell(key)} = {value!r:.60}"

    def number(self, key: str, default: float) -> float:
        """The finite number at `key`; `default` if it is missing. Raises `BadFile` for other values."""
        value = self.get(key)
        if value is None:
            return default
        if type(value) not in (int, float) or not abs(value) <= _LARGEST_NUMBER:
            raise self.invalid(key, f"a number from -{_LARGEST_NUMBER:,} to {_LARGEST_NUMBER:,}")
        return float(value)

    def choice(self, key: str, known: Mapping[str, Kind], default: Kind) -> Kind:
        """The value of `known` (text in the file -> value here) that the text at `key` selects; `default` if it is
        missing. Raises `BadFile` for other texts."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or value not in known:
            hint = near(value, known) if isinstance(value, str) else ""
            raise BadFile(f"{self.where}: {self.with_value(key)} is not known.", hint or f"Known: {', '.join(known)}.")
        return known[value]

    def refuse(self, key: str, reason: str) -> None:
        """Records that the cost of `key` cannot be predicted; `finish` raises one error for all of them."""
        self.requested.add(key)
        self._unsupported.append(f"{self.with_value(key) if key in self.values else self.spell(key)} ({reason})")

    def approximate(self, key: str, reason: str) -> None:
        """Records that the setting `key` is predicted as another one; `finish` returns the records."""
        self.requested.add(key)
        setting = self.with_value(key) if key in self.values else f"no {self.spell(key)}"
        self._approximated.append(f"{setting}: {reason}")

    def finish(self, rules: KeyRules) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Applies `rules` to the keys that were not requested. Returns (unknown keys as spelled in the file,
        approximated settings with the replacement of each). Raises one `BadFile` that lists all refused keys, and one
        for a misspelt key, whose setting would have no effect."""
        unknown: list[str] = []
        for key, value in self.values.items():
            if key in self.requested or value in _OFF:
                continue
            if reason := _rule(rules.unsupported, key, value):
                self.refuse(key, reason)
            elif reason := _rule(rules.approximated, key, value):
                self.approximate(key, reason)
            elif not rules.irrelevant.fullmatch(key):
                unknown.append(key)
        for key in unknown:
            if key not in rules.similar and (known := self._misspells(key)):
                raise BadFile(
                    f"{self.where}: {self.with_value(key)} is not a known setting, and would have no effect.",
                    f"Did you mean {self.spell(known)}?",
                )
        if self._unsupported:
            raise BadFile(
                f"{self.where}: the cost of these settings cannot be predicted: {'; '.join(self._unsupported)}.",
                "Remove them to plan for the rest.",
            )
        return tuple(map(self.spell, unknown)), tuple(self._approximated)

    def _misspells(self, key: str) -> str:
        """The requested key that `key` resembles most, if the file lacks it; else empty. Keys of another table count if
        their name consists of several words."""
        table, _, name = key.rpartition(".")
        candidates: dict[str, str] = {}
        for known in sorted(self.requested):
            known_table, _, known_name = known.rpartition(".")
            if known_table == table or "_" in known_name:
                candidates[known_name] = known
        known = candidates.get(most_similar(name, candidates, _MISSPELT), "")
        return "" if known in self.values else known


def _rule(rules: Mapping[str, str], key: str, value: object) -> str:
    """The reason of the first rule whose pattern matches `key` or `key=value`; empty if none does."""
    texts = (key, f"{key}={value:.60}") if isinstance(value, str) else (key,)
    return next((reason for pattern, reason in rules.items() if any(re.fullmatch(pattern, text) for text in texts)), "")
