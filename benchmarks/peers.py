"""Traces to temporal breakdown, overlap and kernel totals: other tools and ours, CPU and memory, on one core.

`python -m benchmarks.peers` prints two tables: all shared traces, the small ones included, against HTA; and a long
trace against all tools. `python -m benchmarks.peers shared` prints the first only. Our report includes findings, priced
by replays, which HTA does not compute. The tools are installed in an environment of their own, whose Python
TRAINYARD_PEERS names (`out/peers/bin/python` by default); a tool that is not installed is left out with a message.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.__main__ import PUBLIC, processor
from benchmarks.process import Cost, once
from benchmarks.replicate import replicate

OUT = Path("out").resolve()
PEERS = os.environ.get("TRAINYARD_PEERS", str(OUT / "peers" / "bin" / "python"))
COPIES = (40, 80)
REPEATS = 3
"""Repeats of our runs; the other tools take minutes and run once."""
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}

_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files=dict(enumerate(sys.argv[1:])))
found.get_temporal_breakdown(visualize=False)
found.get_comm_comp_overlap(visualize=False)
found.get_gpu_kernel_breakdown(visualize=False)
"""
_TRACELENS = """
import sys, tempfile
from TraceLens.Reporting.generate_perf_report_pytorch import generate_perf_report_pytorch
with tempfile.TemporaryDirectory() as folder:
    generate_perf_report_pytorch(profile_json_path=sys.argv[1], output_csvs_dir=folder)
"""
_TIMELINE = """
import sys
from TraceLens import TreePerfAnalyzer
TreePerfAnalyzer.from_file(sys.argv[1]).get_df_gpu_timeline()
"""
_LEDGERS = """
import sys
from trainyard import measure_files
from trainyard.ledger import to_json
sys.stdout.buffer.write(to_json(measure_files([sys.argv[1]], "all").ledgers))
"""
_NO_ISAL = "import sys; sys.modules['isal'] = None"


class Tool(NamedTuple):
    """Something that reads the trace: `command` is followed by the path and `options`."""

    name: str
    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    repeats: int = 1

    def run(self, *traces: Path) -> Cost:
        """The median cost of reading the traces. Raises `CalledProcessError` if the tool fails."""
        command = [*self.command, *map(str, traces), *self.options]
        costs = [once(command, {**ONE_THREAD, **self.environment}) for _ in range(self.repeats)]
        return Cost(median(cost.cpu_s for cost in costs), median(cost.peak_bytes for cost in costs))


def ours() -> list[Tool]:
    ledgers, pure = (sys.executable, "-c", _LEDGERS), {"TRAINYARD_PURE": "1"}
    report = (sys.executable, "-m", "trainyard.cli.main", "trace")
    return [
        Tool("ours, compiled, ledgers", ledgers, (), {}, REPEATS),
        Tool("ours, compiled, printed report", report, (), {}, REPEATS),
        *([Tool("ours, pure Python, isal", ledgers, (), pure, REPEATS)] if find_spec("isal") else []),
        Tool("ours, pure Python", (sys.executable, "-c", _NO_ISAL + _LEDGERS), (), pure, REPEATS),
    ]


def peers() -> list[Tool]:
    """Those that are installed, each by its library's way to the same answers."""
    named = [
        ("HTA", "HolisticTraceAnalysis", "hta", _HTA),
        ("TraceLens, perf report", "TraceLens", "TraceLens", _TRACELENS),
        ("TraceLens, timeline only", "TraceLens", "TraceLens", _TIMELINE),
    ]
    tools = []
    for name, package, module, script in named:
        # The module too: another project's package has TraceLens' name.
        look = f"import {module}; from importlib.metadata import version as v; print(v({package!r}), v('pandas'))"
        done = subprocess.run([PEERS, "-c", look], capture_output=True, text=True, check=False) if _there() else None
        if done is None or done.returncode:
            print(f"{name}: not installed for {PEERS}.", file=sys.stderr)
            continue
        own, pandas = done.stdout.split()
        tools.append(Tool(f"{name} {own}, pandas {pandas}", (PEERS, "-c", script)))
    return tools


def _there() -> bool:
    return Path(PEERS).exists()


