"""Memory per event of one trace file: `python -m benchmarks.trace_memory [MILLIONS...]`, by default 1, 4 and 8.

Each file is the public A100 trace (a generated one if it is not there) repeated in time. An event is an entry of
`traceEvents`. The peak is the resident memory of the process; bytes per event leave out the peak at a single copy.
`measure_files` books the steps; the report adds findings and tables, whose idle stretches are as many as the events.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.__main__ import PUBLIC
from benchmarks.process import Cost, once

SIZES = (1.0, 4.0, 8.0)
_MEASURE = "import sys; from trainyard import measure_files; measure_files(sys.argv[1:])"
FORMS = {
    "ledgers": (sys.executable, "-c", _MEASURE),
    "report": (sys.executable, "-m", "trainyard.cli.main", "trace"),
}
_COUNT = """
import gzip, json, sys
print(len(json.loads(gzip.open(sys.argv[1]).read())["traceEvents"]))
"""
_GENERATE = """
import gzip, sys
from pathlib import Path
from benchmarks import synthetic
path = Path(sys.argv[1])
synthetic.write(path)
kineto = path.read_bytes().removesuffix(b"]}") + b"\\n  ]}"  # the list ends on a line of its own
path.write_bytes(gzip.compress(kineto))
"""


class Row(NamedTuple):
    """A file's events and unpacked bytes, and the cost of each form of output."""

    events: int
    size: int
    costs: dict[str, Cost]


def measure(millions: Sequence[float], folder: Path) -> Iterator[Row]:
    """A row for the single copy, then one for each size. This process stays small: a child's peak starts at its own."""
    source = PUBLIC
    if not source.exists():
        source = folder / "generated.json.gz"
        _output(["-c", _GENERATE, str(source)])
    in_one = int(_output(["-c", _COUNT, str(source)]))
    for copies in (1, *(max(2, round(1e6 * wanted / in_one)) for wanted in millions)):
        path = folder / f"x{copies}.json.gz"
        unpacked = _output(["-m", "benchmarks.replicate", str(source), str(copies), str(path)])
        size = int(unpacked.split()[0].replace(",", ""))
        costs = {form: once([*command, str(path)]) for form, command in FORMS.items()}
        yield Row(copies * in_one, size, costs)
        path.unlink()


def _output(args: Sequence[str]) -> str:
    """What a Python process prints; its memory is not ours."""
    return subprocess.run([sys.executable, *args], check=True, capture_output=True, text=True).stdout


def main(args: Sequence[str]) -> None:
    heads = "".join(f"  {form + ', MB':>12} {'B/event':>8} {'CPU s':>6}" for form in FORMS)
    print(f"{'events':>12} {'text, MB':>9}{heads}")
    with tempfile.TemporaryDirectory() as folder:
        rows = measure([float(arg) for arg in args] or SIZES, Path(folder))
        base = next(rows)
        for row in rows:
            line = f"{row.events:>12,} {row.size / 1e6:>9,.0f}"
            for form, cost in row.costs.items():
                each = (cost.peak_bytes - base.costs[form].peak_bytes) / (row.events - base.events)
                line += f"  {cost.peak_bytes / 1e6:>12,.0f} {each:>8.0f} {cost.cpu_s:>6.1f}"
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
