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
from trainyard.run.local.host_devices import capacity, find_devices
from trainyard.run.local.rank_environment import environment, variable_values

_PATIENCE_S = 900.0
"""Seconds that all ranks may take together."""
_FORMATS: Mapping[str, object] = dict.fromkeys(("float32", "bfloat16", "float16"))


def devices(ranks: int | None) -> tuple[DeviceSeen, int]:
    """Return (one of the devices that a job would use here, the number of ranks to probe with).

    `ranks`: the number of ranks that the user gave, None for as many as the machine can run. Raises `BadInput` if it is
    more than that.
    """
    devices = find_devices(plugins.load_all("vendors"))
    most_ranks = capacity(devices)
    if ranks is not None and ranks > most_ranks:
        raise BadInput(f"--ranks {ranks}, but this machine ({devices[0].name}) can run {most_ranks}.")
    return devices[0], ranks or most_ranks


def probe(vendor: str, ranks: int, dtype: str) -> list[ProbedTime]:
    """Run the benchmarks of `probe_rank` in `ranks` new processes at once; return the measurements of rank 0.

    `vendor`: name of the devices' vendor plugin; `dtype`: number format of products and attention. Raises `RankDied` if
    a process fails, and `MissingLibrary` without torch.
    """
    words.check(dtype, _FORMATS, "dtype")
    if find_spec("torch") is None:
        raise MissingLibrary("a probe needs torch to multiply matrices.", "Install it: pip install torch")
    variables = variable_values(environment(ranks, plugins.load_all("vendors"), vendor))
    work = partial(_measure, vendor, dtype, int(variables["OMP_NUM_THREADS"]))
    return run_ranks(ranks, work, ["trainyard.run.probe.probe_rank"], _PATIENCE_S, variables)[0]


def _measure(vendor: str, dtype: str, threads: int, meet: str) -> list[ProbedTime]:
    from trainyard.run.probe.probe_rank import measure

    return measure(vendor, dtype, threads, meet)
