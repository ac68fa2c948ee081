"""Writes docs/parity.md: every mix against one process, as `trainyard numerics parity` prints it (`make parity`)."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from textwrap import fill

from trainyard.numerics.parity import STEPS, Deviation, Parity, compare
from trainyard.numerics.parity_mixes import MIXES
from trainyard.numerics.parity_trial import trial
from trainyard.numerics.rounding_tolerance import tolerance_rule
from trainyard.report.render.parity_table import explain

HEAD = """# Parity

Every way to spread, store and recompute a training step that trainyard offers, each against a single process that
trains the same micro-batches in the same number format from the same seed: the same losses and the same gradient norms,
to rounding. Errors are relative, in the step (of {steps}) where they are the largest part of their tolerance.

{tolerance}
[Parity and rounding](explanation/parity.md) has the measured rate of false alarms and the smallest faults that are
detected.

`trainyard numerics parity` prints this table on your machine, `--only TEXT` a part of it, and
`trainyard numerics parity JOB.toml` tries your own job's layout. `make parity` writes this page.

Written {date} with torch {torch}, Python {python}: {count} mixes, {seconds:.0f} s on {cores} cores.

| mix | ranks | loss error | tolerance | gradient norm error | tolerance | verdict |
|---|---|---|---|---|---|---|
"""


def page(results: Sequence[Parity], seconds: float, cores: int) -> str:
    head = HEAD.format(
        steps=STEPS,
        tolerance=fill(explain(tolerance_rule(STEPS)), 120),
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        torch=version("torch"),
        python=platform.python_version(),
        count=len(results),
        seconds=seconds,
        cores=cores,
    )
    rows = [
        f"| {result.mix} | {result.ranks} | {_cells(result.loss)} | {_cells(result.grad_norm)} | {result.verdict} |\n"
        for result in results
    ]
    refused = [f"- **{result.mix}**: {result.reason}\n" for result in results if result.verdict == "refused"]
    return head + "".join(rows) + ("\nRefused, and why:\n\n" + "".join(refused) if refused else "")


def _cells(deviation: Deviation | None) -> str:
    """The cells of an error and of its tolerance, empty if the mix did not run."""
    return f"{deviation.error_text} | {deviation.tolerance:.1e}" if deviation else " | "


def main() -> None:
    began = time.monotonic()
    results = []
    for result in compare(MIXES, trial):
        results.append(result)
        print(f"{result.mix}: {result.verdict} {result.reason}", flush=True)
    text = page(results, time.monotonic() - began, len(os.sched_getaffinity(0)))
    Path(__file__).with_name("parity.md").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
