"""torchtitan's models by name and flavor, for those with the sizes of a bundled model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import msgspec

from trainyard.errors import BadFile, nearest
from trainyard.model import Model
from trainyard.models import presets
from trainyard.predict.inputs.vision_models import VisionModel


class Flavor(NamedTuple):
    """A torchtitan model. `preset`: the file in data/models. `refuses`: parallelism axes that torchtitan 0.2.2 does not
    support for it (`models/*/infra/parallelize.py`, `models/*/__init__.py`)."""

    name: str
    flavor: str
    preset: str
    refuses: tuple[str, ...] = ()


FLAVORS = (
    Flavor("llama3", "8B", "llama3-8b"),
    Flavor("llama3", "70B", "llama3-70b"),
    Flavor("llama3", "405B", "llama3-405b"),
    Flavor("qwen3", "8B", "qwen3-8b", ("pp",)),  # no function splits it into stages
    Flavor("deepseek_v3", "671B", "deepseek-v3", ("cp",)),  # its attention is FlexAttention
)
_MASKED_ATTENTION = {
    "_flex": "FlexAttention",
    "_varlen": "attention of varying lengths",
    "_flex_attn": "FlexAttention",
    "_varlen_attn": "attention of varying lengths",
}
"""Suffixes of flavors whose attention is masked by document."""


@cache
def _models() -> Mapping[str, Model]:
    """Preset -> its model with an empty name."""
    sizes = {flavor.preset: presets.load(flavor.preset).model or {} for flavor in FLAVORS}
    return {preset: msgspec.convert({**keys, "name": ""}, Model) for preset, keys in sizes.items()}


def find(model: Model | VisionModel) -> Flavor | None:
    """The flavor with the sizes of `model`; None if there is none."""
    if not isinstance(model, Model):
        return None
    plain = msgspec.structs.replace(model, name="")
    return next((flavor for flavor in FLAVORS if _models()[flavor.preset] == plain), None)


def load(name: str, flavor: str, where: str) -> tuple[Model, str]:
    """(model of a flavor, name of its masked attention; empty for causal attention). `name`, `flavor`: as in the file,
    such as llama3 and 8B, with a suffix such as `_flex` for masked attention. `where`: the name of the file in
    messages. Raises `BadFile` for an unknown flavor."""
    longest_first = sorted(_MASKED_ATTENTION, key=len, reverse=True)
    suffix = next((ending for ending in longest_first if flavor.endswith(ending)), "")
    plain_flavor = flavor.removesuffix(suffix)
    match = next((known for known in FLAVORS if (known.name, known.flavor) == (name, plain_flavor)), None)
    if match is None:
        hint = nearest(f"{name} {flavor}", [f"{known.name} {known.flavor}" for known in FLAVORS])
        raise BadFile(
            f"{where}: [model] name = {name!r:.60}, flavor = {flavor!r:.60} is not a known model.",
            f"{hint} Or pass the model: trainyard plan check {where} --model MODEL",
        )
    model = msgspec.structs.replace(_models()[match.preset], name=match.preset)
    return model, _MASKED_ATTENTION.get(suffix, "")
