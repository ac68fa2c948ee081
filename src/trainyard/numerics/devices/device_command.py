"""The command of a training on a device: a template in whose words and environment variables the device is named."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trainyard.errors import BadInput

PLACEHOLDER = "{device}"
"""Stands for the device in a word of the command or in the value of a variable."""
_DEVICE = re.compile(r"[A-Za-z][\w.-]{0,63}(:\d{1,4})?")
_CUDA = re.compile(r"cuda(?::(\d+))?")


class DeviceCommand(NamedTuple):
    """A command and the environment variables that it is started with, None for one that is removed."""

    words: tuple[str, ...]
    variables: Mapping[str, str | None]


def command_on(device: str, words: Sequence[str], variables: Mapping[str, str]) -> DeviceCommand:
    """The command on a device. Raises `BadInput` if no word and no variable has the placeholder."""
    if not any(PLACEHOLDER in text for text in (*words, *variables.values())):
        raise BadInput(
            f"no word of the command has the placeholder {PLACEHOLDER}, so that all devices would run the same.",
            f"For example: -- python train.py --device {PLACEHOLDER}, or --env DEVICE={PLACEHOLDER}.",
        )
    return DeviceCommand(
        tuple(word.replace(PLACEHOLDER, device) for word in words),
        {name: value.replace(PLACEHOLDER, device) for name, value in variables.items()},
    )


def job_on(device: str, words: Sequence[str], variables: Mapping[str, str]) -> DeviceCommand:
    """The command that runs a job on a device. A job has no key for it: it trains on the accelerators of its machine
    that CUDA_VISIBLE_DEVICES leaves visible, or else on the CPU. Raises `BadInput` for another device."""
    if device == "cpu":
        return DeviceCommand(tuple(words), {**variables, "CUDA_VISIBLE_DEVICES": ""})
    match = _CUDA.fullmatch(device)
    if match is None:
        raise BadInput(f"a job cannot be run on {device!r}.", "Jobs run on cpu, cuda and cuda:N.")
    visible: dict[str, str | None] = {} if match[1] is None else {"CUDA_VISIBLE_DEVICES": match[1]}
    return DeviceCommand(tuple(words), {**variables, **visible})


def check_devices(devices: Sequence[str]) -> None:
    """Raises `BadInput` unless these are names of two or more different devices."""
    for device in devices:
        if not _DEVICE.fullmatch(device):
            raise BadInput(f"{device!r} is not the name of a device.", "For example --on cpu,cuda or --on cpu,cuda:1.")
    if len({folder_name(device) for device in devices}) < max(2, len(devices)):
        raise BadInput(
            f"{', '.join(devices) or 'nothing'}: at least two different devices are compared.", "Pass --on cpu,cuda."
        )


def folder_name(device: str) -> str:
    """The name of the folder with the record of a device: `cuda-1` for `cuda:1`."""
    return device.replace(":", "-")
