"""The JavaScript modules of the pages, tested by node's own runner."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_modules_pass_their_tests():
    files = sorted(HERE.glob("*.test.js"))
    assert files
    command = [str(NODE), "--test", "--test-reporter=tap", *map(str, files)]
    result = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert int(re.findall(r"^# pass (\d+)$", result.stdout, re.MULTILINE)[0]) >= len(files)
