"""Runs tests/cases/*.toml: a tiny trace in text, a question, the exact answer."""

import tomllib
from pathlib import Path

import pytest

from tests.trace_maker import trace, write
from trainyard.trace.measure import measure, read

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.toml"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path, tmp_path):
    case = tomllib.loads(path.read_text("utf-8"))
    files = [
        write(tmp_path, _document(rank, len(case["rank"])), f"rank{index}.json")
        for index, rank in enumerate(case["rank"])
    ]
    measured = measure(read(files), case.get("window", "steps"))
    assert measured.alignment.aligned == case.get("aligned", "host")
    got = {}
    for rank in measured.ranks:
        for ledger in rank.ledgers:
            key = f"{ledger.scope.ranks[0]} {ledger.scope.steps[0]}" + (" partial" if ledger.scope.partial else "")
            got[key] = {_entry(entry): entry.ns for entry in ledger.entries if entry.ns or case.get("zeros", False)} | {
                "wall": ledger.wall_ns
            }
    assert got == case["answer"]
    if "late" in case:
        assert measured.mean.late == {int(rank): ns for rank, ns in case["late"].items()}


def _entry(entry):
    return f"{entry.account}" + (f" {entry.phase}" if entry.phase != "other" else "")


def _document(rank, world):
    rows = {
        part: [[None if cell == "none" else cell for cell in row] for row in rank.get(part, [])]
        for part in ("device", "host", "marks")
    }
    kept = {key: value for key, value in rank.items() if key not in rows}
    return trace(**rows, **({"world": world} | kept))
