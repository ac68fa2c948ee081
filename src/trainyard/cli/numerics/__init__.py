"""`trainyard numerics`: numerical checks of training."""

from __future__ import annotations

import click

from trainyard.cli.numerics.bisect import command as bisect
from trainyard.cli.numerics.compare import command as compare
from trainyard.cli.numerics.devices import command as devices
from trainyard.cli.numerics.kernels import command as kernels
from trainyard.cli.numerics.parity import command as parity
from trainyard.cli.numerics.record import command as record
from trainyard.cli.numerics.reproduce import command as reproduce
from trainyard.cli.numerics.triage import command as triage


@click.group()
def command() -> None:
    """Check that the training is numerically unchanged."""


command.add_command(bisect, "bisect")
command.add_command(compare, "compare")
command.add_command(devices, "devices")
command.add_command(kernels, "kernels")
command.add_command(parity, "parity")
command.add_command(record, "record")
command.add_command(reproduce, "reproduce")
command.add_command(triage, "triage")
