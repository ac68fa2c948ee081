"""When a recipe cannot be. No torch here."""

from __future__ import annotations

from trainyard.errors import BadJob
from trainyard.job import Job

DTYPES = ("float32", "bfloat16")


def check(job: Job) -> None:
    """Raises `BadJob` with the reason and the nearest recipe that works."""
    recipe = job.recipe
    if recipe.dtype not in DTYPES:
        nearest = "float32" if recipe.dtype == "tf32" else "bfloat16"
        raise BadJob(f"dtype = {recipe.dtype!r} at $.recipe is not trained here.", f"Use {nearest!r}.")
    if recipe.offload:
        raise BadJob("offload = true at $.recipe, but all state stays on the device.", "Use offload = false.")
