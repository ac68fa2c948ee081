"""Fuzzes the readers and prints a table: `python -m validation.fuzz [READER...] [--inputs N] [--jobs N]`.

Runs in the environment that `make fuzz` creates. The inputs of earlier runs, in out/fuzz, are counted: a run continues
where the last one ended until every reader has had its inputs. `--table` only prints. Exits with 1 if a reader
crashed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console

from trainyard.report.render.terminal import print_table
from trainyard.report.view.view import Column, Table
from validation.fuzz import scan
from validation.fuzz.figures import Crash, Figures, read_figures, write_figures
from validation.fuzz.readers import READERS

OUT = Path("out/fuzz").resolve()
SLICE = 100_000
"""Inputs of one process: memory that a process loses is given back."""
_DEATHS = 5
"""Deaths of a reader's processes after which it is given up."""


def fuzz(name: str, inputs: int) -> None:
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    if name == scan.NAME:
        if (installed := scan.tools()) and (left := inputs - read_figures(folder).inputs) > 0:
            scan.fuzz(scan.build(installed, folder), folder, left)
        return
    deaths = 0
    while (left := inputs - read_figures(folder).inputs) > 0 and deaths < _DEATHS:
        command = [sys.executable, "-m", "validation.fuzz.worker", name, "--folder", str(folder)]
        with (folder / "log").open("ab") as log:
            done = subprocess.run([*command, "--inputs", str(min(SLICE, left))], stdout=log, stderr=log, check=False)
        if done.returncode:
            deaths += 1
            figures = read_figures(folder)
            crash = figures.crashes.setdefault(f"exit {done.returncode}", Crash("see the log", "log"))
            crash.count += 1
            write_figures(folder, figures)


def cover(name: str) -> dict[str, tuple[int, int]]:
    folder = OUT / name
    if name == scan.NAME:
        installed = scan.tools()
        if installed is None or not (folder / "scan_fuzz").is_file():
            return {}
        inputs = [*scan.write_seeds(folder / "seeds").iterdir(), *(folder / "corpus").iterdir()]
        return scan.cover(installed, folder / "scan_fuzz", folder, inputs)
    command = [sys.executable, "-m", "validation.fuzz.cover", name, "--found", str(folder / "corpus")]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def row(name: str, figures: Figures, covered: dict[str, tuple[int, int]]) -> tuple[str, ...]:
    lines = [f"{some:,}/{total:,}" for some, total in covered.values()] or ["-", "-"]
    crashes = f"{len(figures.crashes)} ({sum(crash.count for crash in figures.crashes.values()):,})"
    return (
        name, f"{figures.inputs:,}", f"{figures.inputs / max(figures.cpu_s, 1e-9):,.0f}",
        f"{100 * figures.decoded / max(figures.inputs, 1):.0f} %", *lines, crashes if figures.crashes else "0",
        f"{figures.slowest_s:.3f}", f"{figures.grown_mb:.0f}", f"{figures.peak_mb:.0f}",
    )  # fmt: skip


def main() -> int:
    names = [*READERS, scan.NAME]
    parser = argparse.ArgumentParser(prog="python -m validation.fuzz", description=__doc__)
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"of {', '.join(names)}; all if none is given")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of each reader, earlier runs included")
    parser.add_argument("--jobs", type=int, default=1, help="readers at a time")
    parser.add_argument("--table", action="store_true", help="print the figures of earlier runs only")
    options = parser.parse_args()
    if unknown := set(options.readers) - set(names):
        parser.error(f"unknown readers: {', '.join(sorted(unknown))}")
    chosen = options.readers or names
    if not options.table:
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda name: fuzz(name, options.inputs), chosen))
    figures = {name: read_figures(OUT / name) for name in chosen}
    heads = (
        "inputs",
        "a CPU second",
        "decoded",
        "lines",
        "branches",
        "crashes (inputs)",
        "slowest, s",
        "grew, MB",
        "peak, MB",
    )
    rows = tuple(row(name, figures[name], cover(name)) for name in chosen if figures[name].inputs)
    columns = tuple(Column(title=head) for head in ("reader", *heads))
    print_table(Table(title="Fuzzing", notes=(), columns=columns, rows=rows), Console(width=160))
    for name in chosen:
        for key, crash in figures[name].crashes.items():
            print(f"{name}: {key}: {crash.error} ({crash.count:,}; out/fuzz/{name}/crashes/{crash.file})")
    return int(any(counts.crashes for counts in figures.values()))


if __name__ == "__main__":
    sys.exit(main())
