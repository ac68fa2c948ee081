"""The profiler's own messages do not reach stderr; all other output does, in its order."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
from trainyard.run.local.hide_profiler_messages import QuietProfile, hidden_messages

pytestmark = pytest.mark.torch


def test_only_the_profilers_lines_are_hidden(capfd):
    os.write(2, b"before\n")
    with hidden_messages():
        os.write(2, b"USDT:2026 profiler_start\n")
        sys.stderr.write("a message\n")
        os.write(2, b"not a USDT: line\nUSDT:2026 profiler_stop\nthe rest")
    os.write(2, b" after\n")
    assert capfd.readouterr().err == "before\na message\nnot a USDT: line\nthe rest after\n"


@hidden_messages()
def fail_with_output():
    os.write(2, b"USDT:x\nreason\n")
    raise ValueError("stop")


def test_output_before_an_error_is_kept(capfd):
    with pytest.raises(ValueError, match="stop"):
        fail_with_output()
    assert capfd.readouterr().err == "reason\n"


def test_profile_prints_nothing(capfd):
    import torch

    with QuietProfile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.ones(4).sum()
    assert any(event.name == "aten::sum" for event in profiler.events())
    assert "USDT" not in capfd.readouterr().err


def test_closed_stderr_is_no_error():
    code = (
        "import os; from trainyard.run.local.hide_profiler_messages import hidden_messages\n"
        "os.close(2)\n"
        "with hidden_messages(): pass\n"
        "print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "done\n"
