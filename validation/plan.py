"""A planner's step times and memory against published measurements: `make validate`, or `make validate ROWS=FILE` for
any file in the same columns. Prints a table, and writes validation/out/plan.json.

Constants were fitted to some of the published rows (validation/fit.py). Of those sources only the rows that were kept
back are counted here; rows of any other file are all counted. What cannot be represented is named with the reason.
Without the published data beside the checkout only the tables of validation/megatron.csv are judged.
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
from trainyard.predict.inputs import cases, constant_sets
from trainyard.predict.memory import framework_memory
from trainyard.report.render.terminal import print_table
from trainyard.report.view.view import Column, Table
from validation import fit, rows
from validation.rows import Row

OUT = Path(__file__).parent / "out" / "plan.json"
MEGATRON = Path(__file__).parent / "megatron.csv"
"""Tables of two papers on a cluster that nothing was fitted to."""
ENOUGH = 30
"""Rows a group needs for its errors to be judged."""
ANCHORS = 4
_SCALE = 0.2
"""How far a cluster may be from what was fitted to others: the standard deviation of its logarithm."""
WORST = 3


def errors(some: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Of rows of one device and software: predicted over measured, less 1; whether the interval holds the measured."""
    machine = rows.machine_of(some[0])
    known = constant_sets.choose(machine, some[0].software)
    expected, seconds = fit.predicted(some, known.values())
    low, high = known.interval(some[0].kind)
    ratio = seconds / expected
    return expected / seconds - 1, (low <= ratio) & (ratio <= high)


def anchored(off: np.ndarray) -> np.ndarray:
    """The errors of all rows but a few, spread among them, once the rest is scaled by what those say: all of it where
    they agree, little of it where each says something else (empirical Bayes: Efron and Morris, JASA 70, 1975)."""
    places = np.linspace(0, len(off) - 1, ANCHORS).round().astype(int)
    said = np.log1p(off[places])
    share = _SCALE**2 / (_SCALE**2 + np.var(said, ddof=1) / ANCHORS)
    return (1 + np.delete(off, places)) * np.exp(-share * np.mean(said)) - 1


def group(name: tuple[str, str, str], some: Sequence[Row]) -> dict[str, Any]:
    """The figures of one source, device and kind of model."""
    off, held = np.empty(len(some)), np.empty(len(some), bool)
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, row in enumerate(some):
        alike[row.machine, row.software].append(place)
    for places in alike.values():
        off[places], held[places] = errors([some[place] for place in places])
    worst = sorted(range(len(some)), key=lambda place: -abs(off[place]))[:WORST]
    found: dict[str, Any] = {
        "source": name[0], "device": name[1], "kind": name[2], "n": len(some), "mape": float(np.mean(np.abs(off))),
        "median": float(np.median(np.abs(off))), "bias": float(np.mean(off)), "coverage": float(np.mean(held)),
        "worst": [{"id": some[place].id, "error": round(float(off[place]), 4)} for place in worst],
    }  # fmt: skip
    if len(some) > ANCHORS:
        rest = anchored(off)
        found["after_anchors"] = {"anchors": ANCHORS, "n": len(rest), "mape": float(np.mean(np.abs(rest)))}
    return found


def peaks(some: Sequence[Row]) -> dict[str, Any]:
    """How far predicted bytes are from the measured peak."""
    made = cases.build(**{name: [row.columns[name] for row in some] for name in some[0].columns})
    held = np.array([framework_memory.RESERVED if row.reserved else 1.0 for row in some])
    off = framework_memory.memory(made).total * held / np.array([row.peak_bytes for row in some]) - 1
    return {
        "source": some[0].source, "device": some[0].accelerator, "kind": some[0].kind, "n": len(some),
        "mape": float(np.mean(np.abs(off))), "median": float(np.median(np.abs(off))), "bias": float(np.mean(off)),
    }  # fmt: skip


def validate(every: Sequence[Row], known: bool) -> dict[str, Any]:
    """`known`: these are the rows that constants were fitted to, so that a part of them is left out."""
    timed: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    sized: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    fitted = 0
    for row in every:
        key = row.source, row.accelerator, row.kind
        if not row.reason and row.peak_bytes:
            sized[key].append(row)
        if row.reason or not row.seconds:
            continue
        if known and fit.part(row) != "report" and any(one.wanted(row) for one in fit.FITS):
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


def show(found: dict[str, Any], console: Console) -> None:
    figures = ("mean, %", "median, %", "bias, %", "in interval, %", "after 4 anchors, %")
    lines = [
        (
            f"{one['source']}, {one['device']}, {one['kind']}", one["n"],
            *(100 * one[name] for name in ("mape", "median", "bias", "coverage")),
            100 * one["after_anchors"]["mape"] if "after_anchors" in one else None,
            f"{one['worst'][0]['id']} {one['worst'][0]['error'] * 100:+.0f} %",
        )
        for one in found["groups"]
    ]  # fmt: skip
    columns = (
        Column(head="source"), Column(head="n", digits=0), *(Column(head=name, digits=1) for name in figures),
        Column(head="worst"),
    )  # fmt: skip
    print_table(
        Table(title="Step time: predicted over measured, less 1", notes=(), columns=columns, rows=tuple(lines)), console
    )
    console.print()
    lines = [(f"{one['source']}, {one['device']}, {one['kind']}", one["n"],
              *(100 * one[name] for name in ("mape", "median", "bias"))) for one in found["memory"]]  # fmt: skip
    title = "Memory: predicted over measured peak, less 1"
    print_table(Table(title=title, notes=(), columns=columns[:5], rows=tuple(lines)), console)
    reasons = Counter(one["reason"] for one in found["unsupported"])
    console.print(f"\n{len(found['unsupported'])} configurations are not represented:")
    for reason, count in reasons.most_common():
        console.print(f"  {count:4d}  {reason}", markup=False)
    console.print(f"{found['fitted_rows_left_out']} were fitted to, or set the intervals, and are left out.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=None, help="a file in the columns of the published one")
    given = parser.parse_args().rows
    paths = [given] if given else [path for path in (fit.PUBLISHED, MEGATRON) if path.is_file()]
    try:
        found = validate([row for path in paths for row in rows.read(path)], known=given is None)
    except TrainyardError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    show(found, Console(width=160))
    return 0


if __name__ == "__main__":
    sys.exit(main())
