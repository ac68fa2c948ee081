"""Values of layout axes that the user fixes: the texts of `--fix`, such as `tp=8`."""

from __future__ import annotations

from collections.abc import Iterable

from trainyard import limits, renamed_keys
from trainyard.errors import BadInput, UnknownName, nearest
from trainyard.predict.inputs.cases import ACTIVATION_CHECKPOINTS
from trainyard.predict.inputs.layout_space import AXES
from trainyard.predict.pipeline import schedules
from trainyard.units import is_whole_number

_AXIS_BOUNDS = {"zero": (1, 3), "activation_checkpoint": (0, 2), "offload": (0, 1)}
"""Least and largest value of the axes that do not count ranks or samples."""


def read_fixed(texts: Iterable[str]) -> dict[str, int | str]:
    """Axis -> value of each text, `dtype` among them. Raises as `parse_fix`, and `BadInput` for an axis with two
    values."""
    fixed: dict[str, int | str] = {}
    for axis, value in map(parse_fix, texts):
        if fixed.setdefault(axis, value) != value:
            raise BadInput(f"--fix {axis}: it is {fixed[axis]} and {value}.", "Pass each axis once.")
    return fixed


def parse_fix(text: str) -> tuple[str, int | str]:
    """Axis and value of one `--fix`: `tp=8`, `dtype=float8`; names of modes (`schedule=zbv`) become their index. Raises
    `UnknownName` for an unknown axis or schedule, `BadInput` for a value out of bounds."""
    axis, equals, value = (part.strip() for part in text.partition("="))
    axis = axis.lower() if axis.lower() in (*AXES, "dtype") else axis
    if not (equals and value):
        raise BadInput(f"--fix {text:.60} has no value.", f"Pass an axis with its value, as --fix {axis or 'tp'}=8.")
    if axis == "dtype":
        return axis, value
    if axis not in AXES:
        current_name = renamed_keys.new_key("recipe", axis)
        raise UnknownName(
            f"--fix {text}: there is no axis {axis!r}.",
            f"Use {current_name}." if current_name in AXES else nearest(axis, (*AXES, "dtype")),
        )
    if axis == "activation_checkpoint" and value in ACTIVATION_CHECKPOINTS:
        return axis, ACTIVATION_CHECKPOINTS.index(value)
    if axis == "schedule":
        if value not in schedules.SCHEDULES:
            raise UnknownName(f"--fix {text}: there is no schedule {value!r}.", nearest(value, schedules.SCHEDULES))
        return axis, schedules.SCHEDULES.index(value)
    least, most = _AXIS_BOUNDS.get(axis, (1, limits.DEVICES.most))
    if is_whole_number(value) and least <= int(value) <= most:
        return axis, int(value)
    if axis == "activation_checkpoint":
        raise UnknownName(
            f"--fix {text:.60}: there is no activation checkpointing {value!r:.60}.",
            nearest(value, ACTIVATION_CHECKPOINTS),
        )
    step = (
        "Layouts whose replicas are not sharded: --fix dp_shard=1."
        if axis == "zero"
        else "Correct it, or leave it out to search all values."
    )
    raise BadInput(f"--fix {text:.60}: {value!r:.60} is not a whole number from {least} to {most:,}.", step)
