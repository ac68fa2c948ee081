"""The table of skipped tests (`--skip-table`), in real runs of pytest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = """
import pytest

def test_passes():
    pass

@pytest.mark.parametrize("device", range(3))
def test_needs_an_accelerator(device):
    pytest.skip("no accelerator on this machine")
"""
UNEXPECTED = """
import pytest
pytest.importorskip("a_library_that_is_missing")
"""


def run(folder: Path, *options: str, ci: bool) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text("from tests.conftest import *\nfrom tests.conftest import pytest_addoption\n")
    env = {key: value for key, value in os.environ.items() if key != "CI" and not key.startswith("PYTEST_")}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])} | ({"CI": "true"} if ci else {})
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "--skip-table",
        *options,
    ]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("options", [[], ["-n", "1"]], ids=["one process", "xdist"])
def test_expected_skips_are_counted_and_pass(tmp_path, options):
    (tmp_path / "test_suite.py").write_text(SUITE)
    result = run(tmp_path, *options, ci=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "    3  accelerators    no accelerator on this machine" in result.stdout


@pytest.mark.parametrize(
    ("options", "ci"), [([], False), ([], True), (["-n", "1"], True)], ids=["developer", "CI", "CI-xdist"]
)
def test_a_missing_library_fails_ci_only(tmp_path, options, ci):
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "test_unexpected.py").write_text(UNEXPECTED)
    result = run(tmp_path, *options, ci=ci)
    assert result.returncode == (1 if ci else 0), result.stdout + result.stderr
    assert result.stdout.count("NOT EXPECTED") == 1
    assert "not expected: test_unexpected.py" in result.stdout
