"""The page of a trace: cost of building it, bytes, first draw and frames: `python -m benchmarks.page --ranks 64`.
With traces, the cost of their pages on top of the analysis: `python -m benchmarks.page TRACES...`.

The ranks are made as in `join_parts`, from the steps of the real ranks of the public traces. The analysis and the
building of the page are timed in one process, so that their ratio does not depend on the machine. The browser is
Chromium without a window, which draws by software; `npm ci` installs its driver.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.job_from_real_ranks import RANKS_PER_NODE, job_rank, make_schedule
from benchmarks.join_parts import real_ranks, step_of
from benchmarks.page_cost import HEADS, describe_cost, page_cost
from benchmarks.page_in_browser import draw_page
from trainyard.events import Events
from trainyard.report.render import html
from trainyard.report.view.build_analysis import analyse_measured
from trainyard.report.view.build_view import view_of
from trainyard.report.view.timeline import timeline
from trainyard.trace.measure import measure


def make_ranks(ranks: int) -> list[Events]:
    """The events of each rank of a job, from the real ranks in turn."""
    steps = [step for path in real_ranks() if (step := step_of(path)) is not None]
    schedule = make_schedule(ranks)
    return [
        job_rank(steps[rank % len(steps)], rank, schedule, f"node{rank // RANKS_PER_NODE:04}", 0)
        for rank in range(ranks)
    ]


def build(ranks: int, path: Path) -> None:
    """Analyse the ranks, write their page, and print the CPU seconds of both, and the page's bytes."""
    events = make_ranks(ranks)
    start = time.process_time()
    measured = measure(events)
    analysis = analyse_measured(measured)
    analysed_s = time.process_time() - start
    start = time.process_time()
    html.write(view_of(analysis, timeline(measured)), path)
    page_s = time.process_time() - start
    spans = sum(len(own.host) for own in events)
    print(f"{ranks} ranks, {sum(len(own.work) for own in events):,} device intervals, {spans:,} host spans")
    print(
        f"analysis {analysed_s:.2f} s of CPU time, page {page_s:.2f} s more ({100 * page_s / analysed_s:.0f} %); "
        f"{path.stat().st_size / 1e6:.2f} MB"
    )


def main(arguments: Sequence[str]) -> int:
    """Build and draw one page, or print the cost of those of traces. Returns 1 if there is no browser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, help="files, or folders of the ranks of one run")
    parser.add_argument("--ranks", type=int, default=64, help="of a generated job")
    parser.add_argument("--rounds", type=int, default=5, help="of which each figure of TRACES is the median")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
        path = Path(folder) / "page.html"
        if not options.traces:
            build(options.ranks, path)
            return draw_page(path)
        print(f"{HEADS}   (CPU time in ms, medians of {options.rounds})")
        for trace in options.traces:
            print(describe_cost(trace.name, page_cost(trace, path, options.rounds)), flush=True)
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
