"""The navigation that the server adds to a self-contained report."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from trainyard.record import Run
from trainyard.report.render.html import SiteFrame
from trainyard.serve.pages.shell import crumbs, site_links


def site_frame(
    current: str, trail: tuple[tuple[str, str], ...], actions: tuple[tuple[str, str], ...] = ()
) -> SiteFrame:
    """The links of the header and above the report. Arguments as of `crumbs`; `current`: the section."""
    return SiteFrame(header=site_links(current), crumbs=crumbs(trail, actions))


def run_frame(run: Run) -> SiteFrame:
    """The navigation around the report of a run."""
    return site_frame("Runs", run_trail(run), run_links(run))


def comparison_frame(base: str, new: str) -> SiteFrame:
    """The navigation around the comparison of the runs with these ids."""
    trail = (("Runs", "/runs"), ("Compare", "/compare"), (f"{base} → {new}", ""))
    actions = (
        ("Swap", f"/compare?{urlencode({'base': new, 'new': base})}"),
        (f"Run {base}", f"/runs/{base}"),
        (f"Run {new}", f"/runs/{new}"),
        ("JSON", f"/api/compare?{urlencode({'base': base, 'new': new})}"),
    )
    return site_frame("Compare", trail, actions)


def run_trail(run: Run) -> tuple[tuple[str, str], ...]:
    """The way to a run: all runs, those of its job, the run."""
    return (("Runs", "/runs"), (run.job.name, job_url("/runs", run.job.name)), (run.id, ""))


def run_links(run: Run) -> tuple[tuple[str, str], ...]:
    """Links to other views of a run."""
    return (
        ("Compare", f"/compare?{urlencode({'new': run.id})}"),
        ("History of the job", job_url("/history", run.job.name)),
        ("JSON", f"/api/runs/{run.id}"),
    )


def history_links(job: str, metric: str) -> tuple[tuple[str, str], ...]:
    """Links to other views of a history."""
    query = f"?{urlencode({'metric': metric}, errors='replace')}" if metric else ""
    return (
        ("Runs of the job", job_url("/runs", job)),
        ("JSON", f"/api/history/{quote(job, safe='', errors='replace')}{query}"),
    )


def job_url(path: str, job: str) -> str:
    """The address of a page about a job, whose name may be any text."""
    return f"{path}?{urlencode({'job': job}, errors='replace')}"
