"""The planner's step times and memory against published measurements: `make validate`, or `make validate ROWS=FILE`
for any file with the same columns. Prints tables, and writes validation/out/plan.json.

Constants were fitted to some of the published rows (validation/fit.py). Of these sources only held-out rows are counted
here; of any other file all rows are. Unsupported configurations are listed with the reason. Without the published data
next to the checkout only the tables in validation/megatron.csv are evaluated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from trainyard.errors import TrainyardError
from trainyard.predict.inputs import cases, constant_sets, machine_model
from trainyard.predict.inputs.prediction_interval import Interval, interval_of
from trainyard.predict.memory import framework_memory
from trainyard.report.render.terminal import print_table
from trainyard.report.view.view import Column, Table
from validation import constant_tables, fit, interval_tables, intervals, left_out, rows
from validation.intervals import Prediction
from validation.rows import Row

OUT = Path(__file__).parent / "out" / "plan.json"
ENOUGH = 30
"""Rows a group needs for its errors to be judged."""
ANCHORS = 4
"""Measured rows of a group from which the rest is rescaled (`anchored`)."""
_SCALE = 0.2
"""Standard deviation of the logarithm of a cluster's scale, relative to the clusters fitted to."""
WORST = 3


def errors(chosen: Sequence[Row]) -> tuple[np.ndarray, list[Prediction]]:
    """Relative errors (predicted over measured, less 1) of rows of one device and software, and their prediction
    intervals."""
    machine = rows.machine_of(chosen[0])
    known = constant_sets.choose(machine, chosen[0].software)
    expected, seconds = fit.predicted(chosen, known.values())
    predictions = [
        Prediction(_interval(row), float(np.log(ratio)), fit.log_spread(row, known.values()))
        for row, ratio in zip(chosen, seconds / expected, strict=True)
    ]
    return expected / seconds - 1, predictions


def _interval(row: Row) -> Interval:
    """The prediction interval of a row."""
    machine = rows.machine_of(row)
    compute, low = rows.precision_of(row.precision, machine)
    model = machine_model.build(machine, row.software, low or compute)
    return interval_of(model, cases.build(**row.columns))


def anchored(errors: np.ndarray) -> np.ndarray:
    """Errors after rescaling by the mean error of a few evenly spaced rows, which are left out: fully if these agree,
    little if they disagree (empirical Bayes: Efron and Morris, JASA 70, 1975)."""
    anchors = np.linspace(0, len(errors) - 1, ANCHORS).round().astype(int)
    logs = np.log1p(errors[anchors])
    share = _SCALE**2 / (_SCALE**2 + np.var(logs, ddof=1) / ANCHORS)
    return (1 + np.delete(errors, anchors)) * np.exp(-share * np.mean(logs)) - 1


def group(name: tuple[str, str, str], chosen: Sequence[Row]) -> dict[str, Any]:
    """The figures of one source, device and kind of model."""
    off, predictions = np.empty(len(chosen)), np.empty(len(chosen), object)
    by_constants: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, row in enumerate(chosen):
        by_constants[row.machine, row.software].append(index)
    for indices in by_constants.values():
        off[indices], predictions[indices] = errors([chosen[index] for index in indices])
    covered = np.array([prediction.holds for prediction in predictions])
    calibrated = np.array([prediction.interval.calibrated for prediction in predictions])
    widths = [prediction.width for prediction in predictions[calibrated]]
    worst = sorted(range(len(chosen)), key=lambda index: -abs(off[index]))[:WORST]
    figures: dict[str, Any] = {
        "source": name[0], "device": name[1], "kind": name[2], "n": len(chosen), "mape": float(np.mean(np.abs(off))),
        "median": float(np.median(np.abs(off))), "bias": float(np.mean(off)), "coverage": float(np.mean(covered)),
        "calibrated_n": int(np.sum(calibrated)),
        "calibrated_coverage": float(np.mean(covered[calibrated])) if np.any(calibrated) else None,
        "calibrated_width": float(np.median(widths)) if len(widths) else None,
        "worst": [{"id": chosen[index].id, "error": round(float(off[index]), 4)} for index in worst],
    }  # fmt: skip
    if len(chosen) > ANCHORS:
        rest = anchored(off)
        figures["after_anchors"] = {"anchors": ANCHORS, "n": len(rest), "mape": float(np.mean(np.abs(rest)))}
    return figures


def peaks(chosen: Sequence[Row]) -> dict[str, Any]:
    """Errors of predicted bytes relative to the measured peak."""
    batch = cases.build(**{name: [row.columns[name] for row in chosen] for name in chosen[0].columns})
    factor = np.array([framework_memory.RESERVED if row.reserved else 1.0 for row in chosen])
    off = framework_memory.memory(batch).total * factor / np.array([row.peak_bytes for row in chosen]) - 1
    return {
        "source": chosen[0].source, "device": chosen[0].accelerator, "kind": chosen[0].kind, "n": len(chosen),
        "mape": float(np.mean(np.abs(off))), "median": float(np.median(np.abs(off))), "bias": float(np.mean(off)),
    }  # fmt: skip


