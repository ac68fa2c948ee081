"""When pipeline parallelism cannot be. No torch here."""

from __future__ import annotations

from trainyard.errors import BadJob
from trainyard.job import Job


def check(job: Job) -> None:
    """Raises `BadJob` with the arithmetic and the nearest layout that works."""
    if job.layout.pp > 1:
        raise BadJob(f"pp = {job.layout.pp} at $.layout, but no layer is placed on another rank.", "Use pp = 1.")
