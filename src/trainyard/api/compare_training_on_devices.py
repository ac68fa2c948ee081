"""`compare_devices`: does a training compute the same on an accelerator as on the CPU?"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainyard.api.record_tensors import is_job_file, parse_steps, run_job_command
from trainyard.errors import BadInput
from trainyard.numerics.compare.compare_records import compare_records
from trainyard.numerics.devices.device_command import check_devices, command_on, folder_name, job_on
from trainyard.numerics.devices.record_devices import record_devices
from trainyard.numerics.record_state import RecordOptions
from trainyard.numerics.tensor_record import Level
from trainyard.report.numerics.devices_report import DeviceComparison, DevicesReport
from trainyard.report.numerics.numerics_report import report_numerics


def compare_devices(
    command: Sequence[str],
    out: str | os.PathLike[str],
    *,
    devices: Sequence[str] = ("cpu", "cuda"),
    only: str = "",
    variables: Mapping[str, str] | None = None,
    steps: str = "0-2",
    level: Level = "operations",
    replicas: int = 4,
    say: Callable[[str], object] = lambda text: None,
) -> DevicesReport:
    """Records one training on several devices, and compares each with the first.

    `command`: a training script with its arguments, in which `{device}` stands for the device, or a job file alone, of
    which cpu is run without visible accelerators. `out`: a folder, in which each device gets the folder of its record;
    those that are there are kept, so that a record of another machine can be copied there. `devices`: the first is the
    reference, recorded also in float64 and with `replicas` jittered runs; of the others, one plain run is. `only`: the
    device that is recorded in this call; empty for all. `variables`: environment variables, in whose values `{device}`
    stands for the device too. `steps`, `level`: as of `record_numerics`. `say`: called with the cost of each run.

    ```python
    report = api.compare_devices(["python", "train.py", "--device", "{device}"], "devices", devices=["cpu", "cuda"])
    for device in report.devices:
        print(device.device, device.comparison.headline)
    ```

    Raises `BadInput` for a command without `{device}`, for a record of another command, and if a side computed on
    another device; `DeviceUnusable` for a device that this machine lacks; otherwise as `record_numerics` does.
    """
    check_devices(devices)
    if only and only not in devices:
        raise BadInput(f"{only!r} is not one of the devices {', '.join(devices)}.", "Name it with --on too.")
    if not replicas:
        raise BadInput("without replicas, the effect of rounding is not known.", "Use at least --replicas 2.")
    is_job = is_job_file(command)
    words, on_device = (run_job_command(command[0]), job_on) if is_job else (command, command_on)
    commands = [(device, on_device(device, words, variables or {})) for device in devices]
    options = RecordOptions(steps=parse_steps(steps), level=level, replicas=replicas)
    folder = Path(out)
    recorded = record_devices(commands, folder, options, only, say)
    reference, *others = devices
    compared = [device for device in others if device in recorded] if reference in recorded else []
    return DevicesReport(
        folder=str(folder),
        reference=reference,
        missing=tuple(device for device in devices if device not in recorded),
        devices=tuple(
            DeviceComparison(
                device=device,
                comparison=report_numerics(
                    compare_records(folder / folder_name(reference), folder / folder_name(device))
                ),
            )
            for device in compared
        ),
    )
