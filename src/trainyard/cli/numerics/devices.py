"""`trainyard numerics devices`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard.cli.numerics.recording_options import level_option, steps_option

if TYPE_CHECKING:
    from trainyard.numerics.tensor_record import Level


@click.command()
@click.argument("command_words", metavar="[JOB.toml | -- COMMAND]", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the records of the devices.")
@click.option(
    "--on",
    "devices",
    metavar="DEVICE,DEVICE",
    default="cpu,cuda",
    show_default=True,
    help="Devices; the others are compared with the first.",
)
@click.option("--only", metavar="DEVICE", default="", help="Record this device alone, as on another machine.")
@click.option(
    "--env", "variables", metavar="NAME=VALUE", multiple=True, help="Environment variable, such as DEVICE={device}."
)
@click.option(
    "--replicas",
    type=click.IntRange(2, 99),
    default=4,
    show_default=True,
    help="Jittered runs of the first device, which show the effect of rounding.",
)
@steps_option
@level_option
@click.option("--page", type=click.Path(path_type=Path), help="Also write an HTML page of each comparison.")
@click.option("--full", is_flag=True, help="Print every module, step and note.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparisons as JSON.")
@click.pass_context
def command(
    context: click.Context,
    command_words: tuple[str, ...],
    out: Path,
    devices: str,
    only: str,
    variables: tuple[str, ...],
    replicas: int,
    steps: str,
    level: Level,
    page: Path | None,
    full: bool,
    as_json: bool,
) -> None:
    """Compare a training on an accelerator with the same training on the CPU.

    COMMAND is a training script with {device} in place of the device:

        trainyard numerics devices --out devices -- python train.py --device {device}

    Its first device is recorded as it is, in float64 and jittered; of the others, one plain run is recorded. Each
    record has a folder of its own in that of --out. A record that is there is kept, so that a repeated call completes
    what is missing; with --only, one device is recorded, and its folder can be copied to another machine. A job file
    trains on the CPU if no accelerator is visible to it, and needs no {device}.

    Initialise the weights and draw the data on the CPU, and set dropout to 0: the random numbers of devices differ.

    Exit codes: 0 the same within rounding, 1 different, 2 bad input, 3 undecided, 4 a device is not there; of several
    devices, that of the worst.
    """
    from trainyard import api
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.errors import BadInput
    from trainyard.report.numerics.devices_terminal import page_path, print_devices

    values: dict[str, str] = {}
    for text in variables:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise BadInput(f"--env {text!r}: not of the form NAME=VALUE.", "For example --env DEVICE={device}.")
        values[name] = value
    report = api.compare_devices(
        command_words,
        out,
        devices=[device.strip() for device in devices.split(",") if device.strip()],
        only=only,
        variables=values,
        steps=steps,
        level=level,
        replicas=replicas,
        say=say,
    )
    if as_json:
        print_json(report)
    else:
        print_devices(report, console(full=full), full)
    if page:
        from trainyard.report.numerics import numerics_page

        for device in report.devices:
            path = page_path(page, device.device, len(report.devices))
            numerics_page.write(device.comparison, path)
            say(f"wrote {path}")
    context.exit(report.exit_code)
