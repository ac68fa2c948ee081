"""HTA's own figures beside ours by HTA's rules, trace by trace: `python -m benchmarks.figures [TRACE...]`.

Where HTA stops, its last word stands in the figures' place. HTA stands where `benchmarks.peers` looks for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.__main__ import PUBLIC
from benchmarks.peers import PEERS
from trainyard.errors import BadInput
from trainyard.events import Events
from trainyard.trace.measure import read
from trainyard.trace.reconcile import hta

_FIGURES = ("kernel_time", "idle_time", "compute_time", "non_compute_time")
_OVERLAP = "comp_comm_overlap_pctg"
_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1]})
figures = found.get_temporal_breakdown(visualize=False).iloc[0].to_dict()
figures |= found.get_comm_comp_overlap(visualize=False).iloc[0].to_dict()
import json
print("\\n" + json.dumps(figures))
"""


def theirs(path: Path) -> dict[str, float] | str:
    done = subprocess.run([PEERS, "-c", _HTA, str(path.resolve())], capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    found = json.loads(done.stdout.splitlines()[-1])
    return {**{name: found[f"{name}(us)"] for name in _FIGURES}, _OVERLAP: found[_OVERLAP]}


def ours(events: Events) -> dict[str, float] | str:
    try:
        figures = hta(events)
    except BadInput as error:
        return error.message
    share = figures.overlap
    known = {name: figures.ns(name) / 1000 for name in _FIGURES}
    return {**known, _OVERLAP: float("nan") if share is None else round(100 * share, 2)}


def main(paths: list[Path]) -> None:
    print(f"{'':<28} {'figure':<24} {'HTA':>12} {'ours':>12} {'difference':>11}")
    for path in paths or sorted(path for path in PUBLIC.parent.rglob("*.json*") if path.is_file()):
        (events, *_) = read([path])
        name, told, own = path.name.removesuffix(".gz").removesuffix(".json"), theirs(path), ours(events)
        if isinstance(told, str) or isinstance(own, str):
            print(f"{name:<28} HTA: {told}", f"{'':<28} ours: {own}", sep="\n")
            continue
        for figure in told:
            difference = own[figure] - told[figure]
            print(f"{name:<28} {figure:<24} {told[figure]:>12.2f} {own[figure]:>12.2f} {difference:>11.2f}")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
