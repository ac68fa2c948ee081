"""`trainyard run --shapes`: FLOPs and bytes of ops on a CPU, and the hint that names the option."""

import sys

import pytest

from tests.run.script.test_script import PLAIN, run, written

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def formula_notes(stored):
    """The notes below the tables of ops."""
    return [note for table in stored["tables"] for note in table["notes"]]


@pytest.mark.parametrize("shapes", [False, True])
def test_shapes_of_ops_are_recorded_on_request(shapes, tmp_path):
    pytest.importorskip("torch")
    options = ["--shapes"] if shapes else []
    stored, done = run(tmp_path, [sys.executable, written(tmp_path, PLAIN), "18"], *options)
    assert done.returncode == 0, done.stderr
    assert "USDT:" not in done.stderr
    assert stored["job"]["measure"]["shapes"] is shapes
    share = stored["formulas"]["share"]
    assert share > 0.5 if shapes else share < 0.1
    notes = " ".join(formula_notes(stored))
    assert ("trainyard run --shapes" in notes) != shapes
    assert "record_shapes" not in notes
