"""How Megatron Core is told which layers a pipeline stage has, where they are not as many each:
`--pipeline-model-parallel-layout`, as `megatron/core/transformer/pipeline_parallel_layer_layout.py` takes it apart."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from trainyard.errors import BadFile
from trainyard.predict.pipeline.partition import divided

_LONGEST = 1 << 16
"""Characters of a layout once it is written out."""
_REPEATED = (re.compile(r"\(([^()]+)\)\*(\d{1,6})"), re.compile(r"(.)\*(\d{1,6})"))


def read(layout: str, layers: int, where: str) -> list[int]:
    """Layers of each stage. Raises `BadFile` for what is none, or has another number of layers."""
    said = layout.replace(",", "")
    for pattern in _REPEATED:
        if len(said) + sum(len(one[1]) * int(one[2]) for one in pattern.finditer(said)) > _LONGEST:
            raise BadFile(
                f"{where}: --pipeline-model-parallel-layout {layout!r:.60} expands to more than "
                f"{_LONGEST:,} characters."
            )
        said = pattern.sub(lambda found: found[1] * int(found[2]), said)
    if not re.fullmatch(r"E[t|]*L", said):
        raise BadFile(
            f"{where}: --pipeline-model-parallel-layout {layout!r:.60} is no layout of an embedding, layers and a loss."
        )
    if said.count("t") != layers:
        raise BadFile(f"{where}: --pipeline-model-parallel-layout has {said.count('t')} layers, not {layers}.")
    return [one.count("t") for one in said.split("|")]


def usual(layers: int, stages: int) -> list[int]:
    """As many each, or the embedding and the head counted as a layer each where that does not divide."""
    ends = 1 if layers % stages else 0
    return np.diff(divided(layers, stages, ends).before(np.arange(stages + 1.0))).astype(int).tolist()


def write(each: Sequence[int]) -> str:
    """Of so many layers each."""
    return "E" + "|".join(f"t*{one}" if one else "" for one in each) + "L"
