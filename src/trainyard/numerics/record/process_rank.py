"""The rank of this process, and the number of ranks."""

from __future__ import annotations

import os

import torch.distributed as dist


def process_rank() -> int:
    """The rank in the default process group; without one, that of the launcher's variable RANK, or else 0."""
    return dist.get_rank() if _has_group() else int(os.environ.get("RANK", "0"))


def process_ranks() -> int:
    """The ranks of the default process group; without one, those of the variable WORLD_SIZE, or else 1."""
    return dist.get_world_size() if _has_group() else int(os.environ.get("WORLD_SIZE", "1"))


def _has_group() -> bool:
    return dist.is_available() and dist.is_initialized()
