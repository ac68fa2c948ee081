"""`trainyard numerics compare`: exit codes, JSON, and the screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import one_screen
from tests.cli.schema_check import valid
from tests.numpy_training import NumpyTraining
from trainyard.cli.main import answer
from trainyard.report.numerics.numerics_tables import FIRST_FAULT


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return NumpyTraining(layers=30, steps=1).write_all(tmp_path_factory.mktemp("reference") / "a")


def compare(*arguments: str) -> int:
    return answer(["numerics", "compare", *arguments])


def test_exit_codes(reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = NumpyTraining(layers=30, steps=1, parts=2).write(tmp_path / "same")
    different = NumpyTraining(layers=30, steps=1, scaled=False).write(tmp_path / "different")
    assert compare(str(reference), str(same)) == 0
    assert compare(str(reference), str(same), "--exact") == 1
    assert compare(str(reference), str(different)) == 1
    assert compare(str(reference), str(tmp_path / "missing")) == 2
    assert compare(str(same), str(different)) == 3  # without a reference
    assert "Traceback" not in capsys.readouterr().err


def test_screen_has_the_fault_marked_within_80_columns(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "\x1b[31mlayers\u202e."  # a hostile name of a module
    other = NumpyTraining(layers=30, steps=1, scaled=False, prefix=name).write(tmp_path / "b")
    capsys.readouterr()
    compare(str(reference), str(other))
    printed = capsys.readouterr().out
    one_screen.check(printed)
    assert [line for line in printed.splitlines() if line.startswith(f"{FIRST_FAULT}layers.0 ")]
    assert not {"\x1b", "\u202e"} & set(printed)
    compare(str(reference), str(other), "--full")
    full = capsys.readouterr().out
    assert "layers.29" in full
    assert len(full.splitlines()) > len(printed.splitlines())


def test_json_has_the_first_fault(reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = NumpyTraining(layers=30, steps=1, epsilon=1e-3).write(tmp_path / "b")
    capsys.readouterr()
    compare(str(reference), str(other), "--json")
    document = valid("numerics-comparison", capsys.readouterr().out)
    assert document["first"]["tensor"]["location_b"] == "model.py:11"
    assert document["first"]["rho"] > 10
    assert len(document["modules"]) == 31


def test_page_is_written_next_to_the_output(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = NumpyTraining(layers=30, steps=1, epsilon=1e-3).write(tmp_path / "b")
    script = tmp_path / "reproducer.py"
    script.write_text(
        "# aten.rms_norm of layers.0 in the forward pass of step 0: B differs from A.\nprint('the fault alone')\n"
    )
    page = tmp_path / "page.html"
    capsys.readouterr()
    assert compare(str(reference), str(other), "--json", "--page", str(page), "--reproducer", str(script)) == 1
    document = valid("numerics-comparison", capsys.readouterr().out)
    assert document["reproducer"] == script.read_text()
    assert document["histogram"]["phases"][0]["phase"] == "forward"
    assert len(document["tensors"]) == sum(module["tensors"] for module in document["modules"])
    assert page.read_text("utf-8").count("the fault alone") >= 1
    assert compare(str(reference), str(other), "--page", str(tmp_path / "missing" / "page.html")) == 4
