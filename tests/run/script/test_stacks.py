"""`trainyard run --stacks`: a planted sleep is named with its file and line, whatever surrounds it."""

import random
import sys

import pytest

from tests.run.script.test_script import run, written

pytestmark = [pytest.mark.torch, pytest.mark.slow]

HEAD = """
import sys, time
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
"""
STEP = """
def take_step():
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def planted_script(seed, steps):
    """(text, line, function): a script of functions that call each other, of which one sleeps once a step."""
    chosen = random.Random(seed)  # noqa: S311
    count, lines = chosen.randint(1, 5), (HEAD + STEP).splitlines()
    sleeping, line = chosen.randrange(count), 0
    for number in range(count):
        lines.append(f"def part{number}():")
        lines.extend(["    x = [i for i in range(10)]"] * chosen.randint(0, 4))
        if number == sleeping:
            lines.append(f"    time.sleep({chosen.choice([0.03, 0.04, 0.05])})")
            line = len(lines)
        lines.append(f"    part{number - 1}()" if number else "    take_step()")
    lines.extend([f"for _ in range({steps}):", f"    part{count - 1}()"])
    return "\n".join(lines) + "\n", line, f"part{sleeping}"


@pytest.mark.parametrize("seed", range(2))
def test_planted_sleeps_are_named(seed, tmp_path):
    pytest.importorskip("torch")
    text, line, function = planted_script(seed, steps=20)
    stored, done = run(tmp_path, [sys.executable, written(tmp_path, text)], "--stacks")
    assert done.returncode == 0, done.stderr
    finding = stored["findings"][0]
    location = finding["code"][0]["location"]
    assert (location["file"], location["line"], location["function"]) == ("my_train.py", line, function)
    assert finding["code"][0]["share"] > 0.8
    assert f"my_train.py:{line} ({function})" in finding["summary"]
    assert stored["job"]["measure"]["stacks"] is True
    assert sum("stacks of the training thread were sampled" in note for note in stored["notes"]) == 1


def test_a_script_that_ends_inside_the_window_keeps_its_stacks(tmp_path):
    pytest.importorskip("torch")
    text, line, _ = planted_script(seed=7, steps=17)
    stored, done = run(tmp_path, [sys.executable, written(tmp_path, text)], "--stacks")
    assert done.returncode == 0, done.stderr
    assert len(stored["samples"]) == 16
    assert stored["findings"][0]["code"][0]["location"]["line"] == line


def test_an_error_inside_the_window_ends_like_without_stacks(tmp_path):
    pytest.importorskip("torch")
    text, _, _ = planted_script(seed=1, steps=16)
    stored, done = run(
        tmp_path, [sys.executable, written(tmp_path, text + "raise ValueError('its own')\n")], "--stacks"
    )
    assert (stored["code"], stored["exit_code"]) == ("command-failed", done.returncode)
    assert "ValueError: its own" in done.stderr


def test_steps_of_another_thread_are_sampled_in_it(tmp_path):
    pytest.importorskip("torch")
    text = HEAD + STEP + (
        "def train():\n    for _ in range(20):\n        time.sleep(0.03)\n        take_step()\n"
        "import threading\nthread = threading.Thread(target=train)\nthread.start()\nthread.join()\n"
    )  # fmt: skip
    stored, done = run(tmp_path, [sys.executable, written(tmp_path, text)], "--stacks")
    assert done.returncode == 0, done.stderr
    assert stored["findings"][0]["code"][0]["location"]["function"] == "train"
