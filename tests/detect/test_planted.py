"""Faults planted in real runs on two and three ranks: each is the first finding with its cost, and a clean run has none
of them. The cost is compared with the time that the planting rank measured by its own clock."""

import json
import os
from pathlib import Path

import pytest

from tests.detect.test_detect import RULES
from tests.marks import nightly
from trainyard import job_file as jobs
from trainyard.detect.run_rules import findings
from trainyard.diagnose.price_findings import price_findings
from trainyard.layout import Layout
from trainyard.record import DeviceSeen
from trainyard.run.local.harness import execute
from trainyard.run.session import Session
from trainyard.store.store import Store
from trainyard.trace.measure import measure, read
from trainyard.trace.rank_results import all_booked

LATE = pytest.importorskip("tests.planted", reason="needs torch").LATE
pytestmark = [pytest.mark.torch, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
CORES = (DeviceSeen(index=0, name="some cores", vendor="cpu", facts={"cores": "4"}),)
FAULTS = {"straggler": "straggler", "item": "sync_in_step", "loader": "data_wait", "tiny_kernels": "tiny_kernels"}
"""Planted fault -> the rule that finds it."""
ATTEMPTS = 5
JOB = """
[model]
layers = 2
hidden_size = 64
ffn_hidden_size = 128
heads = 2
kv_heads = 2
head_dim = 32
[recipe]
seq_len = 64
tokens_per_step = {tokens}
micro_batch_size = 4
[measure]
warmup = 1
steps = 1
repeats = 1
profiled = 4
[layout]
dp_replicate = {ranks}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """`run("loader", ranks)` -> findings, and the ns a step that each rank planted in the profiled steps."""

    def started(fault, ranks):
        monkeypatch.setenv("PLANTED", fault)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        text = JOB.format(ranks=ranks, tokens=256 * ranks)
        job = jobs.parse(text, "planted")
        traces = []
        store = Store(tmp_path / "store")

        def book(paths):
            traces.extend(paths)
            return measure(read(paths)).ledgers

        done = execute(job, text, Session(store, book, devices=CORES, worker="tests.planted"))
        assert job.layout == Layout(dp_replicate=ranks)
        measured = measure(read(traces), axis=job.layout.only_axis)
        costs = [
            json.loads((store.find(done.id) / "planted" / f"rank{rank}.json").read_text())[-job.measure.profiled :]
            for rank in range(ranks)
        ]
        results = price_findings(findings(measured.mean, done, all_booked(measured), RULES), measured)
        return results, [sum(cost) // max(1, len(cost)) for cost in costs]

    return started


def first_good(attempt):
    """Empty if one of `ATTEMPTS` passes, else the failure of the last one. Other processes on the machine can take a
    core from a rank, which then really is late."""
    wrong = ""
    for _ in range(ATTEMPTS):
        if not (wrong := attempt()):
            break
    return wrong


def judged(results, costs, fault):
    """The failure of the findings of a run with this planted fault; empty if they are correct."""
    planted = costs[LATE] if fault == "straggler" else sum(costs) // len(costs)
    listing = "\n".join(f"{item.rule} {item.cost_ns} {item.summary} ({item.evidence})" for item in results)
    first = results[0] if results else None
    if first is None or first.rule != FAULTS[fault]:
        return f"first is not {FAULTS[fault]}, planted {planted}:\n{listing}"
    if first.cost_ns != pytest.approx(planted, rel=0.2):
        return f"planted {planted}:\n{listing}"
    if fault == "straggler" and not first.summary.startswith(f"Rank {LATE} arrives last"):
        return f"rank {LATE} was late:\n{listing}"
    return ""


@pytest.mark.parametrize(
    ("fault", "ranks"),
    [
        ("straggler", 2),
        nightly("straggler", 3),
        ("item", 2),
        ("loader", 2),
        ("tiny_kernels", 2),
    ],
)
def test_a_planted_fault_is_the_first_finding_with_its_cost(run, fault, ranks):
    wrong = first_good(lambda: judged(*run(fault, ranks), fault))
    assert not wrong, wrong


def test_a_clean_run_has_no_planted_findings(run):
    def planted_ones():
        results, _ = run("", 2)
        return "\n".join(f"{finding.rule} {finding.summary}" for finding in results if finding.rule in FAULTS.values())

    wrong = first_good(planted_ones)
    assert not wrong, wrong
