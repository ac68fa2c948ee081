"""When a decoder cannot be trained. No torch here."""

from __future__ import annotations

from trainyard.errors import BadJob
from trainyard.job import Job

BYTES = 256
"""Token ids that byte-level text uses; a larger vocabulary leaves the rest unused."""


def check(job: Job) -> None:
    """Raises `BadJob` with the reason and the nearest model that works."""
    model = job.decoder
    if model.experts:
        raise BadJob(f"experts = {model.experts} at $.model, but this decoder is dense.", "Use experts = 0.")
    if model.vocab < BYTES:
        raise BadJob(
            f"vocab = {model.vocab} at $.model, but a byte has {BYTES} values: "
            f"{BYTES} - {model.vocab} = {BYTES - model.vocab} would have no row.",
            f"Use vocab = {BYTES} or more.",
        )
