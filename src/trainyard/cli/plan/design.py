"""`trainyard plan design`: the gain of each change of a machine in a suite of trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from trainyard.cli.plan.plan_options import BATCH, DEVICES, FRAMEWORK, MACHINE, SEQ_LEN
from trainyard.cli.support.checked_options import CheckedOptions
from trainyard.cli.support.pipes import InputFile


@click.command(cls=CheckedOptions)
@MACHINE
@click.option("--model", "models", multiple=True, metavar="MODEL", type=InputFile(),
              help="A training of the suite, or a model as for plan; repeatable. Default: the suite.")  # fmt: skip
@DEVICES
@BATCH
@SEQ_LEN
@click.option("--change", "changes", multiple=True, metavar="NAME=FACTOR",
              help="An improvement by a factor, e.g. inter-node=2; repeatable. Default: all, by 2.")  # fmt: skip
@click.option("--price-change", "price_changes", multiple=True, metavar="NAME=PERCENT",
              help="How much more a device costs with the change, or with all; repeatable.")  # fmt: skip
@FRAMEWORK
@click.option("--out", type=click.Path(path_type=Path), help="Write the table as a picture, an SVG file.")
@click.option("--full", is_flag=True, help="Also print the layouts that become the fastest.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def command(
    machine: str, models: tuple[str, ...], devices: int | None, batch: int | None, seq_len: int | None,
    changes: tuple[str, ...], price_changes: tuple[str, ...],
    framework: Literal["", "trainyard", "megatron", "torchtitan", "deepspeed"], out: Path | None, full: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Compare hypothetical designs of a machine: how much faster each change makes the steps of a suite of trainings.

    Changes are matmul, memory-bandwidth, memory-capacity, intra-node, inter-node (the links), node-size (devices on the
    links of a node), latency (of links) and host-time (of the host and of launches); the last two are divided by the
    factor. The fastest layout is searched again for each change. The suite is llama3-8b, llama3-70b, deepseek-v3,
    llama3-8b-128k (long sequences) and flux1-dev; a model outside it needs --devices, --batch and --seq-len.

    Exit codes: 0 at least one training fits the machine, 2 bad input, or no training fits.
    """
    from trainyard import api
    from trainyard.cli.plan.print_designs import check_picture, print_designs
    from trainyard.cli.support.output import busy

    check_picture(out)
    result = api.compare_designs(
        models, machine=machine, devices=devices, batch=batch, seq_len=seq_len, changes=changes,
        price_changes=price_changes, framework=framework, progress=busy,
    )  # fmt: skip
    print_designs(result, out, full=full, as_json=as_json)
