"""The comparison of two or more runs as one self-contained page: `page([first, second])` returns its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from trainyard import __version__, words
from trainyard.ledger import encode_hook
from trainyard.report.comparison.build_comparison import compare_runs
from trainyard.report.comparison.compared_run import ComparedRun
from trainyard.report.comparison.run_facts import FACT_KINDS
from trainyard.report.comparison.runs_comparison import RunsComparison
from trainyard.report.comparison.static_comparison import comparison_html
from trainyard.report.render.html import NO_SITE, SiteFrame, document
from trainyard.report.render.packed_timeline import pack_timeline
from trainyard.report.view.timeline import timeline

_MOST_SLICES = 100_000
"""Slices of all timelines of a page together, above which short neighbours are merged."""


def page(runs: Sequence[ComparedRun], site: SiteFrame = NO_SITE) -> str:
    """The HTML document that compares each run with the first, with its data, scripts and styles inside. `site`: the
    navigation of a server. Raises `BadInput` for fewer than two or too many runs."""
    comparison = compare_runs(runs)
    static = comparison_html(comparison)
    return document(comparison.headline, plain_view(comparison, runs), "comparison", static, site=site)


def plain_view(comparison: RunsComparison, runs: Sequence[ComparedRun]) -> dict[str, Any]:
    """The data that the page's script draws: the fields of the comparison, and those of every page. `runs`: those
    compared, whose traces give the timelines."""
    plain: dict[str, Any] = msgspec.to_builtins(comparison, enc_hook=encode_hook)
    drawn = sum(run.measured is not None for run in runs)
    return plain | {
        "title": comparison.headline,
        "subtitle": comparison.summary,
        "chips": [f"{run.letter} {run.name}" for run in comparison.runs],
        "wall_ns": max(run.wall_ns for run in comparison.runs),
        "timelines": [
            pack_timeline(timeline(run.measured, _MOST_SLICES // drawn)) if run.measured else None for run in runs
        ],
        "kinds": FACT_KINDS,
        "severities": {name: [word.colour, word.means] for name, word in words.SEVERITIES.items()},
        "prices": {name: [word.label, word.means] for name, word in words.PRICES.items()},
        "verdicts": {name: [word.label, word.means] for name, word in words.VERDICTS.items()},
        "tables": [],
        "generated": f"trainyard {__version__}",
    }
