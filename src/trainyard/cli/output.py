"""Where commands print: data to stdout, talk to stderr."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

_PIPED_WIDTH = 120


def console() -> Console:
    """Rich's console on stdout: plain and wide when piped, so that a redirected table is whole."""
    from rich.console import Console

    class Whole(Console):
        def on_broken_pipe(self) -> None:
            """The reader has gone: `main` knows what that means."""
            raise BrokenPipeError

    out = Whole(highlight=False)
    if out.is_terminal:
        return out
    return Whole(highlight=False, width=int(os.environ.get("COLUMNS") or _PIPED_WIDTH))


def say(text: str) -> None:
    """To stderr; names out of files must not steer the terminal."""
    click.echo("".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text), err=True)


def busy(text: str) -> AbstractContextManager[object]:
    """While it lasts, on a terminal, what takes so long; nothing is left of it."""
    from rich.console import Console

    return Console(stderr=True).status(text) if sys.stderr.isatty() else nullcontext()


def print_json(value: Any) -> None:
    """What JSON has no kind for is text; NaN and Infinity are too."""
    import msgspec

    click.echo(msgspec.json.encode(value, enc_hook=str))
