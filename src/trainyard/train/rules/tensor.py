"""When tensor parallelism cannot be. No torch here."""

from __future__ import annotations

from trainyard.errors import BadJob
from trainyard.job import Job


def check(job: Job) -> None:
    """Raises `BadJob` with the arithmetic and the nearest layout that works."""
    if job.layout.tp > 1:
        raise BadJob(f"tp = {job.layout.tp} at $.layout, but no matrix is split over ranks.", "Use tp = 1.")
