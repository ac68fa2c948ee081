"""The baseline of a plan: plain FSDP or DDP, with which every layout is compared.

Plain data parallelism has no other axis, no offloading and the highest ZeRO stage that the framework offers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from trainyard import units
from trainyard.job import Job
from trainyard.machine import Machine
from trainyard.predict.inputs import layout_space
from trainyard.predict.inputs.constant_sets import family_of
from trainyard.predict.search import offload_variants, remedies, search_space
from trainyard.predict.search.search_space import Runnable, SearchSpace


def find_baseline(space: SearchSpace, machine: Machine, refuses: Callable[[Job], None]) -> tuple[Runnable | None, str]:
    """(the fastest plain layout, empty), or (None, a sentence that says why there is none); (None, empty) for a single
    rank, which has no other layout. `refuses`: raises `BadJob` for a job that cannot be run."""
    if space.wanted.devices == 1:
        return None, ""
    plain = _plain_layouts(space)
    if not plain.any():
        return None, _explain_missing(space, machine)
    mask = plain[space.fits]
    if not mask.any():
        least_bytes = float(np.min(space.sizes.device_bytes[plain]))
        least, usable = map(units.show_gigabytes, (least_bytes, offload_variants.usable_memory(machine).device))
        needs = f"it needs at least {least} of each rank, and {usable} can be used"
        return None, f"Plain {_plain_name(space)} does not fit: {needs}."
    refused: list[str] = []
    for each in search_space.runnable_cases(space, space.by_time(mask), refuses, refused):
        return each, ""
    return None, f"Plain {_plain_name(space)} cannot be run: {refused[0]}"


def _plain_name(space: SearchSpace) -> str:
    """The plain data parallelism of the framework, which may not shard weights."""
    stages = space.sizes.layouts.columns["zero"][_plain_layouts(space)]
    return "FSDP or DDP" if 3 in stages and family_of(space.framework.software) == "fsdp" else "DDP or ZeRO-1"


def _plain_layouts(space: SearchSpace) -> npt.NDArray[np.bool_]:
    """Mask of all layouts: those with data parallelism only, on one axis."""
    axes, ranks = space.sizes.layouts.columns, space.wanted.devices
    sharded = axes["dp_shard"] == ranks
    plain = (sharded | (axes["dp_replicate"] == ranks)) & (axes["ep"] == 1) & (axes["offload"] == 0)
    stages = axes["zero"][plain & sharded]
    return plain & (~sharded | (axes["zero"] == np.max(stages, initial=0)))


def _explain_missing(space: SearchSpace, machine: Machine) -> str:
    """A sentence on why no layout of the search is plain data parallelism."""
    wanted, name = space.wanted, "Plain FSDP or DDP is not in the table"
    if wanted.samples % wanted.devices:
        unit = remedies.unit_of_ranks([machine])
        return (
            f"{name}: a batch of {wanted.samples:,} does not divide evenly over {wanted.devices:,} data-parallel "
            f"{unit}."
        )
    if wanted.fixed:
        fixed = ", ".join(f"{axis}={value}" for axis, value in layout_space.fixed_in_words(wanted.fixed).items())
        return f"Plain FSDP or DDP is excluded by --fix ({fixed})."
    return f"{name}: {space.framework.display_name} does not support it for this model."
