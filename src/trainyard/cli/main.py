"""`trainyard`: finds the command, and is the one place that turns an error into words and an exit code.

Imports click alone, so that `--help` and `--version` answer at once; a command's module is loaded when it runs.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

import click

import trainyard
from trainyard.cli.support.output import ReaderGone, guarded, print_json, say
from trainyard.errors import BadInput, EnvironmentFailed, TrainyardError, nearest

_INTERRUPTED = 130
_BAD_USAGE = "bad-usage"


class _Place(NamedTuple):
    module: str
    help: str


COMMANDS = {
    "demo": _Place("demo", "A small real trace that comes along: its ledger and its page, without torch."),
    "run": _Place("run", "Run a job on this machine: train, time, profile, book, record."),
    "plan": _Place("plan", "Split a model over a cluster: the best layouts, their time, memory, days and dollars."),
    "probe": _Place("probe", "How fast this machine is, as a planner needs to know; or as its own runs say."),
    "trace": _Place("trace", "Profiler files of one or many ranks: where every nanosecond went."),
    "diff": _Place("diff", "Two runs or traces: what changed, account by account."),
    "gate": _Place("gate", "Is it slower, and which account did it: with error rates that are true."),
    "history": _Place("history", "Since when: change points over a job's stored runs, or over any series."),
    "numerics": _Place("numerics", "Is it still the same training? Parity of layouts with one process."),
    "report": _Place("report", "A run or trace as a page, spreadsheet, Markdown or Perfetto archive."),
    "runs": _Place("runs", "List, show, tag, delete, push and pull stored runs."),
}


class Commands(click.Group):
    """A group whose commands are imported one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return import_module(f"trainyard.cli.{COMMANDS[cmd_name].module}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.help) for name, place in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}. {nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(trainyard.__version__, prog_name="trainyard")
def cli() -> None:
    """Where does a training step's time go? Every nanosecond of it, in one ledger.

    Exit codes: 0 good, 1 worse, 2 bad input, 3 not enough evidence, 4 the environment failed,
    70 an error of ours, 130 interrupted. Data goes to stdout, talk to stderr.
    """


def main() -> None:
    raise SystemExit(answer(sys.argv[1:]))


def answer(args: list[str]) -> int:
    """Runs the command line `args`; the exit code. Data that cannot be written to stdout is a failure of the
    environment, and so are messages that cannot be written to stderr, once the command has run to its end.

    With `--json`, an error is printed to stdout too, as a document of its own, unless there is one already."""
    with guarded() as (data, messages):
        errors: list[dict[str, object]] = []
        code = _exit_code(lambda: _invoke(args), errors)
        if errors and not data.written and "--json" in args[: args.index("--") if "--" in args else None]:
            code = _exit_code(lambda: print_json({"schema": "trainyard/error/1", **errors[0]}), errors) or code
        code = _exit_code(data.flush, errors) or code
        return code or (EnvironmentFailed.exit_code if data.failed or messages.failed else 0)


def _invoke(args: list[str]) -> None:
    with cli.make_context("trainyard", args) as context:
        cli.invoke(context)


def _exit_code(action: Callable[[], None], errors: list[dict[str, object]]) -> int:
    """Turns the error that `action` raises into a message and an exit code, and appends it to `errors` as data."""

    def report(code: str, exit_code: int, message: str, next_step: str = "") -> int:
        from trainyard.redact import redact

        texts = {"message": redact(message), "next_step": redact(next_step)}
        errors.append({"code": code, "exit_code": exit_code, **texts})
        return exit_code

    try:
        action()
    except ReaderGone:
        return 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, click.Abort) as interrupt:
        _say(" ".join(["interrupted.", *getattr(interrupt, "__notes__", ())]))
        return _INTERRUPTED
    except click.ClickException as error:
        _say(_usage(error) + f"error [{_BAD_USAGE}]: {error.format_message()}")
        return report(_BAD_USAGE, BadInput.exit_code, error.format_message())
    except TrainyardError as error:
        _say(f"error [{error.code}]: {error.says}", error.next_step)
        return report(error.code, error.exit_code, error.says, error.next_step)
    except Exception as error:
        if os.environ.get("TRAINYARD_DEBUG") == "1":
            say(traceback.format_exc())
        says = f"{type(error).__name__}: {error}".splitlines()[0]
        _say(
            f"error [{TrainyardError.code}]: {says}",
            "This is a bug in trainyard: please report it. TRAINYARD_DEBUG=1 prints the traceback.",
        )
        return report(TrainyardError.code, TrainyardError.exit_code, says)
    return 0


def _usage(error: click.ClickException) -> str:
    """The command's usage and how to get its help, as click shows them before an error in the command line."""
    shown = io.StringIO()
    error.show(shown)
    return shown.getvalue().removesuffix(f"Error: {error.format_message()}\n")


def _say(what: str, next_step: str = "") -> None:
    """What is wrong and what to do now."""
    say(what + (f"\n       {next_step}" if next_step else ""))


if __name__ == "__main__":
    main()
