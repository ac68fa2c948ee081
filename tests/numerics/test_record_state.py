"""The state of a record: an interrupted recording continues, and another command or other options are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.numpy_training import NumpyTraining
from trainyard.errors import BadFile, BadInput, RunInUse
from trainyard.numerics.compare.compare_records import compare_records
from trainyard.numerics.record_files import count_records, rank_files, variants
from trainyard.numerics.record_state import (
    RecordedVariant,
    RecordOptions,
    RecordState,
    begin_record,
    lock_record,
    origin_of,
    read_state,
    write_state,
)
from trainyard.report.numerics.numerics_report import report_numerics

COMMAND = ("python", "train.py")
ORIGIN = origin_of(COMMAND, RecordOptions(), {})
TRAINING = NumpyTraining(layers=3, steps=2)


def complete_run(folder: Path, variant: str) -> RecordedVariant:
    sizes = [os.path.getsize(path) for path in rank_files(folder / variant).values()]
    records = count_records(folder, variant)
    return RecordedVariant(variant=variant, ranks=len(sizes), records=records, seconds=1.0, size=sum(sizes))


def interrupted(folder: Path, complete: list[str], replicas: int = 3) -> RecordState:
    """A record of which only some runs are complete, although all have files."""
    TRAINING.write_all(folder, replicas)
    state = RecordState(
        origin=ORIGIN, replicas=replicas, runs=tuple(complete_run(folder, variant) for variant in complete)
    )
    write_state(folder, state)
    return state


def test_complete_runs_are_kept_and_others_removed(tmp_path: Path):
    state = interrupted(tmp_path, ["plain", "float64", "replica-1"])
    assert state.missing == ("replica-2", "replica-3")
    begun = begin_record(tmp_path, ORIGIN, 4)
    assert begun == read_state(tmp_path)
    assert begun.runs == state.runs
    assert begun.missing == ("replica-2", "replica-3", "replica-4")
    assert variants(tmp_path) == ["float64", "plain", "replica-1"]


def test_fewer_replicas_keep_those_that_are_complete(tmp_path: Path):
    state = interrupted(tmp_path, ["plain", "float64", "replica-1", "replica-2"])
    begun = begin_record(tmp_path, ORIGIN, 1)
    assert (begun.runs, begun.missing) == (state.runs, ())


@pytest.mark.parametrize("damage", ["missing folder", "missing file", "shorter file"])
def test_a_run_whose_files_were_changed_is_repeated(tmp_path: Path, damage: str):
    interrupted(tmp_path, ["plain", "float64", "replica-1"])
    (path,) = rank_files(tmp_path / "float64").values()
    if damage == "shorter file":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    if damage == "missing folder":
        path.parent.rmdir()
    begun = begin_record(tmp_path, ORIGIN, 1)
    assert begun.missing == ("float64",)
    assert variants(tmp_path) == ["plain", "replica-1"]


@pytest.mark.parametrize(
    "change",
    [
        {"command": ("python", "train.py", "--lr", "1")},
        {"format": 99},
        {"steps": (0,)},
        {"level": "modules"},
        {"most_elements": 10},
        {"environment": {"OMP_NUM_THREADS": "2"}},
        {"scripts": {"train.py": "0"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_origin_is_refused_and_nothing_removed(tmp_path: Path, change: dict[str, Any]):
    state = interrupted(tmp_path, ["plain"])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput):
        begin_record(tmp_path, replace(ORIGIN, **change), 3)
    assert sorted(tmp_path.rglob("*")) == before
    assert read_state(tmp_path) == state


def test_a_changed_script_is_another_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("1")
    first = origin_of(COMMAND, RecordOptions(), {})
    interrupted(tmp_path / "record", ["plain"])
    write_state(
        tmp_path / "record", RecordState(origin=first, replicas=3, runs=(complete_run(tmp_path / "record", "plain"),))
    )
    assert begin_record(tmp_path / "record", origin_of(COMMAND, RecordOptions(), {}), 3).runs
    Path("train.py").write_text("2")
    with pytest.raises(BadInput):
        begin_record(tmp_path / "record", origin_of(COMMAND, RecordOptions(), {}), 3)


def test_a_script_may_be_corrected_before_a_run_is_complete(tmp_path: Path):
    interrupted(tmp_path, [])
    begun = begin_record(tmp_path, replace(ORIGIN, scripts={"train.py": "0"}), 3)
    assert begun.missing == ("plain", "float64", "replica-1", "replica-2", "replica-3")
    with pytest.raises(BadFile):
        variants(tmp_path)


def test_a_record_without_tensors_may_be_begun_with_another_command(tmp_path: Path):
    write_state(tmp_path, RecordState(origin=ORIGIN, replicas=4))
    begin_record(tmp_path, replace(ORIGIN, command=("other",)), 4)
    state = read_state(tmp_path)
    assert state is not None
    assert state.origin.command == ("other",)


def test_other_folders_are_refused(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(BadInput):
        begin_record(tmp_path, ORIGIN, 4)
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(BadFile):
        begin_record(tmp_path, ORIGIN, 4)


def test_a_folder_is_recorded_into_by_one_process(tmp_path: Path):
    with lock_record(tmp_path / "new"), pytest.raises(RunInUse), lock_record(tmp_path / "new"):
        pass
    with lock_record(tmp_path / "new"):
        assert begin_record(tmp_path / "new", ORIGIN, 0).missing == ("plain",)


@pytest.mark.parametrize(
    ("complete", "verdict"),
    [
        (["plain"], "cannot tell"),
        (["plain", "replica-1", "replica-2", "replica-3"], "cannot tell"),
        (["plain", "float64", "replica-1"], "cannot tell"),
        (["plain", "float64", "replica-1", "replica-2"], "same"),
        (["plain", "float64", "replica-1", "replica-2", "replica-3"], "same"),
    ],
    ids=lambda value: f"{len(value)}" if isinstance(value, list) else "",
)
def test_a_comparison_names_the_missing_runs_and_ignores_their_files(tmp_path: Path, complete: list[str], verdict: str):
    state = interrupted(tmp_path / "a", complete)
    other = NumpyTraining(layers=3, steps=2, parts=2).write(tmp_path / "b")
    comparison = compare_records(tmp_path / "a", other)
    assert comparison.verdict == verdict
    assert comparison.a.missing == state.missing
    assert comparison.a.variants == tuple(sorted(complete))
    assert comparison.b.missing == ()
    report = report_numerics(comparison, "")
    assert ("did not end" in "".join(report.explanations)) == bool(state.missing)
    assert all(variant in "".join(report.explanations) for variant in state.missing)
