"""Levels of simplicity: ZeRO stages are relative to those that the framework offers."""

from __future__ import annotations

import numpy as np

from trainyard.predict.inputs.layout_space import AXES, LayoutSpace
from trainyard.predict.search.simplicity import levels_for

PLAIN = dict.fromkeys(AXES, 1) | {"zero": 3, "activation_checkpoint": 0, "offload": 0, "schedule": 0}


def levels(*rows: dict[str, int]) -> list[int]:
    """The level of each layout among these; a row has the axes that differ from a single rank."""
    columns = {axis: np.array([(PLAIN | row)[axis] for row in rows]) for axis in AXES}
    return levels_for(LayoutSpace(columns)).of(columns).tolist()


def test_zero_stage_that_is_the_only_one_is_as_simple_as_none() -> None:
    replicated, sharded = levels({"dp_replicate": 8}, {"dp_shard": 8, "zero": 1})
    assert replicated == sharded


def test_lower_zero_stages_are_less_simple() -> None:
    fsdp, zero_2, zero_1 = levels(*({"dp_shard": 8, "zero": zero} for zero in (3, 2, 1)))
    assert fsdp < zero_2 < zero_1
    with_pipeline, _ = levels({"dp_shard": 8, "pp": 2, "zero": 2}, {"dp_shard": 8, "zero": 3})
    assert with_pipeline == levels({"dp_shard": 8, "pp": 2, "zero": 3})[0], "2 is the highest with a pipeline"


def test_axes_count_more_than_checkpointing_and_stages() -> None:
    ordered = levels(
        {"dp_shard": 8},
        {"dp_shard": 8, "activation_checkpoint": 2},
        {"dp_shard": 8, "zero": 1},
        {"dp_replicate": 2, "dp_shard": 4},
        {"tp": 8},
        {"dp_shard": 4, "cp": 2},
        {"dp_shard": 2, "tp": 2, "cp": 2},
    )
    assert ordered == sorted(set(ordered))
