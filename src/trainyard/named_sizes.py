"""Finds the known name that a typed one stands for, and the nearest known names of an unknown one.

Case, separators and a vendor's prefix do not matter: `meta-llama/Llama-3.1-8B` and `llama3.1_8b` are one name. A name
has a family and, often, a size in parameters (`70b`); a suggestion is near in both, since the names of models of 7b and
70b differ by one letter.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from math import log
from typing import NamedTuple

from trainyard.errors import near

_SEPARATORS = re.compile(r"[\s_./:-]+")
_WORDS = re.compile(r"[\s_:-]+")
_SIZE = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([mbt])(?![a-z0-9])|(?<=[a-z])(\d+(?:\.\d+)?)([mbt])$")
_MISSPELT_SIZE = re.compile(r"(?<=\d)([mbt])\1+$|(?<=\d[x-])(\d+(?:\.\d+)?)$")
"""A size at the end of a name with its unit twice, as in 8bb, or without it: after the number of experts or a version.
"""
_ACTIVE = re.compile(r"(?<![a-z0-9])a\d+(\.\d+)?[mb](?![a-z0-9])")
"""The size of the active parameters, as in qwen3-30b-a3b, in names of mixtures of experts."""
_UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}
_NEAR_FAMILY, _NEAR_SIZE = 0.7, 3.0
"""Least similarity of two families, and most ratio of two sizes, of which one is suggested for the other."""


class NamedSize(NamedTuple):
    """A name's family, without separators, and its size in parameters; 0 if it has none."""

    family: str
    size: float


def canonical(name: str) -> str:
    """The name in lower case without separators."""
    return _SEPARATORS.sub("", name.strip().lower())


def resolve(
    name: str,
    known_names: Iterable[str],
    aliases: Mapping[str, str],
    ignored: Collection[str] = (),
    owners: Collection[str] = (),
) -> str:
    """The known name that `name` stands for; empty if there is none. `aliases`: other spelling -> known name;
    `ignored`: words of a name that do not change what it stands for; `owners`: prefixes before a slash."""
    owner, slash, text = name.strip().lower().rpartition("/")
    if slash and owner not in owners:
        return ""
    by_spelling = {canonical(alias): known for alias, known in aliases.items()}
    by_spelling |= {canonical(known): known for known in known_names}
    shortened = "-".join(word for word in _WORDS.split(text) if word not in ignored)
    return by_spelling.get(canonical(text)) or by_spelling.get(canonical(shortened)) or ""


def parse(name: str) -> NamedSize:
    """The family and the size of a name: llama-2-70b is a llama2 with 70e9 parameters, mixtral-8x7b has 56e9."""
    text = name.strip().lower().rpartition("/")[2]
    match = _SIZE.search(text.replace("_", "-"))
    if match is None:
        return NamedSize(canonical(text), 0.0)
    number, unit = match[2] or match[4], match[3] or match[5]
    return NamedSize(canonical(text[: match.start()]), int(match[1] or 1) * float(number) * _UNITS[unit])


def _complete_size(name: str) -> str:
    """The name with one unit in the size at its end, billions if it has none."""
    text = name.strip().lower().replace("_", "-")
    return _MISSPELT_SIZE.sub(lambda match: match[1] or f"{match[2]}b", text)


def is_path(name: str) -> bool:
    """Whether a name that is not known was meant as a path, by its beginning or its suffix."""
    return name.startswith((".", "/", "~")) or name.endswith((".toml", ".json", ".yaml", ".yml"))


def _version(family: str) -> str:
    """The first number in the name of a family, such as 2 in gpt2: models of other versions differ."""
    match = re.search(r"\d+", family)
    return match[0] if match else ""


def _list(known_names: Sequence[str]) -> str:
    return f"Known: {', '.join(known_names)}." if known_names else "None is known."


def suggest(name: str, known_names: Iterable[str]) -> str:
    """The next step for an unknown name: the known name that is near in family, version and size, or the known ones of
    the family, or all of them."""
    known_names, wanted = sorted(known_names), parse(name)
    if not wanted.size and (completed := _complete_size(name)) != name.strip().lower():
        suggestion = suggest(completed, known_names)
        if suggestion.startswith("Did you mean"):
            return suggestion
    if not wanted.size:
        version = _version(wanted.family)
        same_version = [known for known in known_names if version in ("", _version(parse(known).family))]
        return near(name, same_version) or _list(known_names)
    sizes = {known: parse(known) for known in known_names}
    similarity = {known: SequenceMatcher(None, wanted.family, size.family).ratio() for known, size in sizes.items()}
    family = [known for known in known_names if sizes[known].size and similarity[known] >= _NEAR_FAMILY]
    if not family:
        return _list(known_names)
    distances = {known: abs(log(sizes[known].size / wanted.size)) for known in family}
    is_sparse = bool(_ACTIVE.search(name.lower()))
    same_kind = [known for known in family if bool(_ACTIVE.search(known)) == is_sparse]
    best = min(same_kind, key=lambda known: (round(1 - similarity[known], 1), distances[known]), default="")
    if best and distances[best] <= log(_NEAR_SIZE):
        return f"Did you mean {best!r}?"
    return near(name, [known for known in same_kind if distances[known] <= log(_NEAR_SIZE)]) or (
        f"Known of a similar name: {', '.join(family)}."
    )
