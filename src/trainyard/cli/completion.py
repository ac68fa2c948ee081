"""`trainyard completion`."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from trainyard.cli.support.output import echo

_SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL: commands, modes, options and paths complete with the tab key.

    For bash, add to ~/.bashrc: eval "$(trainyard completion bash)". For zsh, the same with zsh in ~/.zshrc. For fish:
    trainyard completion fish > ~/.config/fish/completions/trainyard.fish
    """
    echo(_SHELLS[shell](context.find_root().command, {}, "trainyard", "_TRAINYARD_COMPLETE").source())
