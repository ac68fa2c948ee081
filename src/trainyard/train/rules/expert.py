"""When expert parallelism cannot be. No torch here."""

from __future__ import annotations

from trainyard.errors import BadJob
from trainyard.job import Job


def check(job: Job) -> None:
    """Raises `BadJob` with the arithmetic and the nearest layout that works."""
    if job.layout.ep > 1:
        raise BadJob(f"ep = {job.layout.ep} at $.layout, but no expert is placed on another rank.", "Use ep = 1.")
