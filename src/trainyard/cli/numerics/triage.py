"""`trainyard numerics triage`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("record")
@click.argument("again", required=False)
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    help="New folder: record the steps around the first fault of a stored run twice, and diagnose them.",
)
@click.option("--full", is_flag=True, help="Print every step, module and operation.")
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis as JSON.")
@click.pass_context
def command(
    context: click.Context, record: str, again: str | None, replay: Path | None, full: bool, as_json: bool
) -> None:
    """Diagnose a training with a spike of the loss, NaN, or other results in each run.

    RECORD is a stored run (id prefix, tag or folder) or the folder of a record. The losses of a run are examined for
    spikes and for the first that is not finite. The command that records the steps around it is printed; with --replay
    these steps are recorded twice.

    A record is the folder that `trainyard numerics record` wrote; its plain run is enough (--replicas 0). Record the
    steps around the spike, for example with --steps 118-124 and a script that resumes from a checkpoint.

    The first tensor that is not finite is named with its inputs; negative infinities of masks do not count. Loss,
    gradient norm and batch are listed for each step, and the modules whose gradients grow most.

    With AGAIN, a second record of the same command, operations are listed whose bits differ although their inputs do
    not, with the switch that makes each reproducible.

    A spike rises by more than 8 robust standard deviations of a step's change; the first 16 steps are not judged.

    Exit codes: 0 nothing found, 1 a spike, values that are not finite or runs that differ, 2 bad input, 3 undecided:
    a stored run with too few losses.
    """
    from trainyard import api
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.report.numerics.triage_terminal import print_triage

    triage = api.triage_numerics(record, again, replay=replay, say=say)
    if as_json:
        print_json(triage)
    else:
        print_triage(triage, console(full=full), full)
    context.exit(triage.exit_code)
