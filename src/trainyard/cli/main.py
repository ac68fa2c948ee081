"""The `trainyard` command: dispatches to the sub-commands, and turns errors into messages and exit codes.

Imports only click, so that `--help` and `--version` are fast; a command's module is imported when it runs.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import click

import trainyard
from trainyard.cli.support.output import ReaderGone, echo, guarded, print_json, say, say_error
from trainyard.errors import BadInput, EnvironmentFailed, TrainyardError, nearest

if TYPE_CHECKING:
    from trainyard.error_report import ErrorReport

_INTERRUPTED_EXIT = 130
"""Exit code after Ctrl-C, as shells have it."""
_BAD_USAGE = "bad-usage"
"""Error code of a wrong command line."""


class _Command(NamedTuple):
    """A command: the module of trainyard.cli that has it, and its line in the help."""

    module: str
    help: str


TASKS = {
    "Measure and diagnose": {
        "demo": _Command("demo", "Show the bundled sample trace: its ledger and its HTML page, without torch."),
        "trace": _Command("trace", "Analyse profiler files of one or more ranks: where every nanosecond went."),
        "run": _Command("run", "Run a job or a training script on this machine: time, profile and record it."),
        "launch": _Command("launch", "Start a job on a cluster with Slurm, Ray, Kubernetes or SSH, and follow it."),
    },
    "Plan": {
        "plan": _Command("plan", "Find the fastest layouts of a model on a cluster: time, memory, days and dollars."),
        "probe": _Command("probe", "Benchmark this machine for the planner, or fit its constants to stored runs."),
    },
    "Compare": {
        "diff": _Command("diff", "Compare two runs or traces, account by account."),
        "gate": _Command("gate", "Test for a slowdown with known error rates, and name the account that caused it."),
        "history": _Command("history", "Find when performance changed, over a job's stored runs or any series."),
        "numerics": _Command(
            "numerics", "Find numerical faults: compare recorded tensors, or layouts with one process."
        ),
    },
    "Keep and share": {
        "report": _Command("report", "Write a report on a run or trace: HTML, Markdown, CSV, Excel, Perfetto."),
        "runs": _Command("runs", "List, show, watch, tag, delete, push and pull stored runs."),
        "serve": _Command("serve", "Serve the stored runs to browsers: list, reports, comparisons, histories, plans."),
        "completion": _Command("completion", "Print the shell's completion script: bash, zsh or fish."),
    },
}
COMMANDS = {name: command for commands in TASKS.values() for name, command in commands.items()}


class Commands(click.Group):
    """A group whose commands are imported one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the module of a command and returns the command; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        return import_module(f"trainyard.cli.{COMMANDS[cmd_name].module}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands into the help, in sections by task."""
        for task, commands in TASKS.items():
            with formatter.section(task):
                formatter.write_dl([(name, command.help) for name, command in commands.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it; an unknown command fails with the name that is nearest to it."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}. {nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(trainyard.__version__, prog_name="trainyard")
@click.pass_context
def cli(context: click.Context) -> None:
    """Plan, run, profile, diagnose and gate the training of large models.

    Every nanosecond of a training step is attributed to exactly one account of a ledger.

    Exit codes: 0 success, 1 worse, 2 bad input, 3 not enough evidence, 4 the environment failed, 70 internal error,
    130 interrupted. Data goes to stdout, messages to stderr.
    """
    if context.invoked_subcommand is None:
        echo(context.get_help())


def main() -> None:
    """The entry point of the `trainyard` program: runs its command line and exits with the exit code."""
    if "_TRAINYARD_COMPLETE" in os.environ:
        cli(prog_name="trainyard")  # answers the shell, and exits
    raise SystemExit(answer(sys.argv[1:]))


def answer(args: list[str]) -> int:
    """Run the command line `args` and return the exit code.

    A failed write to stdout is a failure of the environment; so is one to stderr, after the command has run to its end.
    With `--json` (before a `--`, after which the words are another program's), an error is also printed to stdout as a
    JSON document, unless data has been printed already."""
    with guarded() as (data, messages):
        errors: list[ErrorReport] = []
        code = _exit_code(lambda: _invoke(args), errors)
        if errors and not data.written and "--json" in args[: args.index("--") if "--" in args else None]:
            code = _exit_code(lambda: print_json(errors[0]), errors) or code
        code = _exit_code(data.flush, errors) or code
        return code or (EnvironmentFailed.exit_code if data.failed or messages.failed else 0)


def exit_code_of(action: Callable[[], None]) -> int:
    """Run `action` for a program other than `trainyard`, and return its exit code; errors are printed to stderr."""
    with guarded() as (data, messages):
        code = _exit_code(action, [])
        code = _exit_code(data.flush, []) or code
        return code or (EnvironmentFailed.exit_code if data.failed or messages.failed else 0)


def _invoke(args: list[str]) -> None:
    """Parses the command line and runs its command."""
    with cli.make_context("trainyard", args) as context:
        cli.invoke(context)


def _exit_code(action: Callable[[], None], errors: list[ErrorReport]) -> int:
    """Run `action`; turn an error into a message and an exit code, and append it to `errors`."""

    def report(code: str, exit_code: int, message: str, next_step: str = "") -> int:
        """Keeps an error for the JSON document, with secrets redacted, and returns its exit code."""
        from trainyard.error_report import ErrorReport
        from trainyard.redact import redact_message

        redacted = ErrorReport(
            code=code, exit_code=exit_code, message=redact_message(message), next_step=redact_message(next_step)
        )
        errors.append(redacted)
        return exit_code

    try:
        action()
    except ReaderGone:
        return 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, click.Abort) as interrupt:
        say_error(" ".join(["interrupted.", *getattr(interrupt, "__notes__", ())]))
        return _INTERRUPTED_EXIT
    except click.ClickException as error:
        say_error(_usage(error) + f"error [{_BAD_USAGE}]: {error.format_message()}")
        return report(_BAD_USAGE, BadInput.exit_code, error.format_message())
    except TrainyardError as error:
        say_error(f"error [{error.code}]: {error.message}", error.next_step)
        return report(error.code, error.exit_code, error.message, error.next_step)
    except Exception as error:
        if os.environ.get("TRAINYARD_DEBUG") == "1":
            say(traceback.format_exc())
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        say_error(
            f"error [{TrainyardError.code}]: {message}",
            "This is a bug in trainyard: please report it. TRAINYARD_DEBUG=1 prints the traceback.",
        )
        return report(TrainyardError.code, TrainyardError.exit_code, message)
    return 0


def _usage(error: click.ClickException) -> str:
    """The usage of the command and a hint to its help, as click prints them before a usage error."""
    printed = io.StringIO()
    error.show(printed)
    return printed.getvalue().removesuffix(f"Error: {error.format_message()}\n")


if __name__ == "__main__":
    main()
