"""The page that asks which runs to compare."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.serve.markup import Html, element
from trainyard.serve.pages.shell import hero, shell
from trainyard.store.index.run_index import RunRow

_MOST_CHOICES = 200
"""Newest runs that the fields suggest."""


def choose_page(base: str, new: str, rows: Sequence[RunRow]) -> Html:
    """The page that asks which runs to compare. `base`, `new`: ids, or empty; `rows`: all runs, newest first."""
    options = [
        element("option", f"{row.job} · {row.started[:16]} · {', '.join(row.tags)}", value=row.id)
        for row in rows[:_MOST_CHOICES]
    ]
    fields = (
        element(
            "label",
            element("span", label),
            element(
                "input", type="text", name=name, value=value, list="known-runs", required=True, pattern="[0-9a-f]{8}",
                placeholder="id of 8 digits", autocomplete="off", spellcheck="false", autofocus=not value,
            ),
        )
        for label, name, value in (("Base", "base", base), ("New", "new", new))
    )  # fmt: skip
    form = element(
        "form",
        *fields,
        element("button", "Compare", type="submit", class_="primary"),
        element("datalist", *options, id="known-runs"),
        method="get",
        action="/compare",
        class_="fields card",
    )
    note = "By account and by operation. The list of runs has two columns to choose them."
    return shell("Compare", hero("Compare two runs", note), form, current="Compare")
