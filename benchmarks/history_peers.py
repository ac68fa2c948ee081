"""Change points by other tools and by ours, on the same series: reported where there is none, found where there is one,
and agreement with people's annotations where the public series are there.

`make bench-history` installs the others in out/history-peers and prints one table; `python -m benchmarks.history_peers`
takes the Python that TRAINYARD_HISTORY_PEERS names. Each tool runs at its defaults. One that is not there is left out,
which is said.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from validation import history as scores
from validation.history_noise import DATA, POINTS, permuted, step_times
from validation.history_null import autocorrelated

PEERS = os.environ.get("TRAINYARD_HISTORY_PEERS", "out/history-peers/bin/python")
COUNT = 60
"""Series of each kind."""
_NEAR = 10
_ASK = """
import json, sys, time
sets = json.load(open(sys.argv[1]))
{how}
found, begun = dict(), time.process_time()
for name, rows in sets.items():
    found[name] = [[int(at) for at in detect(row)] for row in rows]
json.dump(dict(found=found, seconds=time.process_time() - begun), open(sys.argv[2], "w"))
"""
_OURS = """
from trainyard.compare.history.detect_changes import detect as ours
from trainyard.errors import NotEnoughEvidence
from validation.history import reported
def detect(row):
    try:
        return reported(ours(row))
    except NotEnoughEvidence:
        return []
"""
_OTAVA = """
from otava.analysis import compute_change_points
def detect(row):
    return [one.index for one in compute_change_points(row)[0]]
"""
_MONGO = """
import numpy as np
np.random.seed(0)
from signal_processing_algorithms.energy_statistics.energy_statistics import e_divisive
def detect(row):
    return e_divisive(row)
"""
_ASV = """
from asv.step_detect import detect_steps
def detect(row):
    return [step[0] for step in detect_steps(row)][1:]
"""
_RUPTURES = """
import numpy as np, ruptures
def detect(row):
    row = np.array(row)
    scaled = (row - row.mean()) / (row.std() or 1.0)
    return ruptures.Pelt("l2", min_size=2, jump=1).fit(scaled).predict(pen=2 * np.log(len(row)))[:-1]
"""
_FIXED = """
def detect(row):
    found = [at for at in range(10, len(row)) if row[at] > 1.05 * sum(row[:at]) / at]
    return found[:1]
"""


class Tool(NamedTuple):
    name: str
    how: str
    python: str = PEERS


TOOLS = (
    Tool("trainyard", _OURS, sys.executable),
    Tool("Apache Otava", _OTAVA),
    Tool("MongoDB e-divisive", _MONGO),
    Tool("asv step detection", _ASV),
    Tool("ruptures PELT, L2, 2 log n", _RUPTURES),
    Tool("5 % above the mean so far", _FIXED, sys.executable),
)


class Outcome(NamedTuple):
    found: dict[str, list[list[int]]]
    seconds: float


def drawn() -> dict[str, list[NDArray[np.float64]]]:
    """Series by name: without a change, with one, annotated ones."""
    rng = np.random.default_rng(6)
    here = np.arange(POINTS)

    def stepped(size: float, at: int) -> NDArray[np.float64]:
        return 100 * (1 + 0.015 * rng.standard_normal(POINTS)) * (1 + size * (here >= at))

    sets = {
        "none, normal": [100 + 1.5 * rng.standard_normal(POINTS) for _ in range(COUNT)],
        "none, autocorrelated": [100 + 1.5 * autocorrelated(rng, POINTS, 0.5) for _ in range(COUNT)],
        "+3 % at 100": [stepped(0.03, 100) for _ in range(COUNT)],
        "+5 % at 190": [stepped(0.05, 190) for _ in range(COUNT)],
    }
    if kept := step_times():
        sets["none, real"] = [permuted(rng, kept) for _ in range(COUNT)]
    if (DATA / "changepoints").is_dir():
        sets["annotated"] = [np.array(values) for values, _ in scores.read(DATA / "changepoints").values()]
    return sets


def ask(tool: Tool, sets: Path) -> Outcome | None:
    """Runs a tool. None if it cannot be run; prints the reason."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [tool.python, "-c", _ASK.format(how=tool.how), str(sets), str(out)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            print(f"{tool.name} is left out: {error}", file=sys.stderr)
            return None
        if done.returncode:
            print(f"{tool.name} is left out: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            return None
        return Outcome(**json.loads(out.read_bytes()))


def figures(outcome: Outcome) -> list[str]:
    """False alarms, finds, agreement."""
    found = outcome.found
    cells = [_percent(found.get(name), bool) for name in ("none, normal", "none, autocorrelated", "none, real")]
    for name, at in (("+3 % at 100", 100), ("+5 % at 190", 190)):
        cells.append(_percent(found[name], lambda places, at=at: any(abs(place - at) <= _NEAR for place in places)))
    if "annotated" in found:
        marked = scores.read(DATA / "changepoints").values()
        pairs = [(places, values, marks) for places, (values, marks) in zip(found["annotated"], marked)]
        cells.append(f"{np.mean([scores.f1(marks, places) for places, _, marks in pairs]):.3f}")
        cells.append(f"{np.mean([scores.cover(marks, places, len(values)) for places, values, marks in pairs]):.3f}")
    else:
        cells += ["–", "–"]
    return [*cells, f"{outcome.seconds:.1f} s"]


def _percent(rows: list[list[int]] | None, hit: Callable[[list[int]], bool]) -> str:
    return "–" if rows is None else f"{100 * sum(map(hit, rows)) / len(rows):.0f} %"


def main() -> None:
    heads = ("none, normal", "autocorr. 0.5", "real", "+3 % found", "+5 % late", "F1", "cover", "CPU")
    print(f"{'':28}" + "".join(f"{head:>14}" for head in heads))
    with tempfile.TemporaryDirectory() as folder:
        sets = Path(folder) / "series.json"
        sets.write_text(json.dumps({name: [row.tolist() for row in rows] for name, rows in drawn().items()}))
        for tool in TOOLS:
            if outcome := ask(tool, sets):
                print(f"{tool.name:28}" + "".join(f"{cell:>14}" for cell in figures(outcome)), flush=True)


if __name__ == "__main__":
    main()
