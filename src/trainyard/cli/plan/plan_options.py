"""Options that the modes of `plan` share."""

from __future__ import annotations

from pathlib import Path

import click

from trainyard.cli.support.pipes import InputFile

MACHINE = click.option(
    "--machine", metavar="NAME|FILE", default="", type=InputFile(), help="A machine name or TOML file."
)
DEVICES = click.option(
    "--devices", type=click.IntRange(min=1), help="Number of devices; default: the machine's or the job's."
)
BATCH = click.option("--batch", type=click.IntRange(min=1), help="Global batch: sequences (or images) per step.")
SEQ_LEN = click.option("--seq-len", type=click.IntRange(min=1), help="Tokens per sequence.")
TOKENS = click.option(
    "--tokens",
    type=float,
    default=0.0,
    help="Training budget in tokens (or images): adds days, dollars, energy and scaling.",
)
FIX = click.option(
    "--fix",
    multiple=True,
    metavar="AXIS=N",
    help="Search only layouts with this value, e.g. tp=8 or dtype=float8; repeatable.",
)
OUT = click.option(
    "--out", type=click.Path(path_type=Path), help="Write the launch configuration of the recommended layout."
)
FULL = click.option("--full", is_flag=True, help="Print all layouts, accounts, parts of memory, and scaling.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print the plans as JSON.")
