"""Uneven pipeline stages in Megatron Core: `--pipeline-model-parallel-layout`, as parsed by
`megatron/core/transformer/pipeline_parallel_layer_layout.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainyard.errors import BadFile
from trainyard.predict.pipeline import partition

_LONGEST = 1 << 16
"""Characters of a layout after expanding its repetitions."""
_REPEATED = (re.compile(r"\(([^()]+)\)\*(\d{1,6})"), re.compile(r"(.)\*(\d{1,6})"))


def read(layout: str, layers: int, where: str) -> list[int]:
    """Layers of each stage, in the order of the pipeline. `layout`: such as `Et*3|(tt|)*4L`, with E the embedding, t a
    layer, L the loss, `|` between stages and `*` for repetition. `where`: the name of the file in messages. Raises
    `BadFile` if `layout` is malformed or does not have `layers` layers."""
    text = layout.replace(",", "")
    for pattern in _REPEATED:
        if len(text) + sum(len(repeat[1]) * int(repeat[2]) for repeat in pattern.finditer(text)) > _LONGEST:
            raise BadFile(
                f"{where}: --pipeline-model-parallel-layout {layout!r:.60} expands to more than "
                f"{_LONGEST:,} characters."
            )
        text = pattern.sub(lambda match: match[1] * int(match[2]), text)
    if not re.fullmatch(r"E[t|]*L", text):
        raise BadFile(
            f"{where}: --pipeline-model-parallel-layout {layout!r:.60} is not of the form E, t and |, L "
            "(embedding, layers and stage boundaries, loss)."
        )
    if text.count("t") != layers:
        raise BadFile(f"{where}: --pipeline-model-parallel-layout has {text.count('t')} layers, not {layers}.")
    return [stage.count("t") for stage in text.split("|")]


def default_stages(layers: int, stages: int) -> list[int]:
    """Layers of each stage by default: equal, or with the embedding and the head counted as one layer each if the
    layers do not divide evenly."""
    end_layers = 1 if layers % stages else 0  # layers that the embedding and the head count as, each
    return partition.layers_per_stage(layers, stages, end_layers, end_layers)


def write(layers_per_stage: Sequence[int]) -> str:
    """The layout of stages with the given numbers of layers."""
    return "E" + "|".join(f"t*{count}" if count else "" for count in layers_per_stage) + "L"
