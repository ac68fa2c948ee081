"""`trainyard probe`, and its mode."""

from __future__ import annotations

from trainyard.cli.support.default_group import DefaultGroup, Mode

command = DefaultGroup(
    name="probe",
    help="Benchmark this machine for the planner, or fit its constants to stored runs.",
    default="trainyard.cli.probe.measure",
    modes={"fit": Mode("trainyard.cli.probe.fit", "Fit a machine's constants to stored runs, account by account.")},
    replaced={"--machine": "fit RUN... --machine FILE"},
)
