"""The matmul rate of a rank, measured once per run: a restarted or resumed attempt takes the rate of an earlier one."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import torch

from trainyard.formats.decoding import UNREADABLE
from trainyard.machine import Claim
from trainyard.run.local.step_clock import StepClock
from trainyard.run.probe.matmul_rate import matmul_rate
from trainyard.store.disk_space import write_whole
from trainyard.train.process_group import Ranks, barrier, on_any


class MeasuredOn(msgspec.Struct, frozen=True, kw_only=True):
    """What a matmul rate depends on. `index`: of the device on its host; `ranks`: that measured at once there;
    `threads`: of the rank."""

    host: str
    device: str
    index: int
    dtype: str
    ranks: int
    threads: int


class KeptRate(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `facts/rank<N>.matmul.json` in the run's folder."""

    measured_on: MeasuredOn
    rate: Claim


def matmul_rate_of_run(folder: Path, ranks: Ranks, device_name: str, dtype: torch.dtype, clock: StepClock) -> Claim:
    """The matmul rate of this rank in FLOP/s, from the run's `folder`, or measured and kept there if it has none that
    was measured in the same conditions. Collective: if one rank has to measure, all do, since a rate depends on the
    load of its host."""
    measured_on = MeasuredOn(
        host=socket.gethostname(),
        device=device_name,
        index=ranks.device.index or 0,
        dtype=str(dtype).removeprefix("torch."),
        ranks=ranks.local_world,
        threads=torch.get_num_threads(),
    )
    path = folder / "facts" / f"rank{ranks.rank}.matmul.json"
    kept = _read(path)
    is_missing = kept is None or kept.measured_on != measured_on
    if not on_any(ranks, is_missing) and kept is not None:
        return kept.rate
    rate = matmul_rate(ranks.device, dtype, clock, ranks=ranks.local_world, together=lambda: barrier(ranks))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.encode(KeptRate(measured_on=measured_on, rate=rate)) + b"\n")
    return rate


def _read(path: Path) -> KeptRate | None:
    """The rate kept in a file; None if there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=KeptRate)
    except (OSError, *UNREADABLE):
        return None
