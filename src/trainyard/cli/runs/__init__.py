"""`trainyard runs`: the stored runs, and its modes."""

from __future__ import annotations

from trainyard.cli.support.default_group import DefaultGroup, Mode

command = DefaultGroup(
    name="runs",
    help="List, show, watch, join, tag, delete, push and pull stored runs.",
    default="trainyard.cli.runs.list_runs",
    modes={
        "show": Mode("trainyard.cli.runs.show", "Show a run: its figures, its mean ledger and its provenance."),
        "watch": Mode("trainyard.cli.runs.watch", "Follow a run that is going: steps, losses, incidents, ledger."),
        "join": Mode("trainyard.cli.runs.join", "Make one run of the parts that the nodes of a job recorded."),
        "tag": Mode("trainyard.cli.runs.tag", "Give a run a name."),
        "untag": Mode("trainyard.cli.runs.untag", "Remove a name from the run that has it."),
        "export-weights": Mode("trainyard.cli.runs.export_weights", "Write the weights of a run as safetensors."),
        "push": Mode("trainyard.cli.runs.push", "Copy runs to a folder or a URL."),
        "pull": Mode("trainyard.cli.runs.pull", "Copy runs from a folder or a URL."),
        "delete": Mode("trainyard.cli.runs.delete", "Delete a run's folder."),
    },
)
