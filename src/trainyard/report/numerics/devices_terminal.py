"""Prints the comparisons of one training on several devices."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from trainyard.numerics.devices.device_command import folder_name
from trainyard.report.numerics.devices_report import DevicesReport
from trainyard.report.numerics.numerics_terminal import print_numerics
from trainyard.report.render.fitted_table import plain


def print_devices(report: DevicesReport, console: Console, full: bool = False) -> None:
    """Prints each comparison under the names of its devices, and which records are missing."""
    for number, device in enumerate(report.devices):
        if number:
            console.print()
        console.print(Text(plain(f"A {report.reference}, B {device.device}"), style="dim"))
        print_numerics(device.comparison, console, full)
    if report.missing:
        names = ", ".join(report.missing)
        text = f"Not recorded yet: {names}. Repeat the command, on another machine with a copy of {report.folder}."
        console.print(Text(plain(text), style="yellow"))


def page_path(path: Path, device: str, devices: int) -> Path:
    """The file of the page of a device: `path`, or with several devices `differences-cuda-1.html`."""
    return path if devices == 1 else path.with_stem(f"{path.stem}-{folder_name(device)}")
