"""`trainyard run --memory`: memory over time of the profiled steps, and what held its peak."""

import sys

import pytest

from tests.run.script.test_script import PLAIN, run, written

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.mark.parametrize("memory", [False, True])
def test_allocations_are_recorded_on_request(memory, tmp_path):
    pytest.importorskip("torch")
    options = ["--memory"] if memory else []
    stored, done = run(tmp_path, [sys.executable, written(tmp_path, PLAIN), "18"], *options)
    assert done.returncode == 0, done.stderr
    assert stored["job"]["measure"]["memory"] is memory
    tables = {table["title"]: table for table in stored["tables"]}
    assert ("Held at the memory peak" in tables) is memory
    if memory:
        rows = tables["Held at the memory peak"]["rows"]
        assert sum(row[3] for row in rows) == pytest.approx(100)
        assert {row[1] for row in rows} & {"Activations", "Gradients", "Temporaries", "Optimizer state"}
