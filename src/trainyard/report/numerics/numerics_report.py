"""The document of `numerics compare`: what `api.compare_numerics` returns and `--json` prints."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import asdict

from trainyard.numerics.compare.comparison_result import RecordComparison
from trainyard.report.numerics import sentences
from trainyard.report.render.notebook_text import render_html


class NumericsReport(RecordComparison, frozen=True, kw_only=True):
    """The result of `numerics compare`, in words too. `explanations`: sentences on the limits and on what could not be
    seen. `reproducer`: the text of a script that shows the first difference alone; empty without one."""

    schema: Literal["trainyard/numerics-comparison/1"] = "trainyard/numerics-comparison/1"
    headline: str
    explanations: tuple[str, ...]
    reproducer: str = ""

    @property
    def exit_code(self) -> int:
        return {"same": 0, "different": 1, "cannot tell": 3}[self.verdict]

    def _repr_html_(self) -> str:
        """Everything that `--full` prints, for a notebook."""
        from trainyard.report.numerics.numerics_terminal import print_numerics

        return render_html(lambda console: print_numerics(self, console, full=True))


def report_numerics(comparison: RecordComparison, reproducer: str = "") -> NumericsReport:
    """The report of a comparison: its result with headline, sentences and the text of a `reproducer`."""
    return NumericsReport(
        **asdict(comparison),
        headline=sentences.headline(comparison),
        explanations=tuple(sentences.explain(comparison)),
        reproducer=reproducer,
    )
