"""The list of runs, with its filters, and two columns to choose the runs of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trainyard import units, words
from trainyard.serve.markup import Html, element, join
from trainyard.serve.pages.shell import hero, shell
from trainyard.serve.pages.site_frame import job_url
from trainyard.serve.pages.tables import run_link, scrolled, state_mark, step_text, tag_chips, when
from trainyard.serve.run_filter import PER_PAGE, FilteredRuns, RunFilter
from trainyard.store.index.run_index import RunRow

_MOST_CHOICES = 200
"""Names that a field suggests."""
_SHA = 8
"""Digits of a commit that are shown."""
_HEADS = (
    ("Base", ""), ("New", ""), ("State", ""), ("Run", ""), ("Job", ""), ("Tags", ""), ("Step", "number"),
    ("Per second", "number rate"), ("Started (UTC)", ""), ("Layout", "layout"), ("Host", ""), ("Commit", ""),
)  # fmt: skip


class Choices(NamedTuple):
    """Names that occur in the store, sorted, at most `_MOST_CHOICES` of each."""

    jobs: Sequence[str]
    tags: Sequence[str]
    hosts: Sequence[str]


def choices_of(rows: Iterable[RunRow]) -> Choices:
    """The names in the rows, which are suggested to filter by; the newest ones if there are too many."""
    jobs, tags, hosts = dict[str, None](), dict[str, None](), dict[str, None]()
    for row in rows:
        jobs[row.job] = None
        hosts[row.host] = None
        if row.tags:
            tags.update(dict.fromkeys(row.tags))
    return Choices(*(sorted(filter(None, list(names)[:_MOST_CHOICES])) for names in (jobs, tags, hosts)))


def runs_page(filter: RunFilter, runs: FilteredRuns, choices: Choices, store: str) -> Html:
    """The page of a list. `store`: the path of the store."""
    subtitle = join(units.counted(runs.stored, "run"), " in ", element("code", store, class_="chip"))
    if not runs.stored:
        empty = element(
            "section",
            element("p", "There are no runs in this store.", class_="summary"),
            element("p", element("code", "trainyard run JOB.toml"), " creates one; this page shows it as it trains."),
            class_="card",
        )
        return shell("Runs", hero("Runs", subtitle), empty, current="Runs")
    return shell("Runs", hero("Runs", subtitle), _filters(filter, choices), _results(filter, runs), current="Runs")


def _filters(filter: RunFilter, choices: Choices) -> Html:
    """The form of the filters, which answers while it is filled in."""
    states = (
        element("option", label, value=value, selected=filter.state == value)
        for value, label in (("", "any"), *((state, state) for state in words.STATES))
    )
    fields = (
        _field("Search", "q", filter.q, (), "id, job, layout, tag", type="search"),
        _field("Job", "job", filter.job, choices.jobs, "any"),
        element("label", element("span", "State"), element("select", *states, name="state")),
        _field("Tag", "tag", filter.tag, choices.tags, "any"),
        _field("Commit", "revision", filter.revision, (), "any", size=10),
        _field("Host", "host", filter.host, choices.hosts, "any"),
    )
    per_page = element("input", type="hidden", name="per_page", value=filter.per_page)
    return element(
        "form",
        *fields,
        per_page if filter.per_page != PER_PAGE else None,
        element("button", "Show", type="submit", class_="primary"),
        method="get",
        action="/runs",
        class_="fields card",
        data_live="results",
        role="search",
    )


def _field(
    label: str, name: str, value: str, known: Sequence[str], hint: str, type: str = "text", size: int | None = None
) -> Html:
    """A text field with suggestions."""
    suggestions = element("datalist", *(element("option", value=text) for text in known), id=f"known-{name}")
    field = element(
        "input", type=type, name=name, value=value, placeholder=hint, list=f"known-{name}" if known else None,
        autocomplete="off", spellcheck="false", maxlength=200, size=size,
    )  # fmt: skip
    return element("label", element("span", label), field, suggestions if known else None)


def _results(filter: RunFilter, runs: FilteredRuns) -> Html:
    """The runs that match, with the buttons to compare two of them and to turn the pages."""
    if not runs.rows:
        nothing = element("p", "No run matches. ", element("a", "Show all runs", href="/runs"), class_="empty")
        return element("div", nothing, id="results", class_="card")
    heads = (element("th", head, scope="col", class_=class_ or None) for head, class_ in _HEADS)
    table = element(
        "table",
        element("caption", "Stored runs, newest first", class_="hidden"),
        element("thead", element("tr", *heads)),
        element("tbody", *(_row(row) for row in runs.rows)),
        class_="runs",
    )
    compare = element("button", "Compare base and new", type="submit", class_="primary")
    bar = element("div", element("p", _range(filter, runs), class_="note", role="status"), compare, class_="bar")
    form = element("form", bar, scrolled("Runs", table), method="get", action="/compare")
    return element("div", form, _pages(filter, runs), id="results", class_="card")


def _row(row: RunRow) -> Html:
    """A run as a row of the table."""
    choose = (
        element("td", element("input", type="radio", name=side, value=row.id, aria_label=f"{row.id} as {side}"))
        for side in ("base", "new")
    )
    return element(
        "tr",
        *choose,
        element("td", state_mark(row.state)),
        element("td", run_link(row.id)),
        element("td", element("a", row.job, href=job_url("/runs", row.job), class_="clip", title=row.job)),
        element("td", tag_chips(row), class_="tags"),
        element("td", step_text(row.step_ns), class_="number"),
        element("td", f"{row.tokens_per_s:,.0f}" if row.tokens_per_s else "", class_="number rate"),
        element("td", when(row.started)),
        element("td", element("span", row.layout, class_="clip", title=row.layout), class_="layout"),
        element("td", element("span", row.host, class_="clip", title=row.host or None), class_="host"),
        element("td", element("code", row.revision[:_SHA], title=row.revision) if row.revision else None),
    )


def _range(filter: RunFilter, runs: FilteredRuns) -> str:
    """Which of the matching runs are shown: `1 to 50 of 1,234 runs`."""
    first = (filter.page - 1) * filter.per_page + 1
    return f"{first:,} to {first + len(runs.rows) - 1:,} of {units.counted(runs.total, 'run')}, newest first"


def _pages(filter: RunFilter, runs: FilteredRuns) -> Html | None:
    """Links to the neighbouring pages; None if there is only one."""
    count = runs.pages(filter.per_page)
    if count == 1:
        return None
    newer = element("a", "← Newer", href=filter.url(page=filter.page - 1), rel="prev") if filter.page > 1 else None
    older = element("a", "Older →", href=filter.url(page=filter.page + 1), rel="next") if filter.page < count else None
    position = element("span", f"Page {filter.page:,} of {count:,}")
    return element("nav", newer, position, older, class_="pages", aria_label="Pages")
