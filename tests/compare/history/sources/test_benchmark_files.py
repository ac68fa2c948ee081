"""Histories of what pytest-benchmark and asv kept. The files in golden/histories/ were written by asv 0.6.6 and
pytest-benchmark 5.3.1, and shortened."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refused import refused
from trainyard.cli.main import answer
from trainyard.compare.history.sources.benchmark_files import is_benchmark_file, load
from trainyard.errors import BadFile, BadInput, UnknownName

GOLDEN = Path(__file__).parents[3] / "golden" / "histories"
PYTEST, ASV = GOLDEN / "pytest_benchmark.json", GOLDEN / "asv.json"


def _many(folder: Path, source: Path, count: int, change: Callable[[dict[str, Any], int], None]) -> Path:
    document = json.loads(source.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    for at in range(count):
        change(document, at)
        (folder / f"{at:04}.json").write_text(json.dumps(document))
    return folder


def _pytest_run(document: dict[str, Any], at: int) -> None:
    document["datetime"] = f"2026-01-{at + 1:02}T00:00:00+00:00"
    document["commit_info"]["id"] = f"{at:040x}"
    document["benchmarks"][0]["stats"]["median"] = (1.0 if at < 15 else 1.5) + 0.001 * (at * 7 % 5)


def _asv_run(document: dict[str, Any], at: int) -> None:
    document["date"] = 1767225600000 + 86_400_000 * at
    document["commit_hash"] = f"{at:040x}"
    for name, cells in document["results"].items():
        if name.endswith("time_sum"):
            cells[0] = [(1.0 if at < 15 else 1.5) + 0.001 * (at * 7 % 5)]


def test_files_of_both_programs_are_read() -> None:
    benchmark = load(PYTEST, "test_bench.py::test_sum")
    assert (benchmark.name, len(benchmark.points)) == ("test_sum", 1)
    assert benchmark.values == [json.loads(PYTEST.read_text())["benchmarks"][0]["stats"]["median"]]
    kept = json.loads(ASV.read_text())
    sums = load(ASV, "benchmarks.time_sum")
    assert sums.values == kept["results"]["benchmarks.time_sum"][0]
    assert sums.points[0].commit == kept["commit_hash"]
    assert load(ASV, "benchmarks.time_sort(1000, 'list')").values[0] > 0
    with refused(UnknownName, "'benchmarks.time_fails'"):  # it failed: no result was kept
        load(ASV, "benchmarks.time_fails")


@pytest.mark.parametrize(("source", "change", "name"), [
    (PYTEST, _pytest_run, "test_bench.py::test_sum"), (ASV, _asv_run, "benchmarks.time_sum"),
])  # fmt: skip
def test_a_folder_is_a_series_whose_change_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: Path, change: Any, name: str
) -> None:
    folder = _many(tmp_path / "kept" / "machine", source, 30, change)
    (folder.parent / "benchmarks.json").write_text('{"version": 2}')  # asv's descriptions
    series = load(folder.parent, name)
    assert [point.commit for point in series.points] == [f"{at:040x}" for at in range(30)]
    assert answer(["history", "--series", str(folder.parent), "--metric", name, "--json"]) == 1
    (change_,) = json.loads(capsys.readouterr().out)["changes"]
    assert change_["change"]["at"] == 15


def test_runs_on_another_machine_are_left_out_with_a_note(tmp_path: Path) -> None:
    def change(document: dict[str, Any], at: int) -> None:
        _pytest_run(document, at)
        document["machine_info"]["node"] = "old" if at < 4 else "new"

    series = load(_many(tmp_path / "kept", PYTEST, 10, change), "test_bench.py::test_sum")
    assert len(series.points) == 6
    assert series.notes[0].startswith("4 results of other machines than new")


def test_one_of_many_benchmarks_must_be_selected(tmp_path: Path) -> None:
    with refused(BadInput, ASV, 6, "benchmarks.peakmem_list", "--metric"):
        load(ASV, None)
    with refused(UnknownName, "'benchmarks.time_sun'", "'benchmarks.time_sum'"):
        load(ASV, "benchmarks.time_sun")
    (tmp_path / "empty").mkdir()
    with refused(BadFile, tmp_path / "empty", "pytest-benchmark", "asv"):
        load(tmp_path / "empty", None)


@pytest.mark.parametrize(
    "damage", [{"version": 1}, {"params": {}}, {"date": "x"}, {"results": 3}, {"result_columns": 1}]
)
def test_damaged_results_are_reported_with_their_file(tmp_path: Path, damage: dict[str, Any]) -> None:
    path = tmp_path / "asv.json"
    path.write_text(json.dumps(json.loads(ASV.read_text()) | damage))
    with refused(BadFile, path):
        load(path, "benchmarks.time_sum")


def test_own_series_is_not_a_benchmark_file(tmp_path: Path) -> None:
    shutil.copy(PYTEST, tmp_path / "theirs.json")
    (tmp_path / "ours.json").write_text("[1, 2, 3]")
    (tmp_path / "ours.csv").write_text("value\n1\n")
    assert is_benchmark_file(tmp_path / "theirs.json")
    assert is_benchmark_file(tmp_path)
    assert not is_benchmark_file(tmp_path / "ours.json")
    assert not is_benchmark_file(tmp_path / "ours.csv")
    assert not is_benchmark_file(tmp_path / "absent.json")


_PARTS = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=3),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=1) | st.just("stats"), some, max_size=3),
)


@given(_PARTS)
def test_no_document_ends_in_a_traceback(tmp_path_factory: pytest.TempPathFactory, part: Any) -> None:
    path = tmp_path_factory.mktemp("kept") / "one.json"
    for source in (ASV, PYTEST):
        document = json.loads(source.read_text())
        for key in document:
            path.write_text(json.dumps(document | {key: part}))
            with suppress(BadInput):
                load(path, None)
