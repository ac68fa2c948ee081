"""Exact ledgers of public traces. The traces are not part of the project: each is identified by its digest, and its
test is skipped if it is absent. `pytest --update-golden` rewrites the answers; give the reason in the commit."""

import hashlib
import json
from pathlib import Path

import pytest

from trainyard import ledger as ledgers_of
from trainyard.trace.measure import measure, read

HERE = Path(__file__).parent
CASES = sorted(path.stem for path in HERE.glob("*.json"))


def digest(path: Path) -> str:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _file(name: str) -> str:
    return name if name.endswith("ranks") else f"{name}.json.gz"


@pytest.mark.parametrize("name", CASES)
def test_ledgers_are_as_committed(name, request, public_trace):
    path = public_trace(_file(name))
    answer = json.loads((HERE / f"{name}.json").read_text("utf-8"))
    if digest(path) != answer["sha256"]:
        pytest.skip(f"the local {name} is not the recording that the answer was computed from")
    got = {
        window: json.loads(ledgers_of.to_json(measure(read([path]), window).ledgers))["ledgers"]
        for window in ("steps", "all")
    }
    short = {window: [_short(ledger) for ledger in ledgers] for window, ledgers in got.items()}
    if request.config.getoption("--update-golden"):
        text = json.dumps({"sha256": answer["sha256"], **short}, indent=1)
        (HERE / f"{name}.json").write_text(text + "\n", "utf-8")
        return
    assert short == {window: answer[window] for window in short}


def _short(ledger):
    """One line per entry, for readable diffs."""
    return {
        "wall_ns": ledger["wall_ns"],
        "scope": ledger["scope"],
        "late": ledger["late"],
        "unions": ledger["unions"],
        "entries": [
            f"{e['account']} {e['phase']} {e['ns']} hidden {e['hidden_ns']} count {e['count']}"
            for e in ledger["entries"]
        ],
    }


def test_a100_window_is_the_published_breakdown(public_trace):
    """Busy, compute, communication and overlap of HTA's own test trace, over the whole device window."""
    (window, _) = measure(read([public_trace(_file("a100_ddp_resnet"))]), "all").ledgers
    kinds = window.by_kind()
    assert window.wall_ns == 660_551_005
    assert sum(kinds.get(kind, 0) for kind in ("compute", "comm", "copy")) == 157_500_014
    assert kinds["compute"] == 115_655_847
    assert window.unions["comm"] == 46_876_493
    assert kinds["comm"] == 39_559_468
    assert round(100 * (1 - kinds["comm"] / window.unions["comm"]), 3) == 15.609
    parts = measure(read([public_trace(_file("a100_ddp_resnet"))])).ledgers[:-1]
    assert [part.wall_ns for part in parts] == [215_769_424, 219_818_137, 224_963_444]
