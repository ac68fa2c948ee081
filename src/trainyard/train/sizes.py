"""Converts `[sizes]` of a job to the struct of its workload. Needs no torch."""

from __future__ import annotations

import re
from typing import Any, TypeVar, get_type_hints

import msgspec

from trainyard.errors import BadJob, nearest
from trainyard.job import Job
from trainyard.job_file import refusal

Kind = TypeVar("Kind", bound=msgspec.Struct)
"""Frozen, refusing unknown fields; its `__post_init__` raises `BadJob` and names the key as `$.sizes.key`."""

_LOCATION = re.compile(r" - at `\$\.?(?P<key>[^`]*)`\Z")
_FIELD = re.compile(r"field `(?P<key>[^`]*)`")


def convert(job: Job, *kinds: type[Kind]) -> Kind:
    """Converts `job.sizes` to the one of `kinds` that its tag selects; a single kind needs no tag.

    Raises `BadJob` with the key and the nearest known one.
    """
    sizes: dict[str, Any] = dict(job.sizes)
    tags = {str(kind.__struct_config__.tag): kind for kind in kinds}
    field = kinds[0].__struct_config__.tag_field
    if not sizes:
        expected = f" with {field} = {' or '.join(repr(tag) for tag in tags)}" if field else ""
        raise BadJob(f"workload = {job.workload!r} needs $.sizes, but the job has none.", f"Add [sizes]{expected}.")
    kind = kinds[0]
    if field:
        if (tag := sizes.pop(field, None)) not in tags:
            problem = "is missing" if tag is None else f"= {tag!r} is not known"
            raise BadJob(f"{field} {problem} at $.sizes.{field}.", nearest(str(tag), tags))
        kind = tags[str(tag)]
        sizes[field] = tag
    try:
        return msgspec.convert(sizes, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, BadJob):
            raise error.__cause__ from error
        raise _refusal(str(error), kind) from error


def _refusal(message: str, kind: type[msgspec.Struct]) -> BadJob:
    """Translates an error of msgspec to the job's terms: the key, and the nearest known one."""
    location, key = _LOCATION.search(message), _FIELD.search(message)
    if "unknown field" in message and key:
        return BadJob(f"unknown key {key[1]!r} at $.sizes.{key[1]}.", nearest(key[1], kind.__struct_fields__))
    if "missing required field" in message and key:
        return BadJob(f"{key[1]} is missing at $.sizes.{key[1]}.", "Add it.")
    if location is None:
        return BadJob(f"{message.rstrip('.')} at $.sizes.")
    problem, hint = refusal(message[: location.start()], get_type_hints(kind).get(location["key"]))
    return BadJob(f"{problem} at $.sizes.{location['key']}.", hint)


def at_least(sizes: msgspec.Struct, least: int, *fields: str) -> None:
    """Raises `BadJob` if a field, or an item of a list field, is less than `least`."""
    for field in fields:
        value = getattr(sizes, field)
        if min(value if isinstance(value, list | tuple) else [value], default=least) < least:
            raise BadJob(f"{field} = {value} must be at least {least} at $.sizes.{field}.")


def divides(sizes: msgspec.Struct, field: str, by: str, reason: str) -> None:
    """Raises `BadJob` with the arithmetic if `by` does not divide `field`."""
    value, divisor = getattr(sizes, field), getattr(sizes, by)
    if value % divisor:
        raise BadJob(
            f"{field} {value} % {by} {divisor} = {value % divisor} at $.sizes.{field}, but {reason}.",
            f"Use {max(1, round(value / divisor)) * divisor}.",
        )
