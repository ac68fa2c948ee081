"""When context parallelism cannot be. No torch here."""

from __future__ import annotations

from trainyard.errors import BadJob
from trainyard.job import Job


def check(job: Job) -> None:
    """Raises `BadJob` with the arithmetic and the nearest layout that works."""
    if job.layout.cp > 1:
        raise BadJob(f"cp = {job.layout.cp} at $.layout, but no sequence is split over ranks.", "Use cp = 1.")
