"""`trainyard launch JOB --on LAUNCHER`, and its modes."""

from __future__ import annotations

from trainyard.cli.support.default_group import DefaultGroup, Mode

command = DefaultGroup(
    name="launch",
    help="Start a job on a cluster with Slurm, Ray, Kubernetes or SSH, and follow it.",
    default="trainyard.cli.launch.submit",
    modes={
        "render": Mode("trainyard.cli.launch.render", "Print exactly what would be submitted, without submitting it."),
        "status": Mode("trainyard.cli.launch.status", "Show the status of a launch, or list all launches."),
        "logs": Mode("trainyard.cli.launch.logs", "Print the end of the logs of a launch."),
        "cancel": Mode("trainyard.cli.launch.cancel", "End a launch, at once or after it has saved its state."),
    },
)
