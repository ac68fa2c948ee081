"""Ranks on unlike devices: their models, and whether the files show that they belong to one job."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainyard.errors import BadInput
from trainyard.events import Events
from trainyard.units import listed

_NOT_THE_MODEL = re.compile(r"\b(NVIDIA|AMD|Intel(\(R\))?|Tesla|Corporation|\d+ ?Gi?B)\b|[-, ]+\Z", re.IGNORECASE)
_SEPARATORS = re.compile(r"[\s_-]+")


def device_model(name: str) -> str:
    """The device's model: its name without the vendor and the memory size; empty if the name is unknown.
    `NVIDIA A100-SXM4-40GB` and `A100-SXM4-80GB` are the same model, `Tesla V100-SXM2-16GB` is another."""
    return _SEPARATORS.sub(" ", _NOT_THE_MODEL.sub("", name)).strip()


def ranks_by_model(facts: Sequence[Events]) -> dict[str, list[int]]:
    """Device model -> its ranks, most ranks first, of ranks on unlike devices; empty if there is one model only. Ranks
    whose device is not named are left out."""
    by_model: dict[str, list[int]] = {}
    for events in facts:
        if model := device_model(events.device):
            by_model.setdefault(model, []).append(events.rank)
    ordered = sorted(by_model.items(), key=lambda item: (-len(item[1]), item[1][0]))
    return dict(ordered) if len(by_model) > 1 else {}


def refuse_unrelated_devices(facts: Sequence[Events], next_step: str) -> None:
    """Raises `BadInput` if files are of unlike devices and do not state that they are of one job. Ranks from one file
    are related."""
    stated = all(events.rank >= 0 and events.world for events in facts)
    sources = {events.source.rpartition(":")[0] or events.source for events in facts}
    models = {device_model(events.device): events.source for events in facts if device_model(events.device)}
    if len(models) < 2 or stated or len(sources) < 2:
        return
    on = listed([f"{source} is of a {model}" for model, source in sorted(models.items())], 3)
    raise BadInput(f"{on}, and not every file states its rank and the job's world size.", next_step)
