"""The differences between the configurations of two commands, and the commands between them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

import msgspec

from trainyard.errors import BadInput

_OPTION = re.compile(r"-[a-zA-Z]|--?[a-zA-Z][\w.-]*")

_Group = tuple[str, ...]
"""An option with its values, or a word that belongs to none."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A difference: words of the command, the value of an environment variable, a module or operation that is not
    swapped, or another part of a training. `a`, `b`: the words or the value on each side, None on a side without it.
    `number`: in the order of the command, variables last, or in that of execution."""

    number: int
    kind: Literal["interpreter", "option", "variable", "module", "operation", "part"]
    name: str
    a: tuple[str, ...] | None = None
    b: tuple[str, ...] | None = None


class Configuration(NamedTuple):
    command: tuple[str, ...]
    variables: Mapping[str, str | None]
    """Environment variables to set, or to remove."""


class Changes:
    """The differences between two commands, and between the values of environment variables."""

    def __init__(
        self, a: Sequence[str], b: Sequence[str], variables: Mapping[str, tuple[str | None, str | None]]
    ) -> None:
        """`variables`: the values in A and B by name, None for a variable that is not set. Raises `BadInput` if nothing
        differs."""
        self._slots = [*_align(a, b)]
        self._variables = {name: values for name, values in variables.items() if values[0] != values[1]}
        of_command = [change for change in self._slots if isinstance(change, Change)]
        of_variables = [
            Change(number=number, kind="variable", name=name, a=_or_none(values[0]), b=_or_none(values[1]))
            for number, (name, values) in enumerate(self._variables.items(), len(of_command))
        ]
        self.changes: tuple[Change, ...] = (*of_command, *of_variables)
        if not self.changes:
            raise BadInput(
                "the command is that of the record A, and no variable differs: there is nothing to bisect.",
                "Pass the command of B after --, or variables with --env NAME=A_VALUE:B_VALUE.",
            )

    def configuration(self, of_b: Collection[Change]) -> Configuration:
        """The command and variables that are those of B for some changes, and those of A for the others."""
        words: list[str] = []
        for slot in self._slots:
            words += (slot.b if slot in of_b else slot.a) or () if isinstance(slot, Change) else slot
        values = {
            change.name: self._variables[change.name][1 if change in of_b else 0]
            for change in self.changes
            if change.kind == "variable"
        }
        return Configuration(tuple(words), values)


def _or_none(value: str | None) -> tuple[str, ...] | None:
    return None if value is None else (value,)


def _align(a: Sequence[str], b: Sequence[str]) -> Iterator[_Group | Change]:
    """The words that both commands have, and the changes, in order."""
    groups_a, groups_b, count = _group(a), _group(b), 0
    for tag, a0, a1, b0, b1 in SequenceMatcher(None, groups_a, groups_b, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from groups_a[a0:a1]
        else:
            changes = list(_pair(groups_a[a0:a1], groups_b[b0:b1], count, is_first=a0 == 0))
            count += len(changes)
            yield from changes


def _group(words: Sequence[str]) -> list[_Group]:
    """The command divided into options with their values, and other words. The words before the first option stay
    apart."""
    groups: list[_Group] = []
    for word in words:
        is_value = bool(groups) and _OPTION.fullmatch(groups[-1][0].partition("=")[0]) and "=" not in groups[-1][0]
        if is_value and not _OPTION.fullmatch(word.partition("=")[0]):
            groups[-1] = (*groups[-1], word)
        else:
            groups.append((word,))
    return groups


def _pair(a: Sequence[_Group], b: Sequence[_Group], count: int, is_first: bool) -> Iterator[Change]:
    """Changes between groups that differ, numbered from `count`: options of the same name, and other words in order,
    belong together. `is_first`: the groups of A begin with the program."""
    left = list(b)
    pairs: list[tuple[_Group | None, _Group | None]] = []
    for group in a:
        other = next((each for each in left if _name(each) == _name(group)), None)
        if other is not None:
            left.remove(other)
        pairs.append((group, other))
    pairs += [(None, group) for group in left]
    for at, (of_a, of_b) in enumerate(pairs):
        shown = next(group for group in (of_a, of_b) if group is not None)
        yield Change(
            number=count + at,
            kind="interpreter" if is_first and at == 0 and of_a and not _name(of_a) else "option",
            name=_name(shown) or shown[0],
            a=of_a,
            b=of_b,
        )


def _name(group: _Group) -> str:
    """The name of an option; empty for another word."""
    name = group[0].partition("=")[0]
    return name if _OPTION.fullmatch(name) else ""
