"""Which jobs the training step can run, and what to change in one that it cannot. No torch here."""

from __future__ import annotations

from trainyard.errors import BadJob
from trainyard.job import Job, Layout

DTYPES = ("float32", "bfloat16")
BYTES = 256
"""Token ids that byte-level text uses; a larger vocabulary leaves the rest unused."""

_SPLITS = {
    "tp": "no matrix is split over ranks",
    "cp": "no sequence is split over ranks",
    "pp": "no layer is placed on another rank",
    "ep": "the model is dense",
    "interleave": "there is no pipeline to interleave",
}


def check(job: Job) -> None:
    """Raises `BadJob` with the reason and the nearest job that works."""
    if job.machine:
        raise BadJob(f"machine = {job.machine!r} at $, but a job trains on the machine it is run on.", "Leave it out.")
    _check_layout(job.layout)
    model, recipe = job.decoder, job.recipe
    if model.experts:
        raise BadJob(f"experts = {model.experts} at $.model, but this decoder is dense.", "Use experts = 0.")
    if model.vocab < BYTES:
        raise BadJob(
            f"vocab = {model.vocab} at $.model, but a byte has {BYTES} values: "
            f"{BYTES} - {model.vocab} = {BYTES - model.vocab} would have no row.",
            f"Use vocab = {BYTES} or more.",
        )
    if recipe.dtype not in DTYPES:
        nearest = "float32" if recipe.dtype == "tf32" else "bfloat16"
        raise BadJob(f"dtype = {recipe.dtype!r} at $.recipe is not trained here.", f"Use {nearest!r}.")
    if recipe.offload:
        raise BadJob("offload = true at $.recipe, but all state stays on the device.", "Use offload = false.")


def _check_layout(layout: Layout) -> None:
    split = {axis: getattr(layout, axis) for axis in _SPLITS if getattr(layout, axis) > 1}
    if not split:
        return
    works = Layout(dp_replicate=layout.dp_replicate, dp_shard=layout.ranks // layout.dp_replicate)
    refused = ", ".join(f"{axis} = {size}, but {_SPLITS[axis]}" for axis, size in split.items())
    raise BadJob(
        f"bad layout at $.layout: {refused}.",
        f"On the same {layout.ranks} ranks, {works} works.",
    )
