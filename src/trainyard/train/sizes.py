"""`[sizes]` of a job, as its workload's own struct. No torch here."""

from __future__ import annotations

import re
from typing import Any, TypeVar, get_type_hints

import msgspec

from trainyard.errors import BadJob, nearest
from trainyard.job import Job
from trainyard.job_file import refusal

Kind = TypeVar("Kind", bound=msgspec.Struct)
"""Frozen, refusing unknown fields; its `__post_init__` raises `BadJob` and names the key as `$.sizes.key`."""

_PLACE = re.compile(r" - at `\$\.?(?P<key>[^`]*)`\Z")
_FIELD = re.compile(r"field `(?P<key>[^`]*)`")


def convert(job: Job, *kinds: type[Kind]) -> Kind:
    """`job.sizes` as the one of `kinds` whose tag (the struct's own `tag` and `tag_field`) they name; of one kind
    without a tag, as that. Raises `BadJob` that names the key and the nearest known one."""
    sizes: dict[str, Any] = dict(job.sizes)
    tags = {str(kind.__struct_config__.tag): kind for kind in kinds}
    field = kinds[0].__struct_config__.tag_field
    if not sizes:
        said = f" with {field} = {' or '.join(repr(tag) for tag in tags)}" if field else ""
        raise BadJob(
            f"workload = {job.workload!r} has sizes of its own, but there is no $.sizes.", f"Add [sizes]{said}."
        )
    kind = kinds[0]
    if field:
        if (named := sizes.pop(field, None)) not in tags:
            said = "is missing" if named is None else f"= {named!r} is not known"
            raise BadJob(f"{field} {said} at $.sizes.{field}.", nearest(str(named), tags))
        kind = tags[str(named)]
        sizes[field] = named
    try:
        return msgspec.convert(sizes, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, BadJob):
            raise error.__cause__ from error
        raise _refusal(str(error), kind) from error


def _refusal(says: str, kind: type[msgspec.Struct]) -> BadJob:
    """msgspec's words, in the job's: the key, and the nearest one where it is unknown."""
    place, key = _PLACE.search(says), _FIELD.search(says)
    if "unknown field" in says and key:
        return BadJob(f"unknown key {key[1]!r} at $.sizes.{key[1]}.", nearest(key[1], kind.__struct_fields__))
    if "missing required field" in says and key:
        return BadJob(f"{key[1]} is missing at $.sizes.{key[1]}.", "Add it.")
    if place is None:
        return BadJob(f"{says.rstrip('.')} at $.sizes.")
    said, hint = refusal(says[: place.start()], get_type_hints(kind).get(place["key"]))
    return BadJob(f"{said} at $.sizes.{place['key']}.", hint)


def at_least(sizes: msgspec.Struct, least: int, *fields: str) -> None:
    """Raises `BadJob` where a field, or an item of a list, is less."""
    for field in fields:
        value = getattr(sizes, field)
        if min(value if isinstance(value, list | tuple) else [value], default=least) < least:
            raise BadJob(f"{field} = {value} must be at least {least} at $.sizes.{field}.")


def divides(sizes: msgspec.Struct, field: str, by: str, why: str) -> None:
    """Raises `BadJob` with the arithmetic where `by` does not divide `field`."""
    whole, part = getattr(sizes, field), getattr(sizes, by)
    if whole % part:
        raise BadJob(
            f"{field} {whole} % {by} {part} = {whole % part} at $.sizes.{field}, but {why}.",
            f"Use {max(1, round(whole / part)) * part}.",
        )
