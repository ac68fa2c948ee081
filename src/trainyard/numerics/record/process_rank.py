"""The rank of this process."""

from __future__ import annotations

import os

import torch.distributed as dist


def process_rank() -> int:
    """The rank in the default process group; without one, that of the launcher's variable RANK, or else 0."""
    is_group = dist.is_available() and dist.is_initialized()
    return dist.get_rank() if is_group else int(os.environ.get("RANK", "0"))
