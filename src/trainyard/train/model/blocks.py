"""Applies activation checkpointing, compilation and profiler spans to each repeated block of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import SAC_IGNORED_OPS, CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainyard.recipe import Recipe
from trainyard.train.step.profiler_span import span

Forward = Callable[..., Any]

_aten = torch.ops.aten
SAVED_OPERATIONS = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
        _aten._grouped_mm.default,
        _aten._scaled_mm.default,
        _aten.convolution.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
    }
)
"""Operations that `activation_checkpoint = "selective"` does not recompute: most of the FLOPs for a fraction of the
bytes."""

# A nested FSDP unit (the experts) opens other profiler spans when its block is recomputed than in the forward pass.
SAC_IGNORED_OPS.update(
    {torch.ops.profiler._record_function_enter_new.default, torch.ops.profiler._record_function_exit._RecordFunction}
)


def prepare(blocks: Mapping[str, nn.Module], recipe: Recipe) -> None:
    """Wraps the `forward` of each block (by name) in activation checkpointing, compilation and a profiler span, as the
    recipe says. Modules are not wrapped, so that parameters keep their names and hooks (FSDP's) stay outside the
    compiled code."""
    for number, (name, block) in enumerate(blocks.items()):
        forward: Forward = block.forward
        if recipe.activation_checkpoint != "none" and number % recipe.activation_checkpoint_every == 0:
            forward = _checkpointed(forward, recipe.activation_checkpoint)
        if recipe.compile is True:
            forward = torch.compile(forward)
        block.forward = _with_span(name, forward)


def _checkpointed(forward: Forward, activation_checkpoint: str) -> Forward:
    """Wraps `forward` in activation checkpointing. Keeps no RNG state: blocks draw no random numbers."""
    checkpointed = partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=False)
    if activation_checkpoint == "full":
        return checkpointed
    return partial(checkpointed, context_fn=partial(create_selective_checkpoint_contexts, _choose_policy))


def _choose_policy(_: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    """Whether selective checkpointing saves the result of `op` or recomputes it. The other arguments are those of
    torch's hook."""
    return CheckpointPolicy.MUST_SAVE if op in SAVED_OPERATIONS else CheckpointPolicy.PREFER_RECOMPUTE


def _with_span(name: str, block_forward: Forward) -> Forward:
    """The forward method `block_forward` inside a profiler span called `name`."""

    def forward(*args: Any) -> Any:
        with span(name):
            return block_forward(*args)

    return forward
