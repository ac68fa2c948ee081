"""Scripts with collectives compute on all ranks what the ranks of the training computed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]
torch = pytest.importorskip("torch")

from tests.numerics.reproduce.capture_collectives import PROGRAMS  # noqa: E402
from trainyard.numerics.reproduce.captured_slice import CapturedInput, CapturedSlice  # noqa: E402
from trainyard.numerics.reproduce.script_values import Value, captured_source  # noqa: E402
from trainyard.numerics.reproduce.write_rank_script import RankScriptParts, write_rank_script  # noqa: E402
from trainyard.numerics.reproduce.write_script import Side  # noqa: E402


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with what two ranks captured of each program."""
    folder = tmp_path_factory.mktemp("captured")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*launcher, "-m", "tests.numerics.reproduce.capture_collectives", str(folder)],
        check=True,
        timeout=120,
        cwd=Path(__file__).parents[3],
    )
    return folder


def result_alone(name: str) -> CapturedSlice:
    """No operations: the input `name` is the result."""
    described = CapturedInput(name=name, dtype="float32", shape=(4,), stride=(1,), file="")
    return CapturedSlice(inputs=(described,), operations=(), result={"tensor": name}, versions={}, device="cpu")


@pytest.mark.parametrize("program", [program.__name__ for program in PROGRAMS])
@pytest.mark.parametrize("offset", [0.0, 1.0], ids=["same", "other"])
def test_the_script_computes_the_results_of_both_ranks(
    program: str, offset: float, captured: Path, tmp_path: Path
) -> None:
    values: list[tuple[Value, Any]] = []
    a: dict[int, Side] = {}
    b: dict[int, Side] = {}

    def add(tensor: Any) -> str:
        value = Value(f"x{len(values)}", tensor)
        values.append((value, captured_source(value, "")))
        return value.name

    for rank in (0, 1):
        content = msgspec.json.decode((captured / f"{program}-{rank}.json").read_bytes())
        sliced = msgspec.convert(content["slice"], CapturedSlice)
        a[rank] = Side(sliced, {name: add(torch.tensor(value)) for name, value in content["inputs"].items()})
        b[rank] = Side(result_alone("x0"), {"x0": add(torch.tensor(content["result"]) + offset * rank)})
    script = tmp_path / "script.py"
    script.write_text(write_rank_script(RankScriptParts([program], values, a, b, 1e-6, "values")), "utf-8")
    done = subprocess.run([sys.executable, "-I", str(script)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == (1 if offset else 0), done.stdout + done.stderr
    assert done.stdout.startswith("A: error 0 ")
