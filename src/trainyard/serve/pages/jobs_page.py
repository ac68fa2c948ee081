"""The jobs of a store, each with the course of its step time, as the way to their histories."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import units
from trainyard.serve.markup import Html, element
from trainyard.serve.pages.shell import card, hero, shell
from trainyard.serve.pages.site_frame import job_url
from trainyard.serve.pages.tables import scrolled, state_mark, step_text, when
from trainyard.store.index.run_index import RunRow

_MOST_JOBS = 500
_MOST_POINTS = 60
"""Newest complete runs in the small chart of a job."""
_WIDTH, _HEIGHT, _PADDING = 180, 30, 4
_HEADS = (
    ("Job", ""), ("Runs", "number"), ("Step times, oldest to newest", ""), ("Newest", "number"), ("Last run", ""),
    ("Started (UTC)", ""),
)  # fmt: skip


def jobs_page(rows: Sequence[RunRow]) -> Html:
    """The page of all jobs, that with the newest run first. `rows`: all runs, newest first."""
    runs_by_job: dict[str, list[RunRow]] = {}
    for row in rows:
        runs_by_job.setdefault(row.job, []).append(row)
    title = hero("History", f"{units.counted(len(runs_by_job), 'job')} in {units.counted(len(rows), 'run')}")
    if not rows:
        return shell("History", title, element("p", "There are no runs yet.", class_="card"), current="History")
    heads = (element("th", head, scope="col", class_=class_ or None) for head, class_ in _HEADS)
    shown = list(runs_by_job.items())[:_MOST_JOBS]
    table = element(
        "table",
        element("thead", element("tr", *heads)),
        element("tbody", *(_job_row(name, runs) for name, runs in shown)),
        class_="runs",
    )
    note = "A job's page finds change points in its runs, and names the commit and the account that moved."
    left_out = len(runs_by_job) - len(shown)
    more = element("p", f"{units.counted(left_out, 'job')} more.", class_="small") if left_out else Html()
    return shell("History", title, card("Jobs", note, scrolled("Jobs", table), more), current="History")


def _job_row(name: str, runs: Sequence[RunRow]) -> Html:
    """A job as a row of the table. `runs`: its runs, newest first."""
    times = [row.step_ns for row in runs if row.state == "complete" and row.step_ns][:_MOST_POINTS]
    return element(
        "tr",
        element("td", element("a", name, href=job_url("/history", name), class_="clip", title=name)),
        element("td", element("a", f"{len(runs):,}", href=job_url("/runs", name)), class_="number"),
        element("td", _course(times[::-1])),
        element("td", step_text(times[0]) if times else "", class_="number"),
        element("td", state_mark(runs[0].state)),
        element("td", when(runs[0].started)),
    )


def _course(times: Sequence[int]) -> Html | None:
    """The step times as a small line, from the oldest run to the newest; None for fewer than two."""
    if len(times) < 2:
        return None
    low, high = min(times), max(times)
    span = max(high - low, high * 0.02)  # a difference of less than 2 % is not drawn as large
    points = " ".join(
        f"{_PADDING + at * (_WIDTH - 2 * _PADDING) / (len(times) - 1):.1f},"
        f"{_HEIGHT - _PADDING - (time - low) / span * (_HEIGHT - 2 * _PADDING):.1f}"
        for at, time in enumerate(times)
    )
    x, y = points.rpartition(" ")[2].split(",")
    label = f"{units.show_time(low)} to {units.show_time(high)} in {units.counted(len(times), 'run')}"
    return element(
        "svg",
        element("title", label),
        element("polyline", points=points),
        element("circle", cx=x, cy=y, r=2.5),
        class_="course",
        width=_WIDTH,
        height=_HEIGHT,
        role="img",
    )
