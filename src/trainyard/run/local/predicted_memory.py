"""Warn before a run if the planner predicts more memory for a rank than its device has."""

from __future__ import annotations

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.record import DeviceSeen
from trainyard.units import show_size


def memory_warning(job: Job, device: DeviceSeen) -> str:
    """A warning with the predicted peak of a rank by part, and advice, if that exceeds the usable memory of `device`;
    empty otherwise, for a CPU, and for a job that the planner does not support.

    Not an error, since predictions are not exact; `memory_rules` refuses jobs whose training state alone does not fit.
    """
    if device.vendor not in ("nvidia", "amd") or not device.memory_bytes:
        return ""
    from trainyard.predict.inputs import cases
    from trainyard.predict.memory.framework_memory import USABLE, memory

    try:
        predicted = memory(cases.of_jobs([job]))
    except BadJob:
        return ""
    peak_bytes = float(predicted.total[0])
    if peak_bytes <= USABLE * device.memory_bytes:
        return ""
    sizes = {name.replace("_", " "): float(column[0]) for name, column in predicted.parts().items()}
    parts = ", ".join(f"{name} {show_size(size)}" for name, size in sizes.items() if size)
    return (
        f"The predicted peak memory of a rank is {show_size(peak_bytes)} ({parts}), but {device.name} has "
        f"{show_size(device.memory_bytes)}, of which {100 * USABLE:.0f} % are usable: the run may end out of memory. "
        "`trainyard plan check JOB.toml` lists layouts that fit."
    )
