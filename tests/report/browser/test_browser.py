"""Pages in a real browser, driven by mouse and keyboard, with axe-core's rules of accessibility."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compared_records import PAGES as RECORDS
from tests.compared_runs import PAGES as COMPARISONS
from tests.page_views import VIEWS
from tests.trace_maker import MAIN, trace, write
from trainyard.report.comparison import comparison_page
from trainyard.report.numerics import numerics_page
from trainyard.report.render import html
from trainyard.report.view.build_analysis import analyse_measured
from trainyard.report.view.build_view import view_of
from trainyard.report.view.build_what_if import shared_replay, what_if_section
from trainyard.report.view.path_overlay import add_path
from trainyard.report.view.timeline import timeline
from trainyard.trace.measure import measure, read

HERE = Path(__file__).parent
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
PACKAGES = HERE.parents[2] / "node_modules" / "puppeteer-core"


def two_ranks(folder: Path) -> list[Path]:
    """Two steps of two ranks: a matrix product, idle time in Python, and an all-reduce at which rank 1 arrives late."""
    paths = []
    for rank in (0, 1):
        device, host, marks = [], [], []
        for step in range(3):
            start, late = 100_000 * step, 15_000 * rank
            marks.append((str(step), start, start + 95_000))
            host.append(("train.py(7): step", MAIN, start + 500, start + 94_000, "python_function"))
            host.append(("aten::mm", MAIN, start + 1000, start + 4000, "cpu_op"))
            device.append(("gemm_kernel", 7, start + 11_000, start + 30_000, start + 2000, {"launch_ns": 2000}))
            launched = start + 45_000 + late
            device.append(("elementwise_kernel", 7, launched + 3000, launched + 8000, launched, {"launch_ns": 2000}))
            reduced = {
                "Collective name": "allreduce",
                "Process Group Name": "0",
                "Process Group Ranks": "[0, 1]",
                "Group size": 2,
                "In msg nelems": 1 << 18,
                "Out msg nelems": 1 << 18,
                "dtype": "Float",
                "Seq": step,
            }
            arrived = launched + 9000
            device.append(
                ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, arrived, start + 85_000, arrived - 500, reduced)
            )
        document = trace(
            device=device, host=host, marks=marks, rank=rank, world=2, host_name="node0", device_index=rank
        )
        paths.append(write(folder, document, f"rank{rank}.json"))
    return paths


def ranks_without_one_clock(folder: Path) -> list[Path]:
    """Ranks on two hosts without collectives; a step of rank 1 takes 1.5 times as long as one of rank 0."""
    paths = []
    for rank, step_ns in ((0, 100_000), (1, 150_000)):
        starts = [step_ns * step for step in range(3)]
        document = trace(
            device=[("gemm_kernel", 7, start + 10_000, start + step_ns - 10_000, start + 2000) for start in starts],
            marks=[(str(step), start, start + step_ns - 5000) for step, start in enumerate(starts)],
            rank=rank, world=2, host_name=f"node{rank}",
        )  # fmt: skip
        paths.append(write(folder, document, f"host{rank}.json"))
    return paths


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.skipif(not PACKAGES.is_dir(), reason="the browser's driver is not installed: npm ci")
def test_pages_by_mouse_and_keyboard(tmp_path):
    measured = measure(read(two_ranks(tmp_path)))
    analysis = analyse_measured(measured)
    replay = shared_replay(measured)
    predicted = what_if_section(measured, findings=analysis.findings, replay=replay)
    html.write(view_of(analysis, add_path(timeline(measured), replay), predicted), tmp_path / "ranks.html")
    apart = measure(read(ranks_without_one_clock(tmp_path)))
    html.write(view_of(analyse_measured(apart), timeline(apart)), tmp_path / "apart.html")
    for name in ("hostile", "many", "bare"):
        html.write(VIEWS[name](), tmp_path / f"{name}.html")
    for name, make in COMPARISONS.items():
        (tmp_path / f"compared-{name}.html").write_text(comparison_page.page(make(tmp_path)), "utf-8")
    for name, build in RECORDS.items():
        (tmp_path / f"numerics-{name}.html").write_text(numerics_page.page(build(tmp_path / "records")), "utf-8")
    files = sorted(map(str, HERE.glob("*.test.js")))
    assert files
    command = [str(shutil.which("node")), "--test", "--test-reporter=tap", "--test-concurrency=1", *files]
    environment = os.environ | {"PAGES": str(tmp_path), "CHROMIUM": str(BROWSER)}
    result = subprocess.run(
        command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert int(re.findall(r"^# pass (\d+)$", result.stdout, re.MULTILINE)[0]) >= len(files)
