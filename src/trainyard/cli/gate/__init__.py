"""`trainyard gate HEAD --base BASE`, and its modes as sub-commands, which are imported when they run."""

from __future__ import annotations

from importlib import import_module

import click

MODES = {
    "compare": "Test whether stored runs of HEAD are slower than those of BASE (the default mode).",
    "run": "Run a job or script with the code of two revisions, interleaved, and compare the runs.",
    "bisect": "Find the commit that caused a slowdown, with the same test at each step.",
    "self-check": "Measure this machine's noise, and the smallest slowdown that can be detected on it.",
    "convergence": "Compare the loss curves of HEAD and BASE, for runs with the same seeds.",
}


class GateGroup(click.Group):
    """A group that passes arguments that are not a mode to `compare`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(MODES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MODES:
            return None
        return import_module(f"trainyard.cli.gate.{cmd_name.replace('-', '_')}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Modes"):
            formatter.write_dl(list(MODES.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in MODES and args[0] not in ("-h", "--help"):
            args = ["compare", *args]
        return super().parse_args(ctx, args)


@click.group(cls=GateGroup)
def command() -> None:
    """Test for a slowdown with known error rates, and name the account that caused it."""
