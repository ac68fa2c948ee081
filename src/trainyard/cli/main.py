"""`trainyard`: finds the command, and is the one place that turns an error into words and an exit code.

Imports click alone, so that `--help` and `--version` answer at once; a command's module is loaded when it runs.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from typing import NamedTuple

import click

import trainyard
from trainyard.cli.output import say
from trainyard.errors import BadInput, TrainyardError, nearest

_OURS = 70
_INTERRUPTED = 130


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
    """Runs the command line `args`; the exit code."""
    try:
        with cli.make_context("trainyard", args) as context:
            cli.invoke(context)
            sys.stdout.flush()
        return 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, click.Abort) as interrupt:
        _say(" ".join(["interrupted.", *getattr(interrupt, "__notes__", ())]))
        return _INTERRUPTED
    except click.ClickException as error:
        error.show()
        return BadInput.exit_code
    except TrainyardError as error:
        _say(f"error: {error.says}", error.next_step)
        return error.exit_code
    except BrokenPipeError:
        # The reader has gone: what is still buffered must not be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("TRAINYARD_DEBUG") == "1":
            traceback.print_exc()
        says = f"{type(error).__name__}: {error}".splitlines()[0]
        _say(f"error: {says}", "This is a fault of trainyard: please report it. TRAINYARD_DEBUG=1 shows where.")
        return _OURS


def _say(what: str, next_step: str = "") -> None:
    """What is wrong and what to do now."""
    say(what + (f"\n       {next_step}" if next_step else ""))


if __name__ == "__main__":
    main()
