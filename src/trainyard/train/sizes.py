"""Converts the table `[sizes]` of a job, the dimensions of a model that is not a decoder, to the struct of its
workload (such as `Vit`), and checks the struct's fields. Needs no torch."""

from __future__ import annotations

import re
from typing import Any, TypeVar, get_type_hints

import msgspec

from trainyard.errors import BadJob, nearest
from trainyard.job import Job
from trainyard.job_file import refusal

SizesT = TypeVar("SizesT", bound=msgspec.Struct)
"""Frozen, refusing unknown fields; its `__post_init__` raises `BadJob` and names the key as `$.sizes.key`."""

_LOCATION = re.compile(r" - at `\$\.?(?P<key>[^`]*)`\Z")
_FIELD = re.compile(r"field `(?P<key>[^`]*)`")


def convert(job: Job, *sizes_types: type[SizesT]) -> SizesT:
    """Converts `job.sizes` to a struct of one of `sizes_types`.

    If there are several types, each has a tag (such as `vit`), and the tag field in `job.sizes` (such as `family`)
    selects the type; a single type needs no tag. Raises `BadJob` with the key and the nearest known one.
    """
    sizes: dict[str, Any] = dict(job.sizes)
    tags = {str(sizes_type.__struct_config__.tag): sizes_type for sizes_type in sizes_types}
    field = sizes_types[0].__struct_config__.tag_field  # None without tags
    if not sizes:
        expected = f" with {field} = {' or '.join(repr(tag) for tag in tags)}" if field else ""
        raise BadJob(f"workload = {job.workload!r} needs $.sizes, but the job has none.", f"Add [sizes]{expected}.")
    sizes_type = sizes_types[0]
    if field:
        if (tag := sizes.pop(field, None)) not in tags:
            problem = "is missing" if tag is None else f"= {tag!r} is not known"
            raise BadJob(f"{field} {problem} at $.sizes.{field}.", nearest(str(tag), tags))
        sizes_type = tags[str(tag)]
        sizes[field] = tag
    try:
        return msgspec.convert(sizes, sizes_type)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, BadJob):
            raise error.__cause__ from error
        raise _bad_sizes(str(error), sizes_type) from error


def _bad_sizes(message: str, sizes_type: type[msgspec.Struct]) -> BadJob:
    """Translates an error of msgspec to the job's terms: the key, and the nearest known one."""
    location, field_name = _LOCATION.search(message), _FIELD.search(message)
    if "unknown field" in message and field_name:
        return BadJob(
            f"unknown key {field_name[1]!r} at $.sizes.{field_name[1]}.",
            nearest(field_name[1], sizes_type.__struct_fields__),
        )
    if "missing required field" in message and field_name:
        return BadJob(f"{field_name[1]} is missing at $.sizes.{field_name[1]}.", "Add it.")
    if location is None:
        return BadJob(f"{message.rstrip('.')} at $.sizes.")
    problem, hint = refusal(message[: location.start()], get_type_hints(sizes_type).get(location["key"]))
    return BadJob(f"{problem} at $.sizes.{location['key']}.", hint)


def require_at_least(sizes: msgspec.Struct, least: int, *fields: str) -> None:
    """Raises `BadJob` if a field, or an item of a list field, is less than `least`."""
    for field in fields:
        value = getattr(sizes, field)
        if min(value if isinstance(value, list | tuple) else [value], default=least) < least:
            raise BadJob(f"{field} = {value} must be at least {least} at $.sizes.{field}.")


def require_divisible(sizes: msgspec.Struct, field: str, divisor_field: str, reason: str) -> None:
    """Raises `BadJob` with the arithmetic and `reason` if the value of `divisor_field` does not divide that of
    `field`."""
    value, divisor = getattr(sizes, field), getattr(sizes, divisor_field)
    if value % divisor:
        raise BadJob(
            f"{field} {value} % {divisor_field} {divisor} = {value % divisor} at $.sizes.{field}, but {reason}.",
            f"Use {max(1, round(value / divisor)) * divisor}.",
        )
