"""Figures of `python -m benchmarks.restart`, from samples and /proc."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from benchmarks.process import ProcessTimes, process_times
from benchmarks.restart import Restart, complete_samples, lost_steps, table
from trainyard.record import Sample


def sample(step: int, attempt: int) -> Sample:
    return Sample(step=step, rank=0, repeat=0, wall_ns=1, tokens=1, memory_bytes=1, attempt=attempt)


@pytest.mark.parametrize(
    ("steps", "lost"),
    [
        ([(0, 0), (1, 0), (2, 0), (1, 1)], 2),
        ([(0, 0), (1, 0), (2, 1), (3, 1)], 0),
        ([(0, 0), (1, 0), (0, 3)], 2),
        ([(4, 1)], 0),
    ],
)
def test_lost_steps_are_those_trained_again(steps: list[tuple[int, int]], lost: int) -> None:
    assert lost_steps([sample(step, attempt) for step, attempt in steps]) == lost


def test_sample_being_written_is_not_counted() -> None:
    line = msgspec.json.encode(sample(3, 1)) + b"\n"
    assert complete_samples(line + line[:9]) == [sample(3, 1)]
    assert complete_samples(line[:-1]) == []


def test_times_of_a_process_are_those_of_proc(tmp_path: Path) -> None:
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    fields = " ".join(str(field * ticks_per_s) for field in range(4, 40))
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"7 (a ) b) R {fields}")
    assert process_times(7, tmp_path) == ProcessTimes(started_s=22, cpu_s=14 + 15)


def test_table_has_medians_ranges_and_their_ratio() -> None:
    fast = [Restart(seconds, 1.0, 0.25, 5) for seconds in (2.0, 4.0, 3.0)]
    slow = [Restart(seconds, 2.0, 8.0, 6) for seconds in (12.0, 6.0, 5.0)]
    _, first, second, ratio = table({"a": fast, "b": slow}).splitlines()
    for column in ("3.00 (2.00-4.00)", "1.00 (1.00-1.00)", "2.00 (1.00-3.00)", "0.25 (0.25-0.25)", "5 (5-5)"):
        assert column in first
    assert "6.00 (5.00-12.00)" in second
    assert ratio.split() == ["a", "/", "b:", "0.50"]
