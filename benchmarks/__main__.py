"""Measures and prints: start-up, a trace to a printed ledger, booking. Targets are the project's own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from benchmarks import synthetic
from benchmarks.process import cost

_DATA = os.environ.get("TRAINYARD_PUBLIC_DATA", Path(__file__).parents[2] / "shared" / "data")
PUBLIC = Path(_DATA) / "traces" / "a100_ddp_resnet.json.gz"


class Row(NamedTuple):
    what: str
    value: float
    unit: str
    target: str


def startup() -> list[Row]:
    rows = []
    for option in ("--help", "--version"):
        spent = cost([option], repeats=11)
        rows += [
            Row(f"trainyard {option}: CPU", spent.cpu_s * 1e3, "ms", "< 100"),
            Row(f"trainyard {option}: peak memory", spent.peak_bytes / 1e6, "MB", "< 60"),
        ]
    return rows


def trace(folder: Path) -> list[Row]:
    rows = []
    generated = folder / "synthetic.json"
    count = synthetic.write(generated)
    paths = [(f"generated trace, {count:,} events", generated)]
    if PUBLIC.exists():
        paths.append(("public A100 trace, 40k events", PUBLIC))
    for name, path in paths:
        spent = cost(["trace", str(path)], repeats=5)
        rows += [
            Row(f"{name}, to a printed ledger: CPU", spent.cpu_s, "s", "< 1"),
            Row(f"{name}: peak memory", spent.peak_bytes / 1e6, "MB", ""),
        ]
    page = str(folder / "demo.html")
    spent = cost(["demo", "--out", page], repeats=5)
    rows.append(Row("trainyard demo, ledger and page: CPU", spent.cpu_s, "s", "< 2"))
    return rows


def booking() -> list[Row]:
    # One thread: a CPU-second is not helped by idle BLAS threads, and they do nothing here.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.booking"], env=env, capture_output=True, text=True, check=True
    )
    return [Row("booking", float(done.stdout) / 1e6, "M intervals / CPU s", "> 1")]


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [*startup(), *trace(Path(folder)), *booking()]
    packages = ", ".join(f"{name} {version(name)}" for name in ("trainyard", "click", "rich", "msgspec", "numpy"))
    print(f"{datetime.now(UTC):%Y-%m-%d}, {processor()} x {os.cpu_count()}, {platform.system()} {platform.release()}")
    print(f"Python {platform.python_version()}, {packages}\n")
    wide = max(len(row.what) for row in rows)
    for row in rows:
        print(f"{row.what:<{wide}}  {row.value:>9.2f} {row.unit:<20} {row.target}".rstrip())


if __name__ == "__main__":
    main()
