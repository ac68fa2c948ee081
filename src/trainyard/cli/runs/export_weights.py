"""`trainyard runs export-weights RUN --out FILE`."""

from __future__ import annotations

from pathlib import Path

import click

from trainyard.cli.runs.options import JSON


@click.command()
@click.argument("run")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The safetensors file to write.")
@click.option(
    "--step", type=click.IntRange(min=1), help="Use the checkpoint after this step; default: the last good one."
)
@JSON
def command(run: str, out: Path, step: int | None, as_json: bool) -> None:
    """Write the weights of a run's last good checkpoint as safetensors, unsharded, with the model's parameter names."""
    from trainyard import units
    from trainyard.cli.support.output import print_json, say
    from trainyard.store.store import Store
    from trainyard.store.stored_changes import ExportedWeights
    from trainyard.train.checkpoint.export_weights import export

    folder = Store(say=say).find(run)
    exported = export(folder, out, None if step is None else step - 1)
    for rejected in exported.rejected:
        say(rejected)
    if as_json:
        print_json(ExportedWeights(run=folder.name, out=str(out), **exported._asdict()))
    else:
        size, tensors = units.show_size(exported.bytes), units.counted(exported.tensors, "tensor")
        say(f"wrote {out}: {tensors}, {size}, from the checkpoint after step {exported.step + 1}")
