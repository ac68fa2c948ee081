"""One process of a NCCL group with one fault, whose flight record is written to FOLDER/rank0.flight.

`python -m benchmarks.device_hour.nccl_process FAULT FOLDER`. The group has this one rank, since a device can be used by
one rank of a NCCL group only: the record, its decoding and the watchdog are tested, not the comparison of ranks.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

FAULTS = ("none", "device_stuck", "watchdog")
"""`device_stuck`: a kernel that does not end precedes a collective, and this process writes the record. `watchdog`: the
same, and NCCL's watchdog writes its dump after the timeout, and ends the process."""
COLLECTIVES = 5
STUCK_CYCLES = 200 * 10**9
"""Clock cycles of the kernel that does not end: more than a minute at any clock of today's devices."""
WATCHDOG_S, STUCK_S = 10, 5.0


def main(fault: str, folder: Path) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ.update(variables | recorder_variables(folder))
    import torch
    import torch.distributed as dist

    from trainyard.launch.agents.flight_recorder import FlightRecorder

    recorder = FlightRecorder(folder / "rank0.flight", "device-evidence")
    recorder.start()
    device = torch.device("cuda", 0)
    timeout = timedelta(seconds=WATCHDOG_S if fault == "watchdog" else 600)
    dist.init_process_group(
        "nccl", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1, timeout=timeout, device_id=device
    )
    values = torch.ones(1 << 20, device=device)
    for _ in range(COLLECTIVES):
        dist.all_reduce(values)
    torch.cuda.synchronize()
    if fault != "none":
        torch.cuda._sleep(STUCK_CYCLES)
        dist.all_reduce(values)
        time.sleep(6 * WATCHDOG_S if fault == "watchdog" else STUCK_S)
    recorder.write(with_stacks=True)
    os._exit(0)  # the device does not reach the end of its work


def recorder_variables(folder: Path) -> dict[str, str]:
    """The variables with which NCCL's watchdog writes its dump to `folder`. Older versions of torch have the second
    name of the buffer's size and of the file's prefix."""
    prefix = str(folder / "nccl_trace_rank_")
    return {
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": prefix,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix,
        "TORCH_NCCL_ENABLE_TIMING": "1",
    }


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
