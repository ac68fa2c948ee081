"""Whether one job can resume from a checkpoint of another. Needs no torch.

Layout, precision, micro-batches and learning rate may differ; the samples of each step, the model and the optimizer may
not.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.job import Job

_RECIPE_FIELDS = ("seq_len", "tokens_per_step", "seed", "dataset", "optimizer", "embedding_optimizer")
"""Recipe fields that determine the samples of a step and the meaning of the optimizer state."""
_LAYOUT_SIZES = {"tables"}
"""Sizes that belong to the layout: how the ranks share a recommender's tables."""


def differences(old: Job, new: Job) -> Iterator[str]:
    """Yields a description, with both values, of each field that must be equal in the checkpoint's job `old` and the
    job to resume `new`, and is not. Of jobs with different workloads, only the workload."""
    if old.workload != new.workload:
        yield f"workload = {new.workload!r} at $, in the checkpoint {old.workload!r}"
        return
    for field in _RECIPE_FIELDS:
        yield from _difference(field, "$.recipe", getattr(old.recipe, field), getattr(new.recipe, field))
    for field in old.model.__struct_fields__ if old.model and new.model else ():
        if field != "name":
            yield from _difference(field, "$.model", getattr(old.model, field), getattr(new.model, field))
    for field in sorted((old.sizes.keys() | new.sizes.keys()) - _LAYOUT_SIZES):
        yield from _difference(field, "$.sizes", old.sizes.get(field), new.sizes.get(field))


def _difference(field: str, section: str, old: object, new: object) -> Iterator[str]:
    """A description of the field if its values differ, else nothing. `section`: the path of its table in the job."""
    if old != new:
        yield f"{field} = {new!r} at {section}, in the checkpoint {old!r}"
