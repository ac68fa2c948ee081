"""The load meter against the kernel's own accounting: CPU time of this process, of its children and of others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.run.record import load_meter
from trainyard.run.record.load_meter import LoadMeter

pytestmark = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no /proc/stat on this system")

STAT = "cpu  {user} 0 100 5000 10 5 5 {steal} 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n"
BURN = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"


def test_work_of_children_is_the_runs_own() -> None:
    meter = LoadMeter()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    load = meter.finish()
    assert load is not None
    # The kernel counts ticks of 10 ms.
    assert load.run_cores * load.window_s >= 0.35
    assert load.other_cores >= 0
    assert load.run_cores + load.other_cores <= load.cores * 1.1


def test_work_of_others_and_steal_are_separate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat, clock = tmp_path / "stat", [100.0]
    monkeypatch.setattr(load_meter, "_STAT", stat)
    monkeypatch.setattr(load_meter.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(load_meter.os, "sysconf", lambda _: 100)
    stat.write_text(STAT.format(user=1000, steal=50), "ascii")
    meter = LoadMeter()
    clock[0] = 110.0
    stat.write_text(STAT.format(user=2500, steal=250), "ascii")
    load = meter.finish()
    assert load is not None
    assert load.window_s == 10
    assert load.other_cores + load.run_cores == pytest.approx(1.5, abs=0.01)
    assert load.stolen_cores == pytest.approx(0.2, abs=0.001)


def test_throttle_events_are_summed_over_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_meter, "_SYS", tmp_path)
    counts = [tmp_path / f"devices/system/cpu/cpu{core}/thermal_throttle/core_throttle_count" for core in (0, 1)]
    for count in counts:
        count.parent.mkdir(parents=True)
        count.write_text("7\n")
    meter = LoadMeter()
    counts[1].write_text("12\n")
    load = meter.finish()
    assert load is not None
    assert load.cpu_throttles == 5


@pytest.mark.parametrize("text", ["", "cpu", "cpu a b c d e f g h", "intr 1 2 3 4 5 6 7 8"])
def test_unknown_counters_give_no_load(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stat").write_text(text, "ascii")
    monkeypatch.setattr(load_meter, "_STAT", tmp_path / "stat")
    assert LoadMeter().finish() is None
