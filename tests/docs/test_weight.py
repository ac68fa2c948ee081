"""Import cost: help loads nothing heavy, noun files only msgspec and numpy, and only training loads torch."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import trainyard
from tests.refused import missing_values
from trainyard.cli.main import COMMANDS

ANSWER = """
import sys
from trainyard.cli.main import answer
code = answer(sys.argv[1:])
print(code, *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def answer(*args: str, before: str = "", cwd: Path | None = None) -> tuple[str, set[str]]:
    """stdout of `trainyard <args>`, and the top-level names of the modules it left in memory."""
    code = [sys.executable, "-c", before + ANSWER, *args]
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}  # it loads a lot
    done = subprocess.run(code, cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False)
    exit_code, *names = done.stderr.splitlines()[-1].split()
    assert exit_code == "0", done.stderr
    return done.stdout, set(names)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_load_nothing_heavy(option):
    _, loaded = answer(option)
    assert not loaded & {"numpy", "torch", "rich", "msgspec", "asyncio", "multiprocessing"}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_loads_torch_before_it_trains(command):
    _, loaded = answer(command, "--help")
    assert "torch" not in loaded


def test_demo_works_without_torch(tmp_path):
    printed, _ = answer("demo", before="import sys; sys.modules['torch'] = None", cwd=tmp_path)
    assert "Matmul" in printed


def test_a_plan_needs_neither_masked_arrays_nor_processes():
    before = "import sys; sys.modules['numpy.ma'] = sys.modules['subprocess'] = None\n"
    model, machine = ("llama3-8b", "--seq-len", "4096", "--batch", "64"), ("--machine", "h100", "--devices", "16")
    printed, _ = answer("plan", *model, *machine, "--for", "megatron", before=before)
    assert "Predicted ledger" in printed


def test_public_names_are_sorted_and_importable():
    assert list(trainyard.__all__) == sorted(set(trainyard.__all__))
    for name in trainyard.__all__:
        assert getattr(trainyard, name).__name__ == name
        assert name in dir(trainyard)
    with pytest.raises(AttributeError) as caught:
        _ = trainyard.Leger
    assert missing_values(str(caught.value), "'trainyard'", "'Leger'") == []


def test_noun_files_import_the_standard_library_msgspec_and_numpy_only(root):
    allowed = {*sys.stdlib_module_names, "msgspec", "numpy", "trainyard"}
    nouns = sorted((root / "src" / "trainyard").glob("*.py"))
    assert len(nouns) > 10
    for path in nouns:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "trainyard"]
            else:
                continue
            assert {name.partition(".")[0] for name in names} <= allowed, f"{path.name}:{node.lineno}"


def test_constraints_pin_every_dependency(root):
    pins = {}
    for line in (root / "constraints.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            (exact,) = pin.specifier
            assert exact.operator == "==", line
            assert "+" not in exact.version, "a local tag names one index"
            pins[canonicalize_name(pin.name)] = exact.version
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    for text in [
        *project["dependencies"],
        *(text for extra in ("train", "fast", "test", "dev") for text in extras[extra]),
    ]:
        requirement = Requirement(text)
        if requirement.name != "trainyard":
            assert pins[canonicalize_name(requirement.name)] in requirement.specifier, text
