"""`trainyard plan MODEL`: search the layouts of a model on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from trainyard.cli.plan.plan_options import (
    BATCH,
    DEVICES,
    FIX,
    FRAMEWORK,
    FULL,
    JSON,
    OUT,
    SEQ_LEN,
    TOKENS,
    fabric,
    fine_tuning,
    run_costs,
    training_settings,
)
from trainyard.cli.support.checked_options import CheckedOptions
from trainyard.cli.support.pipes import InputFile


@click.command(cls=CheckedOptions)
@click.argument("model", required=False, type=InputFile())
@click.option("--machine", metavar="NAME|FILE", default="", type=InputFile(),
              help="A machine name or TOML file, or the parts of a mixed cluster: h100:64,a100:128.")  # fmt: skip
@DEVICES
@BATCH
@SEQ_LEN
@TOKENS
@run_costs
@fine_tuning
@training_settings
@fabric
@FIX
@FRAMEWORK
@OUT
@FULL
@JSON
def command(
    model: str | None, machine: str, devices: int | None, batch: int | None, seq_len: int | None,
    tokens: float | None, fix: tuple[str, ...], framework: str, out: Path | None, full: bool, as_json: bool,
    fine_tune: Literal["sft", "lora", "qlora"] | None, lora_rank: int | None,
    lora_targets: Literal["all", "attention", "mlp"] | None, padding: float | None,
    recompute_modules: str | None, expert_imbalance: float | None, dispatch_dtype: Literal["float8"] | None,
    overlap_dispatch: bool, moments_dtype: Literal["bfloat16", "float8"] | None, chunked_loss: bool,
    offload_activations: int | None, optimizer_in_backward: bool, optimizer: Literal["adamw", "muon"],
    oversubscription: float | None, pod_nodes: int | None, **costs: float | None,
) -> None:  # fmt: skip
    """Find the fastest layouts of MODEL that fit on the devices, with time, memory, days and dollars.

    MODEL is a name (llama3-70b), a Hugging Face config.json, a model's TOML file, or a training configuration with its
    own model and batch: a job file, a torchtitan TOML file or Megatron arguments. Every layout that divides devices,
    heads, layers and batch is searched.

    Exit codes: 0 at least one layout fits, 2 bad input, or no layout fits.
    """
    from trainyard.api.fabric_options import Fabric
    from trainyard.api.fine_tune import FineTune
    from trainyard.api.plan_layouts import PlanOptions, plan_layouts
    from trainyard.api.run_costs import RunCosts
    from trainyard.api.training_options import TrainingOptions
    from trainyard.cli.plan.print_plans import check_out, print_plans
    from trainyard.cli.support.output import busy

    check_out(out, model, machine)
    options = PlanOptions(
        machine=machine, devices=devices, batch=batch, seq_len=seq_len, tokens=tokens, costs=RunCosts(**costs), fix=fix,
        fine_tune=FineTune(
            method=fine_tune or "", lora_rank=lora_rank, lora_targets=lora_targets, padding=padding
        ),
        training=TrainingOptions(
            recompute_modules=recompute_modules, expert_imbalance=expert_imbalance, dispatch_dtype=dispatch_dtype,
            overlap_dispatch=overlap_dispatch, moments_dtype=moments_dtype, chunked_loss=chunked_loss,
            offload_activations=offload_activations, optimizer_in_backward=optimizer_in_backward,
            optimizer=optimizer,
        ),
        fabric=Fabric(oversubscription=oversubscription, pod_nodes=pod_nodes),
        front=as_json, scaling=full or as_json, bubble=full or as_json, progress=busy,
    )  # fmt: skip
    print_plans(plan_layouts(model, framework, options), out, full, as_json, machine)
