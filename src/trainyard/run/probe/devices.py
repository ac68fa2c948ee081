"""Probe the devices of this machine. No torch here: the ranks are separate processes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec

from trainyard import plugins, words
from trainyard.errors import BadInput, MissingLibrary
from trainyard.launch.fork_ranks import run_ranks
from trainyard.predict.calibrate.probed_machine import ProbedTime
from trainyard.record import DeviceSeen
from trainyard.run.local.harness import capacity, environment, find_devices

_PATIENCE_S = 900.0
_FORMATS: Mapping[str, object] = dict.fromkeys(("float32", "bfloat16", "float16"))


def devices(ranks: int | None) -> tuple[DeviceSeen, int]:
    """Return one of the devices that a job would use here, and the number of ranks to probe with.

    Raises `BadInput` if `ranks` is more than the machine can run."""
    devices = find_devices(plugins.load_all("vendors"))
    most_ranks = capacity(devices)
    if ranks is not None and ranks > most_ranks:
        raise BadInput(f"--ranks {ranks}, but this machine ({devices[0].name}) can run {most_ranks}.")
    return devices[0], ranks or most_ranks


def probe(vendor: str, ranks: int, dtype: str) -> list[ProbedTime]:
    """Return the measurements of rank 0, while all ranks measure. Raises `RankDied`."""
    words.check(dtype, _FORMATS, "dtype")
    if find_spec("torch") is None:
        raise MissingLibrary("a probe needs torch to multiply matrices.", "Install it: pip install torch")
    variables = environment(ranks, plugins.load_all("vendors"))
    work = partial(_measure, vendor, dtype, int(variables["OMP_NUM_THREADS"]))
    return run_ranks(ranks, work, ["trainyard.run.probe.probe_rank"], _PATIENCE_S, variables)[0]


def _measure(vendor: str, dtype: str, threads: int, meet: str) -> list[ProbedTime]:
    from trainyard.run.probe.probe_rank import measure

    return measure(vendor, dtype, threads, meet)
