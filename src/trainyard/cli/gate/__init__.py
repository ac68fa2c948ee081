"""`trainyard gate HEAD --base BASE`, and its modes as sub-commands, each imported when it runs."""

from __future__ import annotations

from importlib import import_module

import click

MODES = {
    "compare": "Is HEAD slower than BASE? What `trainyard gate HEAD --base BASE` does.",
    "run": "The same, with runs made here in turns: JOB.toml or a script, with the code of two revisions.",
    "bisect": "Which commit made it slower: the same test at each step.",
    "self-check": "What this machine's own noise is, and how small a slowdown it can show.",
    "convergence": "Does HEAD learn what BASE does? Loss curves of runs of the same seeds.",
}


class GateGroup(click.Group):
    """What is no mode is a run's name, and is compared."""

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
    """Is it slower, since when, and which account did it: with error rates that are true."""
