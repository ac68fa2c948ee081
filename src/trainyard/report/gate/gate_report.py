"""The documents of the gate and its modes: what the functions of `api` return and `--json` prints."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import asdict

from trainyard.compare.gate.bisect_commits import Bisection
from trainyard.compare.gate.gate_result import GateResult
from trainyard.compare.gate.machine_noise import Noise
from trainyard.compare.gate.verdict import Rule
from trainyard.numerics.convergence.compare_curves import Convergence
from trainyard.numerics.convergence.mlperf_reference import ReferenceComparison
from trainyard.report.gate import convergence_table, sentences
from trainyard.report.render.html_tables import tables_html
from trainyard.report.render.notebook_text import render_html
from trainyard.report.view.next_step import NextStep


class GateReport(GateResult, frozen=True, kw_only=True):
    """The result of `gate` and `gate run`, in words too. `verdict`: that of all metrics together. `explanations`: the
    operations of the accounts that caused a slowdown, and time that moved between accounts. `next_steps`: commands."""

    verdict: Literal["worse", "not worse", "unclear"]
    headline: str
    description: str
    explanations: tuple[str, ...]
    next_steps: tuple[NextStep, ...]

    def _repr_html_(self) -> str:
        """Everything that `--full` prints, for a notebook."""
        from trainyard.report.gate.gate_terminal import print_gate

        return render_html(lambda console: print_gate(self, console, full=True))


class BisectReport(Bisection, frozen=True, kw_only=True):
    """The result of `gate bisect`. `subjects`: commit -> the first line of its message."""

    headline: str
    subjects: dict[str, str]

    def _repr_html_(self) -> str:
        """Everything that `--full` prints, for a notebook."""
        from trainyard.report.gate.bisect_terminal import print_bisection

        return render_html(lambda console: print_bisection(self, console, full=True))


class SelfCheckReport(Noise, frozen=True, kw_only=True):
    """The result of `gate self-check`. `sentences`: the sources of the noise, in words."""

    rule: Rule
    headline: str
    sentences: tuple[str, ...]

    def _repr_html_(self) -> str:
        """Everything that the command prints, for a notebook."""
        from trainyard.report.gate.noise_terminal import print_noise

        return render_html(lambda console: print_noise(self, console))


class ConvergenceReport(Convergence, frozen=True, kw_only=True):
    """The result of `gate convergence`."""

    headline: str
    schema: Literal["trainyard/convergence/2"] = "trainyard/convergence/2"

    @property
    def exit_code(self) -> int:
        return {"same": 0, "differs": 1, "cannot tell": 3}[self.verdict]

    def _repr_html_(self) -> str:
        """The table of all seeds for a notebook."""
        return tables_html(self.headline, (convergence_table.table(self),))


class ReferenceReport(ReferenceComparison, frozen=True, kw_only=True):
    """The result of `gate convergence --mllog`."""

    headline: str
    schema: Literal["trainyard/points/1"] = "trainyard/points/1"

    @property
    def exit_code(self) -> int:
        return 0 if self.verdict == "same" else 1

    def _repr_html_(self) -> str:
        """The table of the comparison for a notebook."""
        return tables_html(self.headline, (convergence_table.reached_table(self),))


class StoredCurves(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `gate convergence --store-golden` without a base. `curves`: their number."""

    golden: str
    curves: int
    schema: Literal["trainyard/golden-stored/1"] = "trainyard/golden-stored/1"


def report_gate(result: GateResult, next_steps: tuple[NextStep, ...] = ()) -> GateReport:
    """The report of a gate: its result with verdict, headline and sentences. `next_steps`: commands in addition to
    those for any gate."""
    return GateReport(
        **asdict(result),
        verdict=result.outcome,
        headline=sentences.headline(result),
        description=sentences.description(result),
        explanations=sentences.explain(result),
        next_steps=(*sentences.suggest_commands(result), *next_steps),
    )


def report_bisection(bisection: Bisection, subjects: dict[str, str]) -> BisectReport:
    """The report of a bisection. `subjects`: commit -> the first line of its message."""
    from trainyard.report.gate.bisect_terminal import headline

    return BisectReport(**asdict(bisection), headline=headline(bisection, subjects), subjects=subjects)


def report_noise(noise: Noise, rule: Rule) -> SelfCheckReport:
    """The report of a self-check under `rule`: its measurements with the headline and sentences on them."""
    from trainyard.report.gate.noise_terminal import describe_noise, headline

    return SelfCheckReport(
        **asdict(noise), rule=rule, headline=headline(noise), sentences=tuple(describe_noise(noise, rule))
    )


def report_convergence(convergence: Convergence) -> ConvergenceReport:
    """The report of a comparison of loss curves: its result with the headline."""
    return ConvergenceReport(**asdict(convergence), headline=convergence_table.sentence(convergence))


def report_reference(comparison: ReferenceComparison) -> ReferenceReport:
    """The report of a comparison with MLPerf's reference convergence points: its result with the headline."""
    return ReferenceReport(**asdict(comparison), headline=convergence_table.reached_sentence(comparison))
