"""Which runs a list shows: filters of its query, and a page of the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlencode

import msgspec

from trainyard.errors import BadInput
from trainyard.store.index.run_index import RunRow

PER_PAGE, MOST_PER_PAGE = 50, 1000
_MOST_PAGES = 1_000_000
_NAMES = ("q", "job", "state", "tag", "revision", "host")
_TYPED = ("q", "revision")
"""Fields without spaces around their text; names of jobs may begin with one."""


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The query of a list. Empty fields do not filter. `q`: text in id, job, layout, tags or host, in any case;
    `revision`: the beginning of a commit; the others are equal to the field of that name. `page`: from 1."""

    q: str = ""
    job: str = ""
    state: str = ""
    tag: str = ""
    revision: str = ""
    host: str = ""
    page: int = 1
    per_page: int = PER_PAGE

    @property
    def is_active(self) -> bool:
        """Whether it leaves out runs."""
        return any(getattr(self, name) for name in _NAMES)

    def url(self, path: str = "/runs", **changes: str | int) -> str:
        """The address of the list with `changes` of the fields."""
        fields = {**msgspec.structs.asdict(self), **changes}
        defaults = {**dict.fromkeys(_NAMES, ""), "page": 1, "per_page": PER_PAGE}
        query = urlencode({name: value for name, value in fields.items() if value != defaults[name]}, errors="replace")
        return f"{path}?{query}" if query else path


class FilteredRuns(NamedTuple):
    """`rows`: of one page; `total`: number of runs that match; `stored`: number of runs in the store."""

    rows: Sequence[RunRow]
    total: int
    stored: int

    def pages(self, per_page: int) -> int:
        """The number of pages, at least 1."""
        return max(1, -(-self.total // per_page))


def read_filter(query: Mapping[str, str]) -> RunFilter:
    """The filter of a query's parameters. Raises `BadInput` for a number that is not one or out of range."""
    return RunFilter(
        **{name: query.get(name, "").strip() if name in _TYPED else query.get(name, "") for name in _NAMES},
        page=read_number(query, "page", 1, 1, _MOST_PAGES),
        per_page=read_number(query, "per_page", PER_PAGE, 1, MOST_PER_PAGE),
    )


def read_number(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """An integer parameter; `default` if it is missing or empty. Raises `BadInput` unless it is `least` to `most`."""
    text = query.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and least <= int(text) <= most):
        raise BadInput(f"{name}={text[:40]!r} is not a whole number from {least:,} to {most:,}.")
    return int(text)


def apply(filter: RunFilter, rows: Sequence[RunRow]) -> FilteredRuns:
    """The page of `rows`, newest first, that the filter shows."""
    matches = [row for row in rows if _matches(filter, row)] if filter.is_active else rows
    start = (filter.page - 1) * filter.per_page
    return FilteredRuns(matches[start : start + filter.per_page], len(matches), len(rows))


def _matches(filter: RunFilter, row: RunRow) -> bool:
    """Whether the filter shows a run."""
    return (
        (not filter.job or row.job == filter.job)
        and (not filter.state or row.state == filter.state)
        and (not filter.tag or filter.tag in row.tags)
        and (not filter.host or row.host == filter.host)
        and (not filter.revision or row.revision.startswith(filter.revision.lower()))
        and (not filter.q or _contains(row, filter.q.casefold()))
    )


def _contains(row: RunRow, wanted: str) -> bool:
    """Whether one of the row's texts contains `wanted`, which is in lower case."""
    return any(wanted in text.casefold() for text in (row.id, row.job, row.layout, row.host, *row.tags))
