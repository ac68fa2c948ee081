"""Table of parity results over combinations of parallelism."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.numerics.parity import Parity
from trainyard.report.view.view import Column, Table


def table(results: Sequence[Parity], steps: int) -> Table:
    """One row per combination, in the order they were run."""
    counts = {
        verdict: sum(parity.verdict == verdict for parity in results) for verdict in ("equal", "different", "refused")
    }
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    return Table(
        title="Parity with one process",
        notes=(
            f"{summary}, over {steps} steps. Errors are the largest relative errors of any step, of the loss and "
            "of the global gradient norm. The reference is one process that runs the same micro-batches in sequence in "
            "the same number format, without recomputation, compilation or offloading.",
            *(f"{parity.mix}: {parity.verdict}: {parity.why}" for parity in results if parity.why),
        ),
        columns=(
            Column(head="mix"),
            Column(head="ranks", digits=0),
            Column(head="format"),
            Column(head="loss error"),
            Column(head="norm error"),
            Column(head="tolerance"),
            Column(head="verdict"),
            Column(head="s", digits=1),
        ),
        rows=tuple(
            (
                parity.mix,
                parity.ranks,
                parity.dtype,
                format_error(parity.loss_error),
                format_error(parity.grad_norm_error),
                f"{parity.tolerance:g}",
                parity.verdict,
                parity.seconds,
            )
            for parity in results
        ),
    )


def format_error(error: float | None) -> str | None:
    return None if error is None else "0" if error == 0 else f"{error:.1e}"
