"""The result of a parity check, as plain data."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.numerics.parity import Parity
from trainyard.numerics.rounding_tolerance import ToleranceRule


class ParityResults(msgspec.Struct, frozen=True, kw_only=True):
    """One result per mix, in the order they were run. `steps`: number of steps that each side trained; `tolerance`:
    how the tolerances follow from rounding."""

    schema: Literal["trainyard/parity/3"] = "trainyard/parity/3"
    steps: int
    tolerance: ToleranceRule
    results: tuple[Parity, ...]

    @property
    def different(self) -> tuple[Parity, ...]:
        """The mixes whose losses or gradient norms differ from those of one process."""
        return tuple(result for result in self.results if result.verdict == "different")

    def _repr_html_(self) -> str:
        """The table of all mixes for a notebook."""
        from trainyard.report.render.html_tables import tables_html
        from trainyard.report.render.parity_table import headline, table

        return tables_html(headline(self), (table(self),))
