"""`trainyard plan`."""

from __future__ import annotations

from pathlib import Path

import click

from trainyard.cli.support.pipes import InputFile


@click.command()
@click.argument("model", required=False, type=InputFile())
@click.option("--machine", metavar="NAME|FILE", default="", type=InputFile(),
              help="A machine by name, or its TOML file; or parts of a cluster: h100:64,a100:128.")  # fmt: skip
@click.option("--devices", type=click.IntRange(min=1), help="How many; default: those of the machine or of the job.")
@click.option("--batch", type=click.IntRange(min=1), help="Sequences, or pictures, a step, over all devices.")
@click.option("--seq-len", type=click.IntRange(min=1), help="Tokens a sequence.")
@click.option("--tokens", type=float, default=0.0,
              help="Or pictures, to train on in all: gives days, dollars, energy, what more devices buy.")  # fmt: skip
@click.option(
    "--fix", multiple=True, metavar="AXIS=N", help="Only layouts with this, as tp=8 or dtype=float8; may be repeated."
)
@click.option("--for", "framework", default="", metavar="NAME",
              help="Who runs it: trainyard (default), megatron, torchtitan, deepspeed.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Write what launches the best one.")
@click.option("--check", is_flag=False, flag_value="", metavar="[FILE]", type=InputFile(),
              help="A configuration as it is, first: FILE, or MODEL; a job's memory is counted by a run.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the plans as JSON.")
def command(
    model: str | None, machine: str, devices: int | None, batch: int | None, seq_len: int | None, tokens: float,
    fix: tuple[str, ...], framework: str, out: Path | None, check: str | None, as_json: bool,
) -> None:  # fmt: skip
    """How to split MODEL over many devices: the fastest layouts that fit, with time, memory, days and dollars.

    MODEL is a name (llama3-70b), a Hugging Face config.json, a model's TOML file, or a configuration, whose own model
    and batch are planned for: a job file, torchtitan's TOML, Megatron's arguments. DeepSpeed's JSON names no model:
    plan llama3-8b --check ds_config.json. Every layout that divides devices, heads, layers and batch is tried.
    """
    from trainyard.api.plan_layouts import plan_layouts
    from trainyard.cli.support.output import busy, console, print_json, say
    from trainyard.formats.atomic import write_text
    from trainyard.report.plans import hetero_tables, plan_tables
    from trainyard.report.plans.launch_files import launch_file
    from trainyard.report.render.terminal import print_table

    plans = plan_layouts(model, machine, devices, batch, seq_len, tokens, fix, framework, check, as_json, busy)
    if plans.passed_over:
        listed, most = ", ".join(plans.passed_over), 500
        say(f"Keys that are taken to cost nothing: {listed[:most]}{'...' if len(listed) > most else ''}.")
    for note in (*(f"Not as the configuration says: {key}." for key in plans.otherwise), *plans.notes):
        say(note)
    if out is not None:
        launch = launch_file(plans)
        write_text(launch.text, out)
        say(f"Written to {out}: {launch.layout}")
    if as_json:
        print_json(plans)
        return
    screen = console()
    screen.print(plans.step, markup=False)
    for table in (
        hetero_tables.layouts(plans), *hetero_tables.unlike(plans), *plan_tables.scaling(plans),
        plan_tables.ledger(plans.best.plan), plan_tables.memory(plans),
    ):  # fmt: skip
        screen.print()
        print_table(table, screen)
