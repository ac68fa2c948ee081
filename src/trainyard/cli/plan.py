"""`trainyard plan`."""

from __future__ import annotations

from pathlib import Path

import click

from trainyard.cli.support.pipes import InputFile


@click.command()
@click.argument("model", required=False, type=InputFile())
@click.option("--machine", metavar="NAME|FILE", default="", type=InputFile(),
              help="A machine name or TOML file, or the parts of a mixed cluster: h100:64,a100:128.")  # fmt: skip
@click.option("--devices", type=click.IntRange(min=1), help="Number of devices; default: the machine's or the job's.")
@click.option("--batch", type=click.IntRange(min=1), help="Global batch: sequences (or images) per step.")
@click.option("--seq-len", type=click.IntRange(min=1), help="Tokens per sequence.")
@click.option("--tokens", type=float, default=0.0,
              help="Training budget in tokens (or images): adds days, dollars, energy and scaling.")  # fmt: skip
@click.option(
    "--fix",
    multiple=True,
    metavar="AXIS=N",
    help="Only layouts with this value, e.g. tp=8 or dtype=float8; repeatable.",
)
@click.option("--for", "framework", default="", metavar="NAME",
              help="Framework to plan for: trainyard (default), megatron, torchtitan, deepspeed.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Write the launch configuration of the best layout.")
@click.option("--check", is_flag=False, flag_value="", metavar="[FILE]", type=InputFile(),
              help="Also evaluate a configuration (FILE, or MODEL) as it is; listed first.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the plans as JSON.")
def command(
    model: str | None, machine: str, devices: int | None, batch: int | None, seq_len: int | None, tokens: float,
    fix: tuple[str, ...], framework: str, out: Path | None, check: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Find the fastest layouts of MODEL that fit on the devices, with time, memory, days and dollars.

    MODEL is a name (llama3-70b), a Hugging Face config.json, a model's TOML file, or a training configuration with its
    own model and batch: a job file, a torchtitan TOML file or Megatron arguments. A DeepSpeed JSON file has no model:
    trainyard plan llama3-8b --check ds_config.json. Every layout that divides devices, heads, layers and batch is
    searched. The memory of a checked job file is counted by a simulated run.
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
        say(f"Ignored, as if they cost nothing: {listed[:most]}{'...' if len(listed) > most else ''}.")
    for note in (*(f"Evaluated differently: {key}." for key in plans.otherwise), *plans.notes):
        say(note)
    if out is not None:
        launch = launch_file(plans)
        write_text(launch.text, out)
        say(f"wrote {out}: {launch.layout}")
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
