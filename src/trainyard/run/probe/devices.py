"""Probe the devices of this machine. No torch here: the ranks are separate processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec

from trainyard import plugins, words
from trainyard.errors import BadInput, MissingLibrary
from trainyard.launch.fork_ranks import run_ranks
from trainyard.machine_load import MachineLoad, load_of_ranks
from trainyard.predict.calibrate.probed_machine import ProbedTime
from trainyard.record import DeviceSeen
from trainyard.run.local.host_devices import capacity, driver_warnings, find_devices
from trainyard.run.local.rank_environment import environment, variable_values
from trainyard.run.local.usable_devices import check_usable
from trainyard.run.record.load_meter import LoadMeter

_PATIENCE_S = 900.0
"""Seconds that all ranks may take together."""
_FORMATS: Mapping[str, object] = dict.fromkeys(("float32", "bfloat16", "float16"))


def devices(ranks: int | None, dtype: str) -> tuple[DeviceSeen, int, tuple[str, ...]]:
    """Return (one of the devices that a job would use here, the number of ranks to probe with, warnings about drivers
    that fail).

    `ranks`: the number of ranks that the user gave, None for as many as the machine can run; `dtype`: number format of
    products. Raises `BadInput` for more ranks than that, the errors of `check_usable`, and `MissingLibrary` without
    torch.
    """
    vendors = plugins.load_all("vendors")
    devices = find_devices(vendors)
    most_ranks = capacity(devices)
    check_usable(devices, ranks or most_ranks, dtype, "--dtype")
    if ranks is not None and ranks > most_ranks:
        raise BadInput(f"--ranks {ranks}, but this machine ({devices[0].name}) can run {most_ranks}.")
    words.check(dtype, _FORMATS, "dtype")
    if find_spec("torch") is None:
        raise MissingLibrary("a probe needs torch to multiply matrices.", "Install it: pip install torch")
    return devices[0], ranks or most_ranks, driver_warnings(devices, vendors)


def probe(vendor: str, ranks: int, dtype: str) -> tuple[list[ProbedTime], MachineLoad | None]:
    """Run the benchmarks of `probe_rank` in `ranks` new processes at once; return the measurements of rank 0, and the
    load of the host meanwhile, None if it is not known.

    `vendor`: name of the devices' vendor plugin; `dtype`: number format of products and attention. Raises `RankDied` if
    a process fails.
    """
    variables = variable_values(environment(ranks, plugins.load_all("vendors"), vendor))
    work = partial(_measure, vendor, dtype, int(variables["OMP_NUM_THREADS"]))
    results = run_ranks(ranks, partial(_with_load, work), ["trainyard.run.probe.probe_rank"], _PATIENCE_S, variables)
    return results[0][0], load_of_ranks([load for _, load in results])


def _with_load(measure: Callable[[str], list[ProbedTime]], meet: str) -> tuple[list[ProbedTime], MachineLoad | None]:
    """The measurements of a rank, and the load of its host as it sees it, which includes the other ranks as others.

    The ranks are children of a fork server, so that only they can count their own CPU time."""
    meter = LoadMeter()
    return measure(meet), meter.finish()


def _measure(vendor: str, dtype: str, threads: int, meet: str) -> list[ProbedTime]:
    from trainyard.run.probe.probe_rank import measure

    return measure(vendor, dtype, threads, meet)