def traces() -> dict[int, Path]:
    """Copies -> the benchmark's file; made where it is not there yet."""
    OUT.mkdir(exist_ok=True)
    paths = {copies: OUT / f"{PUBLIC.name.removesuffix('.json.gz')}_x{copies}.json.gz" for copies in COPIES}
    for copies, path in paths.items():
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=OUT) as folder:
                trace = Path(folder) / path.name
                replicate(PUBLIC, copies, trace)
                trace.rename(path)
    return paths


def shared_traces() -> dict[str, list[Path]]:
    """Name -> files of each shared trace; a folder is one job of several ranks."""
    folder = PUBLIC.parent
    return {
        path.name.removesuffix(".json.gz"): sorted(path.iterdir()) if path.is_dir() else [path]
        for path in sorted(folder.iterdir())
    }


def compare_shared(hta: Tool | None, report: Tool) -> None:
    """Prints a line for each shared trace: CPU seconds and memory of HTA and of our printed report, and their ratio."""
    print(f"{'shared trace':<28}{'HTA, CPU s':>11}{'MB':>6}{'ours, CPU s':>13}{'MB':>6}{'CPU':>7}{'memory':>8}")
    for name, files in shared_traces().items():
        own = report.run(*files)
        try:
            peer = hta.run(*files) if hta else None
        except subprocess.CalledProcessError:
            peer = None
        theirs = (
            f"{peer.cpu_s:>11.2f}{peer.peak_bytes / 1e6:>6.0f}" if peer else f"{'failed' if hta else '':>11}{'':>6}"
        )
        ratios = f"{own.cpu_s / peer.cpu_s:>7.2f}{own.peak_bytes / peer.peak_bytes:>8.2f}" if peer else ""
        print(f"{name:<28}{theirs}{own.cpu_s:>13.2f}{own.peak_bytes / 1e6:>6.0f}{ratios}", flush=True)
    print()


def main(only_shared: bool = False) -> None:
    """Prints the tables; only that of the shared traces if `only_shared`."""
    if not PUBLIC.exists():
        raise SystemExit(f"The public A100 trace is not on this machine ({PUBLIC.name} in TRAINYARD_PUBLIC_DATA).")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # children stay on it
    others, own = peers(), ours()
    for tool in own:
        tool._replace(repeats=1).run(PUBLIC)  # bytecode and page cache
    print(f"{datetime.now(UTC):%Y-%m-%d}, {processor()}, one core, {platform.system()} {platform.release()}")
    names = ["trainyard", "msgspec", "numpy", *(["isal"] if find_spec("isal") else [])]
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    print(f"Python {platform.python_version()}, {packages}")
    hta = next((tool._replace(repeats=REPEATS) for tool in others if tool.name.startswith("HTA")), None)
    compare_shared(hta, next(tool for tool in own if tool.name.endswith("printed report")))
    if only_shared:
        return
    paths = traces()
    print(f"The public A100 trace, {' and '.join(str(copies) for copies in COPIES)} times in time, gzipped.\n")
    few, many = COPIES
    costs = {(tool.name, copies): tool.run(paths[copies]) for copies in COPIES for tool in (*others, *own)}
    wide = max(len(tool.name) for tool in (*others, *own))
    firsts = [tool for tool in others if "timeline" not in tool.name]
    head = "".join(f"{'vs ' + tool.name.split(',')[0].split()[0]:>13}" for tool in firsts)
    print(f"{'':<{wide}}  {'CPU s':>7} {'MB':>7}  {f'CPU s x{many}':>9} {f'MB x{many}':>7}{head}")
    for tool in (*others, *own):
        at_few, at_many = costs[tool.name, few], costs[tool.name, many]
        ratios = "".join(f"{costs[peer.name, few].cpu_s / at_few.cpu_s:>12.1f}x" for peer in firsts)
        print(
            f"{tool.name:<{wide}}  {at_few.cpu_s:>7.2f} {at_few.peak_bytes / 1e6:>7.0f}"
            f"  {at_many.cpu_s:>9.2f} {at_many.peak_bytes / 1e6:>7.0f}{ratios}"
        )


if __name__ == "__main__":
    main(sys.argv[1:] == ["shared"])
