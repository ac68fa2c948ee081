"""A command with modes as sub-commands: `trainyard trace sql` is a mode, `trainyard trace PATH` the default."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from trainyard.errors import BadInput

_DEFAULT = ""
"""The name under which the group resolves its default command; no word of a command line is empty."""
_HELP = ("-h", "--help")
_LEAST_SIMILARITY = 0.65
"""Similarity from which a word is taken for a misspelt mode, 0 to 1 (difflib's ratio)."""


class Mode(NamedTuple):
    """A sub-command: the module that defines it as `command`, imported when it runs, and a line of help."""

    module: str
    help: str


class DefaultGroup(click.Group):
    """A group that passes a command line to its default command unless its first word names a mode.

    A path or a run named like a mode needs a prefix (`./sql`). If the default command refuses its input and a word of
    the command line resembles a mode, the error suggests that mode. `replaced`: options, or values of options, that
    the default command no longer has -> the arguments that replace them, which the usage error names.
    """

    def __init__(
        self, *, default: str, modes: Mapping[str, Mode], replaced: Mapping[str, str] | None = None, **attributes: Any
    ) -> None:
        super().__init__(**attributes)
        self.default, self.modes, self.replaced = default, modes, replaced or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.modes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a mode, or the default command for the name `_DEFAULT`; None for other names. Imports it."""
        if cmd_name == _DEFAULT:
            return self.default_command()
        return import_module(self.modes[cmd_name].module).command if cmd_name in self.modes else None

    def default_command(self) -> click.Command:
        """Imports the default command. Its usage shows the group's name."""
        command: click.Command = import_module(self.default).command
        command.context_class = _DefaultContext
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, but a command line that does not begin with a mode or `--help` is the default command's."""
        completing = ctx.resilient_parsing and not args  # of the first word by the shell
        if not completing and (not args or args[0] not in (*self.modes, *_HELP)):
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, and keeps the command line after the first word for `_words`, in click's dictionary of the
        context."""
        ctx.meta[__name__] = args[1:]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the mode; adds the mode to use instead, or a suggestion, to the message of a usage error or bad
        input."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if not (suggestion := self._replacement(ctx) or self._suggestion(ctx)):
                raise
            raise click.UsageError(f"{error.format_message().rstrip('.')}. {suggestion}", error.ctx) from error
        except BadInput as error:
            error.next_step = f"{error.next_step} {self._suggestion(ctx)}".strip()
            raise

    def _replacement(self, ctx: click.Context) -> str:
        """A sentence on what replaces an option or a value of the default's command line, or an empty string."""
        for word in _words(ctx):
            for part in word.partition("=")[::2]:
                if part in self.replaced:
                    return f"{part} is replaced by: {ctx.command_path} {self.replaced[part]}"
        return ""

    def _suggestion(self, ctx: click.Context) -> str:
        """A sentence on the mode that a word of the default's command line resembles, or an empty string."""
        from difflib import get_close_matches  # rarely needed, and slow to import

        for word in _words(ctx):
            if mode := get_close_matches(word, self.modes, n=1, cutoff=_LEAST_SIMILARITY):
                return f"For the mode {mode[0]}, pass it first: {ctx.command_path} {mode[0]}."
        return ""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completions of the first word: modes, and options or arguments of the default command."""
        default = self.default_command()
        context = _DefaultContext(default, info_name=_DEFAULT, parent=ctx)
        modes = [
            CompletionItem(name, help=mode.help) for name, mode in self.modes.items() if name.startswith(incomplete)
        ]
        arguments = [item for each in default.params[:1] for item in each.shell_complete(context, incomplete)]
        return [*modes, *default.shell_complete(context, incomplete), *arguments]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help of the default command, then the modes."""
        default = self.default_command()
        context = _DefaultContext(default, info_name=_DEFAULT, parent=ctx)
        default.format_usage(context, formatter)
        formatter.write_usage(ctx.command_path, "MODE [OPTIONS] [ARGS]...", prefix="       ")
        default.format_help_text(context, formatter)
        default.format_options(context, formatter)
        with formatter.section(f"Modes ({ctx.command_path} MODE --help)"):
            formatter.write_dl([(name, mode.help) for name, mode in self.modes.items()])


def _words(ctx: click.Context) -> list[str]:
    """The words of the command line up to `--`, if the default command was invoked; empty if a mode was."""
    if ctx.invoked_subcommand != _DEFAULT:
        return []
    words: list[str] = ctx.meta.get(__name__, [])
    return words[: words.index("--") if "--" in words else None]


class _DefaultContext(click.Context):
    """The context of a default command, whose path is the group's."""

    @property
    def command_path(self) -> str:
        return super().command_path.rstrip()
