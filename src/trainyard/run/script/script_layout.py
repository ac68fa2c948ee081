"""The layout and tokens per step of a user's own command, which states neither."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from trainyard.layout import Layout
from trainyard.record import Run, Sample


def with_layout(run: Run, world_size: int = 0) -> Run:
    """Return `run` with a layout of `world_size` ranks, or of as many as took steps if it is 0, and the tokens per step
    if the script reports them."""
    ranks = {sample.rank for sample in run.samples}
    if not ranks:
        return run
    layout = Layout(dp_replicate=max(len(ranks), world_size))
    recipe = replace(run.job.recipe, tokens_per_step=_tokens(run.samples))
    return replace(run, job=replace(run.job, layout=layout, recipe=recipe))


def _tokens(samples: Sequence[Sample]) -> int:
    """Tokens of the last step, over all ranks."""
    last = max(sample.step for sample in samples)
    return sum(sample.tokens for sample in samples if sample.step == last)
