"""A run in progress. The page shows the steps so far; its script adds those that follow."""

from __future__ import annotations

from trainyard import units
from trainyard.record import Run
from trainyard.run.live_run import LiveRun
from trainyard.serve.markup import Html, element
from trainyard.serve.pages.shell import card, crumbs, hero, shell
from trainyard.serve.pages.site_frame import run_links, run_trail
from trainyard.serve.pages.tables import state_mark


def live_page(run: Run, update: LiveRun) -> Html:
    """The page of a run whose end is not recorded. `update`: the latest news of it."""
    last = update.last
    loss = f"{last.loss:.4f}" if last and last.loss is not None else "–"
    subtitle = f"{run.job.name} · {run.job.layout} · started {run.started[:16].replace('T', ' ')} UTC"
    charts = (
        card("Loss", "of each step", element("div", class_="chart", data_chart="loss")),
        card("Step time", "of the slowest rank", element("div", class_="chart", data_chart="wall_ns")),
    )
    incidents = element(
        "ol", *(element("li", f"{each.time[:19]} {each.summary}") for each in update.incidents),
        class_="incidents", id="live-incidents",
    )  # fmt: skip
    return shell(
        f"Live: {run.id}",
        crumbs(run_trail(run), (*run_links(run), ("Report so far", f"/runs/{run.id}?report=1"))),
        hero(
            f"Run {run.id}",
            subtitle,
            element("div", element("dt", "state"), element("dd", state_mark(update.state), id="live-state")),
            _figure(
                "step", "live-step", str(last.step + 1) if last else "0", f"of {update.steps:,}" if update.steps else ""
            ),
            _figure("loss", "live-loss", loss),
            _figure("step time", "live-time", units.show_time(last.wall_ns) if last else "–"),
        ),
        element(
            "p",
            "The run has ended. ",
            element("a", "Open its report", href=f"/runs/{run.id}?report=1"),
            class_="card",
            id="live-ended",
            hidden=True,
        ),
        element("p", "Waiting for the first step.", class_="card", id="live-wait", hidden=bool(last)),
        element("div", *charts, class_="sides", id="live", data_run=run.id),
        card("Incidents", "faults of the job and their consequences", incidents),
        current="Runs",
        scripts=("serve.js", "live_run.js"),
    )


def _figure(label: str, id: str, value: str, unit: str = "") -> Html:
    """A key figure that the script updates."""
    shown = element("span", value, id=id)
    return element("div", element("dt", label), element("dd", shown, element("small", unit) if unit else None))
