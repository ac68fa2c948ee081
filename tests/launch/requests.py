"""Requests to launchers, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainyard.job import Job
from trainyard.launch_request import Component, LaunchRequest
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe

JOB = Job(
    model=Model(layers=1, hidden_size=8, ffn_hidden_size=8, heads=1, kv_heads=1, head_dim=8),
    layout=Layout(dp_replicate=2),
    recipe=Recipe(seq_len=8, tokens_per_step=16),
)


def request(files: Path, command: Sequence[str], **options: Any) -> LaunchRequest:
    """A request to run `command` on two nodes with a rank each. `files`: folder of the launch; `options`: fields of the
    request that differ."""
    fields: dict[str, Any] = {"job": JOB, "components": (Component(nodes=2, ranks_per_node=1),), **options}
    return LaunchRequest(command=tuple(command), id="a1b2c3d4", name="test", folder=str(files), **fields)
