"""Options that the gate's modes share. A function with (context, parameter, value) is click's callback of an option: it
checks the value and returns the value that the command gets."""

from __future__ import annotations

from typing import Any

import click

from trainyard import words
from trainyard.errors import BadInput


class Percent(click.ParamType):
    """`3%`, `3 %` or `0.03`."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The fraction written as `3%` or `0.03`: 0.03 for both. Raises `BadInput` for other text."""
        if isinstance(value, float):
            return value
        text, factor = (value.strip()[:-1], 0.01) if value.strip().endswith("%") else (value, 1.0)
        try:
            return float(text) * factor
        except ValueError:
            raise BadInput(f"{value!r} is not a percentage.", "Write 3% or 0.03.") from None


def _metrics(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Checks the metrics before any run is made, and returns them without duplicates. Raises `BadInput` for an unknown
    one."""
    for name in names:
        words.metric(name)
    return tuple(dict.fromkeys(names))


def _metric(context: click.Context, parameter: click.Parameter, name: str) -> str:
    """Checks a metric. Raises `BadInput` for an unknown one."""
    words.metric(name)
    return name


def _across(context: click.Context, parameter: click.Parameter, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Checks the kinds of differences between runs to allow. Raises `BadInput` for an unknown one."""
    from trainyard.compare.differences import check_kinds

    check_kinds(kinds)
    return kinds


def _target(context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    """Copies a job file that is a pipe to a file, which every run can read. `words`: a job file, or a command line."""
    from trainyard.cli.support.pipes import copy_pipe

    return (copy_pipe(words[0]),) if len(words) == 1 else words


def _form(context: click.Context, parameter: click.Parameter, form: str | None) -> str | None:
    """Checks `--format`. Raises `BadInput` for an unknown format, or if it is combined with `--json`."""
    from trainyard.report.gate.ci_formats import check_format

    if form and context.params.get("as_json"):
        raise BadInput("--format and --json cannot be combined.", "Pass one of them.")
    if form:
        check_format(form)
    return form


TARGET = click.argument("target", metavar="JOB.toml | -- COMMAND...", nargs=-1, required=True, callback=_target)
METRIC = click.option(
    "--metric",
    "metrics",
    multiple=True,
    default=("step_time",),
    show_default=True,
    callback=_metrics,
    help="Metric to test; several are tested jointly.",
)
MARGIN = click.option(
    "--margin", type=Percent(), default="3%", show_default=True, help="Smallest slowdown that matters."
)
ALPHA = click.option(
    "--alpha", type=Percent(), default="1%", show_default=True, help="Error rate of each of the two verdicts."
)
ONE_METRIC = click.option("--metric", default="step_time", show_default=True, callback=_metric, help="Metric to test.")
ACROSS = click.option(
    "--across", multiple=True, callback=_across, help="A difference between the runs to allow: driver, packages, ..."
)
PAIRS = click.option("--pairs", type=int, default=20, show_default=True, help="Maximum number of pairs, up to 24.")
TOGETHER = click.option(
    "--together",
    is_flag=True,
    help="Run both at once on one core, so that noise affects both. Single-rank jobs only.",
)
FORMAT = click.option(
    "--format",
    "form",
    callback=_form,
    help="Output format: github, markdown, junit, github-action-benchmark, bencher or asv.",
)
FULL = click.option("--full", is_flag=True, help="Print every account, difference and note.")
JSON = click.option("--json", "as_json", is_flag=True, is_eager=True, help="Print the result as JSON.")
