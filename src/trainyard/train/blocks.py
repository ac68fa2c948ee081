"""What is done to each repeated block of a model: computed again backward, compiled, named in a profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainyard.job import Recipe
from trainyard.train.span import span

Forward = Callable[..., Any]


def prepare(blocks: Mapping[str, nn.Module], recipe: Recipe) -> None:
    """Replaces each block's `forward`, not the module: its parameters keep their names, and hooks of others (FSDP's)
    stay outside what is compiled."""
    for number, (name, block) in enumerate(blocks.items()):
        run: Forward = block.forward
        if recipe.remat == "full" and number % recipe.remat_every == 0:
            run = partial(checkpoint, run, use_reentrant=False, preserve_rng_state=False)
        if recipe.compile is True:
            run = torch.compile(run)
        block.forward = _named(name, run)


def _named(name: str, run: Forward) -> Forward:
    def forward(*args: Any) -> Any:
        with span(name):
            return run(*args)

    return forward
