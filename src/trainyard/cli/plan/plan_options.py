"""Options that the modes of `plan` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from trainyard.cli.plan.number_types import Budget, Count
from trainyard.cli.support.pipes import InputFile
from trainyard.errors import BadInput

MACHINE = click.option(
    "--machine", metavar="NAME|FILE", default="", type=InputFile(), help="A machine name or TOML file."
)
DEVICES = click.option("--devices", type=Count(), help="Number of devices; default: the machine's or the job's.")
BATCH = click.option("--batch", type=Count(), help="Global batch: sequences (or images) per step.")
SEQ_LEN = click.option("--seq-len", type=Count(), help="Tokens per sequence.")
TOKENS = click.option(
    "--tokens",
    type=Budget(),
    help="Training budget in tokens (or images): adds days, dollars, energy and scaling.",
)
_COSTS = (
    click.option("--mtbf-hours", type=float, metavar="HOURS",
                 help="Mean time between failures of one device, with --tokens."),
    click.option("--restart-minutes", type=float, metavar="MINUTES",
                 help="Time from a failure until all ranks train again, with --tokens."),
    click.option("--checkpoint-seconds", type=float, metavar="SECONDS",
                 help="Time that a checkpoint stops the training, with --tokens."),
    click.option("--storage-bandwidth", type=float, metavar="GB/S",
                 help="Bandwidth to the checkpoint store for the whole job; sets the time of a checkpoint."),
    click.option("--power-cap", type=float, metavar="WATTS",
                 help="Power limit of each device: bounds its effect on days, dollars and energy."),
)  # fmt: skip
_FINE_TUNING = (
    click.option("--fine-tune", type=click.Choice(["sft", "lora", "qlora"]),
                 help="Fine-tune: all weights (sft), adapters (lora), or adapters of 4-bit weights (qlora)."),
    click.option("--lora-rank", type=int, metavar="N", help="Rank of the adapters; default: 16."),
    click.option("--lora-targets", type=click.Choice(["all", "attention", "mlp"]),
                 help="Matrices of a layer with adapters; default: all."),
    click.option("--padding", type=float, metavar="SHARE",
                 help="Share of the tokens that are padding, from 0 to 1, with --fine-tune."),
)  # fmt: skip
_TRAINING = (
    click.option("--recompute-modules", metavar="NAMES",
                 help="Modules that selective activation checkpointing recomputes, as layernorm,moe_act (Megatron)."),
    click.option("--expert-imbalance", type=float, metavar="RATIO",
                 help="Tokens of the rank whose experts get most, over the mean; default: 1."),
    click.option("--dispatch-dtype", type=click.Choice(["float8"]),
                 help="Format of tokens on their way to experts; default: the compute dtype."),
    click.option("--overlap-dispatch", is_flag=True,
                 help="Dispatch tokens during the compute of another micro-batch (Megatron)."),
    click.option("--moments-dtype", type=click.Choice(["bfloat16", "float8"]),
                 help="Format of AdamW's moments; default: float32."),
    click.option("--chunked-loss", is_flag=True,
                 help="Compute the head and the loss in chunks, so that all logits never exist."),
    click.option("--offload-activations", type=click.IntRange(min=1), metavar="LAYERS",
                 help="Layers whose activations are in host memory until their backward pass."),
    click.option("--optimizer-in-backward", is_flag=True,
                 help="Update weights, and free their gradients, in the backward pass (torchtitan)."),
    click.option("--optimizer", type=click.Choice(["adamw", "muon"]), default="adamw",
                 help="Optimizer of the matrices of layers (muon: Megatron); default: adamw."),
)  # fmt: skip
_FABRIC = (
    click.option("--oversubscription", type=float, metavar="RATIO",
                 help="Bandwidth into the switches of a pod over that of their uplinks: 4 for 4:1."),
    click.option("--pod-nodes", type=int, metavar="N",
                 help="Nodes of a pod: those below one switch, or one switch a rail; with --oversubscription."),
)  # fmt: skip
_Command = TypeVar("_Command", bound=Callable[..., object])


def check_out(out: Path | None) -> None:
    """Raises `BadInput` if `out` is a file that exists: it may be the user's own. Pipes and devices, as /dev/stdout,
    are not replaced but written to."""
    if out is not None and out.is_file():
        raise BadInput(f"--out {out}: the file exists.", "Pass another file, or remove this one first.")


def run_costs(command: _Command) -> _Command:
    """Adds the options of `RunCosts`, each under the name of its field."""
    for option in reversed(_COSTS):
        command = option(command)
    return command


def fine_tuning(command: _Command) -> _Command:
    """Adds the options of `FineTune`."""
    for option in reversed(_FINE_TUNING):
        command = option(command)
    return command


def training_settings(command: _Command) -> _Command:
    """Adds the options of `TrainingOptions`."""
    for option in reversed(_TRAINING):
        command = option(command)
    return command


def fabric(command: _Command) -> _Command:
    """Adds the options of `Fabric`, each under the name of its field."""
    for option in reversed(_FABRIC):
        command = option(command)
    return command


FIX = click.option(
    "--fix",
    multiple=True,
    metavar="AXIS=N",
    help="Search only layouts with this value, e.g. tp=8 or dtype=float8; repeatable.",
)
FRAMEWORK = click.option(
    "--for", "framework", default="", metavar="NAME",
    help="Framework to plan for: trainyard (default), megatron, torchtitan, deepspeed.",
)  # fmt: skip
OUT = click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write the launch configuration of the recommended layout to a new file.",
)
FULL = click.option("--full", is_flag=True, help="Print all layouts, accounts, parts of memory, and scaling.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print the plans as JSON.")
