"""Ranks on unlike devices: their models, and whether the files show that they belong to one job.

`facts` are the ranks' events, of which only the metadata are used (`Events.device`, `rank`, `world`, `source`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainyard.errors import BadInput
from trainyard.events import Events
from trainyard.units import listed

# Vendors, memory sizes, and separators left at the end.
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


def refuse_unstated_job(facts: Sequence[Events], next_step: str) -> None:
    """Raises `BadInput` if files are of unlike devices and do not state that they are of one job."""
    stated = all(events.rank >= 0 and events.world for events in facts)
    if not stated and (models := _describe_unlike_files(facts)):
        raise BadInput(f"{models}, and not every file states its rank and the job's world size.", next_step)


def refuse_separate_recordings(
    facts: Sequence[Events], windows: Sequence[tuple[int, int]], is_aligned: bool, next_step: str
) -> None:
    """Raises `BadInput` if files are of unlike devices and were not recorded together: no collective was matched
    (`is_aligned`), and their `windows`, (start, stop) in ns by their own clocks, do not overlap."""
    overlap = max(start for start, _ in windows) < min(stop for _, stop in windows)
    if not is_aligned and not overlap and (models := _describe_unlike_files(facts)):
        raise BadInput(
            f"{models}; the recordings do not overlap and no collective matches, so that they are not of one job.",
            next_step,
        )


def _describe_unlike_files(facts: Sequence[Events]) -> str:
    """`a.json ran on V100, b.json ran on A100`; empty for devices of one model, and for ranks from one file."""
    # A source is the file's name, followed by a colon and the device or rank if the file has several.
    files = {events.source.rpartition(":")[0] or events.source for events in facts}
    source_of_model = {device_model(events.device): events.source for events in facts if device_model(events.device)}
    if len(source_of_model) < 2 or len(files) < 2:
        return ""
    return listed([f"{source} ran on {model}" for model, source in sorted(source_of_model.items())], 3)
