"""Every command of the README runs.

In a ```console block, lines that start with `$ ` are commands. All blocks run in order, in one folder with examples/
and the demo's trace. A ```text block after a console block holds lines that its last command prints. A comment on the
line before a block gives options:

    <!-- test: torch -->          trains: needs torch, and takes a while
    <!-- test: skip, REASON -->   not run; the reason is required
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BLOCK = re.compile(
    r"(?:<!-- test: (?P<say>[^>]*?) -->\n)?```console\n(?P<text>.*?)```(?:\n\n```text\n(?P<shown>.*?)```)?", re.DOTALL
)
README = Path(__file__).parents[2] / "README.md"


def blocks() -> list:
    params = []
    for number, match in enumerate(BLOCK.finditer(README.read_text("utf-8")), 1):
        commands = [line[2:] for line in match["text"].splitlines() if line.startswith("$ ")]
        name = f"{number}: {commands[0] if commands else 'none'}"
        word, _, reason = (match["say"] or "").partition(", ")
        marks = [pytest.mark.torch, pytest.mark.slow] if word == "torch" else []
        shown = (match["shown"] or "").splitlines()
        params.append(pytest.param(commands, shown, word, reason, marks=marks, id=name))
    return params


@pytest.fixture(scope="module")
def folder(tmp_path_factory, root):
    folder = tmp_path_factory.mktemp("readme")
    for name in ("examples", "src/trainyard/data/demo"):
        shutil.copytree(root / name, folder / name)
    for job in (folder / "examples").glob("*.toml"):  # fewer steps: their figures are not tested here
        job.write_text(re.sub(r"^steps = \d+$", "steps = 2", job.read_text("utf-8"), flags=re.MULTILINE), "utf-8")
    return folder


def test_readme_has_commands():
    assert sum(len(block.values[0]) for block in blocks()) >= 3


@pytest.mark.parametrize(("commands", "shown", "word", "reason"), blocks())
def test_readme_commands_run(commands, shown, word, reason, folder):
    assert commands, "a console block without a command"
    assert word in {"", "torch", "skip"}, f"unknown note: {word}"
    if word == "skip":
        assert reason, "a skipped block needs a reason"
        pytest.skip(reason)
    if word == "torch":
        pytest.importorskip("torch")
    bin_ = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}", "TRAINYARD_STORE": str(folder / "runs")}
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        printed = [line.rstrip() for line in done.stdout.splitlines()]
    missing = [line for line in shown if line.rstrip() not in printed]
    assert not missing, "lines in the README that the command does not print"
