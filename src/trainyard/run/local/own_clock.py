"""The clock of a rank's own time on its device, by which the supervisor detects slow ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from trainyard.launch.agents.own_time import CollectiveTimer, CpuClock, DeviceClock, OwnClock
from trainyard.train.process_group import Ranks


def own_clock(ranks: Ranks) -> OwnClock:
    """The clock for `ranks.device`: device events on an accelerator, from which the time in collectives, where ranks
    wait for each other, is subtracted; else CPU time. Call it once all process groups exist: the collectives of later
    groups are not subtracted."""
    if ranks.device.type != "cuda":
        return CpuClock()
    timer = CollectiveTimer()
    if dist.is_initialized():
        for group in list(dist.distributed_c10d._world.pg_map):
            timer.watch(group)
    return DeviceClock(lambda: torch.cuda.Event(enable_timing=True), lambda: timer.total_ns)
