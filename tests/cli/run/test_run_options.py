"""The progress of a job without a terminal: few lines, in the workload's unit."""

import re

import pytest

from trainyard.cli.run.run_options import session_of
from trainyard.run.session import Progress


@pytest.mark.parametrize("steps", [1, 3, 10, 11, 99, 1000])
def test_progress_takes_at_most_ten_lines(steps, capsys, monkeypatch):
    monkeypatch.setenv("TRAINYARD_STORE", "/nonexistent")
    with session_of("", None, quiet=False) as session:
        for step in range(1, steps + 1):
            session.progress(Progress(step=step, steps=steps, loss=0.5, tokens_per_s=2000.0, unit="images"))
    lines = capsys.readouterr().err.splitlines()
    shown = [int(re.match(r"step (\d+)/", line)[1]) for line in lines]
    assert len(shown) == min(10, steps)
    assert shown[-1] == steps
    assert shown == sorted(set(shown))
    assert all(line.endswith(" images/s") for line in lines)
