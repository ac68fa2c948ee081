"""A report that was written to a file."""

from __future__ import annotations

from html import escape
from typing import Literal

import msgspec


class WrittenReport(msgspec.Struct, frozen=True, kw_only=True):
    """`name`: of the run, trace or plans, or of several that are compared. `file`: path of the report. `format`: its
    suffix. `state`: of a stored run; `damaged` if one of several is. `notes`: messages about data that could not be
    read."""

    schema: Literal["trainyard/report/1"] = "trainyard/report/1"
    name: str
    file: str
    format: str
    state: str = ""
    notes: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """A link to the file."""
        return f'<a href="{escape(self.file)}">{escape(self.file)}</a>'
