"""torchtitan's models by name and flavor, where their sizes are those of a model known here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import msgspec

from trainyard.errors import BadFile, nearest
from trainyard.job import Model
from trainyard.models import presets
from trainyard.predict.inputs.vision_models import VisionModel


class Flavor(NamedTuple):
    """`preset`: the file in data/models. `refuses`: axes that torchtitan 0.2.2 does not lay this model out along
    (`models/*/infra/parallelize.py`, `models/*/__init__.py`)."""

    name: str
    flavor: str
    preset: str
    refuses: tuple[str, ...] = ()


_ALL = (
    Flavor("llama3", "8B", "llama3-8b"),
    Flavor("llama3", "70B", "llama3-70b"),
    Flavor("llama3", "405B", "llama3-405b"),
    Flavor("qwen3", "8B", "qwen3-8b", ("pp",)),  # it has no function that cuts it into stages
    Flavor("deepseek_v3", "671B", "deepseek-v3", ("cp",)),  # its attention is FlexAttention
)
_MASKED = {
    "_flex": "FlexAttention",
    "_varlen": "attention of varying lengths",
    "_flex_attn": "FlexAttention",
    "_varlen_attn": "attention of varying lengths",
}
"""Ends of a flavor that hide other documents of a sequence from attention."""


@cache
def _models() -> Mapping[str, Model]:
    """Without names."""
    return {one.preset: msgspec.convert({**(presets.load(one.preset).model or {}), "name": ""}, Model) for one in _ALL}


def of(model: Model | VisionModel) -> Flavor | None:
    """The flavor that has these sizes."""
    if not isinstance(model, Model):
        return None
    plain = msgspec.structs.replace(model, name="")
    return next((one for one in _ALL if _models()[one.preset] == plain), None)


def take(name: str, flavor: str, where: str) -> tuple[Model, str]:
    """The model, and what hides parts of a sequence from its attention. Raises `BadFile` for one that is not known."""
    ends = next((end for end in sorted(_MASKED, key=len, reverse=True) if flavor.endswith(end)), "")
    found = next((one for one in _ALL if (one.name, one.flavor) == (name, flavor.removesuffix(ends))), None)
    if found is None:
        known = nearest(f"{name} {flavor}", [f"{one.name} {one.flavor}" for one in _ALL])
        raise BadFile(
            f"{where}: [model] name = {name!r:.60}, flavor = {flavor!r:.60} is no model known here.",
            f"{known} Or say which: trainyard plan MODEL --check {where}",
        )
    model = msgspec.structs.replace(_models()[found.preset], name=found.preset)
    return model, _MASKED.get(ends, "")
