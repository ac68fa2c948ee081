"""Options of the commands that record a training."""

from __future__ import annotations

import click

steps_option = click.option(
    "--steps", metavar="A-B", default="0-2", show_default=True, help="Training steps to record, from 0."
)
level_option = click.option(
    "--level",
    type=click.Choice(["operations", "modules", "steps"]),
    default="operations",
    show_default=True,
    help="Operations and modules; modules only; or gradients, weights and optimizer state only.",
)