def validate(every: Sequence[Row], known: bool) -> dict[str, Any]:
    """The figures of all rows. `known`: constants were fitted to some of these rows, which are then left out."""
    timed: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    sized: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    fitted = 0
    for row in every:
        key = row.source, row.accelerator, row.kind
        if not row.reason and row.peak_bytes:
            sized[key].append(row)
        if row.reason or not row.seconds:
            continue
        if known and fit.is_fitted(row) and row.kind != "hybrid":
            fitted += 1
        else:
            timed[key].append(row)
    unsupported = [{"id": row.id, "reason": row.reason or "no step time or token rate is given"} for row in every
                   if row.reason or not (row.seconds or row.peak_bytes)]  # fmt: skip
    return {
        "schema": "trainyard/validation/1",
        "groups": [group(key, timed[key]) for key in sorted(timed)],
        "memory": [peaks(sized[key]) for key in sorted(sized)],
        "fitted_rows_left_out": fitted,
        "unsupported": unsupported,
    }


def show(figures: dict[str, Any], console: Console) -> None:
    heads = (
        "mean, %", "median, %", "bias, %", "in interval, %", "calibrated", "in calibrated, %", "width",
        "after 4 anchors, %",
    )  # fmt: skip
    lines = [
        (
            f"{entry['source']}, {entry['device']}, {entry['kind']}", entry["n"],
            *(100 * entry[name] for name in ("mape", "median", "bias", "coverage")), entry["calibrated_n"],
            100 * entry["calibrated_coverage"] if entry["calibrated_n"] else None, entry["calibrated_width"],
            100 * entry["after_anchors"]["mape"] if "after_anchors" in entry else None,
            f"{entry['worst'][0]['id']} {entry['worst'][0]['error'] * 100:+.0f} %",
        )
        for entry in figures["groups"]
    ]  # fmt: skip
    columns = (
        Column(title="source"), Column(title="n", digits=0), *(Column(title=name, digits=1) for name in heads),
        Column(title="worst"),
    )  # fmt: skip
    print_table(
        Table(title="Step time: predicted over measured, less 1", notes=(), columns=columns, rows=tuple(lines)), console
    )
    console.print()
    lines = [(f"{entry['source']}, {entry['device']}, {entry['kind']}", entry["n"],
              *(100 * entry[name] for name in ("mape", "median", "bias"))) for entry in figures["memory"]]  # fmt: skip
    title = "Memory: predicted over measured peak, less 1"
    print_table(Table(title=title, notes=(), columns=columns[:5], rows=tuple(lines)), console)
    reasons = Counter(entry["reason"] for entry in figures["unsupported"])
    console.print(f"\n{len(figures['unsupported'])} configurations are not supported:")
    for reason, count in reasons.most_common():
        console.print(f"  {count:4d}  {reason}", markup=False)
    console.print(f"{figures['fitted_rows_left_out']} rows are left out: constants or intervals were fitted to them.")


def show_intervals(every: Sequence[Row], console: Console) -> None:
    """Prints the tables of the rows whose source or device was left out (`left_out.py`)."""
    judged = intervals.judge(left_out.read())
    by_owner = [entry for entry in judged if entry[0].split == "owner"]
    by_machine = [entry for entry in judged if entry[0].split == "machine"]
    used = [row for row in fit.usable(every) if left_out.is_used(row)]
    for table in (
        interval_tables.coverage_table("Sources left out", by_owner, lambda residual: residual.owner),
        interval_tables.coverage_table("Devices left out", by_machine, lambda residual: residual.machine),
        interval_tables.coverage_table("By distance, both", judged, interval_tables.distance_class),
    ):
        console.print()
        print_table(table, console)
    console.print(
        f"\nThe {interval_tables.WORST} largest errors of left-out sources, and how they differ from the fitted rows:"
    )
    for line in interval_tables.worst_rows(judged, {row.id: row for row in used}, used):
        console.print(f"  {line}", markup=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=None, help="a file with the columns of the published one")
    chosen = parser.parse_args().rows
    try:
        every = rows.read(chosen) if chosen else fit.published()
        figures = validate(every, known=chosen is None)
    except TrainyardError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    console = Console(width=160)
    show(figures, console)
    if chosen is None and fit.PUBLISHED.is_file():
        show_intervals(every, console)
        console.print()
        print_table(constant_tables.constants_table(constant_sets.known()), console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
