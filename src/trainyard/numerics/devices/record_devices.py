"""Records one training on several devices, each in a folder of its own."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from trainyard.errors import BadInput
from trainyard.numerics.devices.available_devices import check_available, is_accelerator
from trainyard.numerics.devices.device_command import DeviceCommand, folder_name
from trainyard.numerics.record.environment_variables import environment_variables
from trainyard.numerics.record.record_command import record_command
from trainyard.numerics.record_files import read_header, variants
from trainyard.numerics.record_state import RecordOptions, variant_names
from trainyard.numerics.tensor_record import RecordHeader
from trainyard.redact import redact_command


def record_devices(
    commands: Sequence[tuple[str, DeviceCommand]],
    folder: Path,
    options: RecordOptions,
    only: str = "",
    say: Callable[[str], object] = lambda text: None,
) -> list[str]:
    """Records the command of each device that has no record in `folder` yet, and returns the devices that have one.

    `commands`: (device, command) in order. The first is the reference, which is also recorded in float64 and jittered;
    of the others, the plain run is. `only`: the device that is recorded; empty for all. A record is moved to its folder
    when it is complete. Raises `BadInput` for a record of another command or extent, `DeviceUnusable` for a device that
    this machine lacks, and as `record_command` does.
    """
    reference = commands[0][0]
    wanted = {device: options if device == reference else options._replace(replicas=0) for device, _ in commands}
    missing: list[tuple[str, DeviceCommand]] = []
    for device, command in commands:
        if (folder / folder_name(device)).exists():
            _check_kept(folder / folder_name(device), command, wanted[device])
            say(f"{device}: kept the record in {folder / folder_name(device)}")
        else:
            missing.append((device, command))
    due = [(device, command) for device, command in missing if only in ("", device)]
    check_available([device for device, _ in due])
    for device, command in due:
        _record(device, command, folder, wanted[device], lambda text, device=device: say(f"{device}: {text}"))
    absent = {device for device, _ in missing} - {device for device, _ in due}
    return [device for device, _ in commands if device not in absent]


def _record(
    device: str, command: DeviceCommand, folder: Path, options: RecordOptions, say: Callable[[str], object]
) -> None:
    """Records a device into its folder, which appears when the record is complete. An interrupted record continues."""
    partial = folder / f".{folder_name(device)}.partial"
    with environment_variables(command.variables):
        record_command(command.words, partial, options, say)
    recorded = read_header(partial, "plain").device
    if (device == "cpu" and recorded != "cpu") or (is_accelerator(device) and recorded == "cpu"):
        shutil.rmtree(partial)
        raise BadInput(
            f"the command for {device} computed on {recorded}: {shlex.join(redact_command(command.words))}.",
            "Check which option of the command chooses the device.",
        )
    partial.rename(folder / folder_name(device))


def _check_kept(folder: Path, command: DeviceCommand, options: RecordOptions) -> None:
    """Raises `BadInput` if a record is not of this command and extent."""
    header = read_header(folder, "plain")
    words = tuple(redact_command(command.words))
    differs = _difference(header, words, options)
    if not differs and (lacking := set(variant_names(options.replicas)) - set(variants(folder))):
        differs = f"it lacks {', '.join(sorted(lacking))}"
    if differs:
        raise BadInput(
            f"{folder} has a record that does not belong to this call: {differs}.",
            "Pass another folder, remove this one, or compare two records with `trainyard numerics compare`.",
        )


def _difference(header: RecordHeader, words: tuple[str, ...], options: RecordOptions) -> str:
    """In which respect a record has another extent or command; empty if in none."""
    if header.command != words:
        return f"its command is {shlex.join(header.command)}"
    if header.steps != tuple(options.steps):
        return f"its steps are {', '.join(map(str, header.steps[:8]))}"
    return "" if header.level == options.level else f"its level is {header.level}"
