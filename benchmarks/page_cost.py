"""The cost of the page of a trace, in CPU time on top of its analysis.

In one process, after a round that is not counted: the analysis (read, book, diagnose), the section "What if", and the
rest of the page. As a command, with start-up and printing: `trainyard trace TRACE` and the same with `--page`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

from benchmarks.process import once
from trainyard.report.render import html
from trainyard.report.view.build_analysis import analyse_measured
from trainyard.report.view.build_view import view_of
from trainyard.report.view.build_what_if import shared_replay, what_if_section
from trainyard.report.view.path_overlay import add_path
from trainyard.report.view.timeline import timeline
from trainyard.trace.measure import measure_files

_Result = TypeVar("_Result")


class PageCost(NamedTuple):
    """CPU seconds: `analysis_s`, `what_if_s`, `rest_s` in one process; `command_s`, `page_command_s` of the command
    without and with a page. `size`: bytes of the page."""

    analysis_s: float
    what_if_s: float
    rest_s: float
    command_s: float
    page_command_s: float
    size: int


HEADS = (
    f"{'trace':<28} {'analysis':>9} {'what if':>15} {'rest':>15} {'page':>6} {'command':>9} {'with page':>16} {'MB':>5}"
)


def page_cost(trace: Path, page: Path, rounds: int) -> PageCost:
    """The medians over `rounds` of the cost of the page of a trace file or folder, which is written to `page`."""
    in_process = [_costs_in_process(trace, page) for _ in range(rounds + 1)][1:]
    command = [sys.executable, "-m", "trainyard.cli.main", "trace", str(trace)]
    once([*command, "--page", str(page)])
    commands = [(once(command).cpu_s, once([*command, "--page", str(page)]).cpu_s) for _ in range(rounds)]
    columns = [*zip(*in_process, strict=True), *zip(*commands, strict=True)]
    return PageCost(*map(median, columns), size=page.stat().st_size)


def describe_cost(name: str, cost: PageCost) -> str:
    """A row below `HEADS`: times in ms; the parts of the page also in per cent of the analysis."""
    parts = (cost.what_if_s, cost.rest_s)
    shown = "".join(f" {1e3 * part:>7.1f} {_share(part, cost.analysis_s):>7}" for part in parts)
    more_s = cost.page_command_s - cost.command_s
    return (
        f"{name:<28} {1e3 * cost.analysis_s:>9.1f}{shown} {_share(sum(parts), cost.analysis_s):>6} "
        f"{1e3 * cost.command_s:>9.0f} {1e3 * cost.page_command_s:>8.0f} {_share(more_s, cost.command_s):>7} "
        f"{cost.size / 1e6:>5.2f}"
    )


def _costs_in_process(trace: Path, page: Path) -> tuple[float, float, float]:
    """CPU seconds of the analysis, of the section "What if" and of the rest of the page."""
    measured, read_s = _timed(lambda: measure_files([trace]))
    replay = shared_replay(measured)
    analysis, analysed_s = _timed(lambda: analyse_measured(measured, replay))
    section, what_if_s = _timed(lambda: what_if_section(measured, findings=analysis.findings, replay=replay))
    _, rest_s = _timed(lambda: html.write(view_of(analysis, add_path(timeline(measured), replay), section), page))
    return read_s + analysed_s, what_if_s, rest_s


def _timed(call: Callable[[], _Result]) -> tuple[_Result, float]:
    """(The result of a call, the CPU seconds that it took)."""
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def _share(part_s: float, whole_s: float) -> str:
    return f"+{100 * part_s / whole_s:.0f} %"
