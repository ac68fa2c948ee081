"""`trainyard trace` and its modes, `demo` and `diff`: one screen by default, --full, JSON, and replaced options."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import jsonschema
import pytest
import schemas

from tests import trace_maker
from tests.cli.one_screen import check
from tests.hangs import nccl_job
from tests.memory_runs import training
from trainyard import api
from trainyard.cli.main import answer
from trainyard.printable import encode_json

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "src" / "trainyard" / "data" / "demo"
RANKS = [str(DEMO / f"rank{rank}.json.gz") for rank in (0, 1)]
STEPS = {
    "device": [
        ("gemm<float, 64>", 7, 10_000, 40_000, 5_000),
        ("gemm<float, 64>", 7, 110_000, 140_000, 105_000),
    ],
    "marks": [("1", 0, 100_000), ("2", 100_000, 200_000)],
}


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    path = tmp_path / "snapshot.pickle"
    run, _ = training(layers=24, steps=2)
    path.write_bytes(pickle.dumps(run.snapshot()))
    return path


@pytest.fixture
def device_trace(tmp_path: Path) -> Path:
    return trace_maker.write(tmp_path, trace_maker.trace(**STEPS))


@pytest.fixture
def flight_records(tmp_path: Path) -> Path:
    """A folder with the dumps of three ranks, of which rank 1 skips a collective."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    slots = [nccl_job.Slot("all_reduce", 0, 64), nccl_job.Slot("broadcast", 0, 256)]
    job = nccl_job.Job(3, [(0, 1, 2)], slots, "missing_collective", 1, 2, 0)
    for rank, document in nccl_job.dumps_of(job).items():
        (folder / f"nccl_trace_rank_{rank}").write_bytes(nccl_job.encode(document, "pickle"))
    return folder


@pytest.fixture
def commands(tmp_path: Path, snapshot: Path, device_trace: Path, flight_records: Path) -> dict[str, list[str]]:
    """Name -> command line."""
    return {
        "demo": ["demo", "--out", str(tmp_path / "page.html")],
        "trace": ["trace", str(DEMO)],
        "critical-path": ["trace", "critical-path", str(DEMO)],
        "what-if": ["trace", "what-if", str(DEMO), "--change", "network=2x"],
        "hta": ["trace", "reconcile", str(device_trace), "--with", "hta"],
        "tracelens": ["trace", "reconcile", str(device_trace), "--with", "tracelens"],
        "hangs": ["trace", "hangs", str(flight_records)],
        "memory": ["trace", "memory", str(snapshot)],
        "snapshot": ["trace", str(snapshot)],
        "diff": ["diff", *RANKS],
    }


NAMES = ["demo", "trace", "what-if", "critical-path", "hta", "tracelens", "hangs", "memory", "snapshot", "diff"]


@pytest.mark.parametrize("name", NAMES)
def test_default_output_fits_one_screen(name, commands, monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert answer(commands[name]) == 0
    check(capsys.readouterr().out)


@pytest.mark.parametrize("name", NAMES)
def test_narrow_output_keeps_to_its_width(name, commands, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    assert answer(commands[name]) == 0
    check(capsys.readouterr().out, columns=40, lines=90)


@pytest.mark.parametrize("name", NAMES)
def test_full_output_holds_at_least_the_default(name, commands, capsys):
    assert answer(commands[name]) == 0
    short = capsys.readouterr().out
    assert answer([*commands[name], "--full"]) == 0
    full = capsys.readouterr().out
    assert "Where to look next" not in full
    assert len(full.split()) >= len(short.partition("Where to look next")[0].split())


def test_accounts_of_the_summary_add_up_to_the_step(capsys):
    assert answer(["trace", str(DEMO)]) == 0
    table = capsys.readouterr().out.partition("account ")[2].partition("by phase")[0]
    *accounts, step = [float(ms) for ms in re.findall(r" ([\d,.]+) +[\d.]+ %", table)]
    assert len(accounts) >= 5
    assert sum(accounts) == pytest.approx(step, abs=0.01)


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        (["--what-if", "network=2x"], "trainyard trace what-if"),
        (["--sql", "select 1"], "trainyard trace sql"),
        (["--window", "hta"], "trainyard trace reconcile PATH... --with hta"),
        (["--window=tracelens"], "trainyard trace reconcile PATH... --with tracelens"),
        (["--top", "all"], "--full"),
    ],
)
def test_replaced_options_name_the_new_mode(options, mode, capsys):
    assert answer(["trace", str(DEMO), *options]) == 2
    assert mode in capsys.readouterr().err


def printed(command: list[str], schema: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert answer([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(schemas.schema_of(schemas.DOCUMENTS[schema])).validate(document)
    assert document["schema"] == f"trainyard/{schema}/1"
    return document


def test_critical_path_prints_what_the_api_returns(commands, capsys):
    result = api.critical_path(DEMO)
    assert printed(commands["critical-path"], "critical-path", capsys) == json.loads(encode_json(result))


def test_hangs_prints_what_the_api_returns(commands, flight_records, capsys):
    result = api.hangs([flight_records])
    assert (result.kind, result.ranks) == ("missing_collective", (1,))
    assert printed(commands["hangs"], "hangs", capsys) == json.loads(encode_json(result))


def test_what_if_prints_what_the_api_returns(commands, capsys):
    result = api.what_if(DEMO, changes=["network=2x"])
    assert printed(commands["what-if"], "what-if", capsys) == json.loads(encode_json(result))
    assert sum(change.ns for change in result.accounts) == result.after.wall_ns - result.before.wall_ns < 0


@pytest.mark.parametrize("tool", ["hta", "tracelens"])
def test_reconcile_prints_what_the_api_returns(tool, commands, device_trace, capsys):
    result = api.reconcile(device_trace, tool=tool)
    assert printed(commands[tool], "reconcile", capsys) == json.loads(encode_json(result))
    assert result.tool == tool


@pytest.mark.parametrize("name", ["memory", "snapshot"])
def test_memory_prints_what_the_api_returns(name, commands, snapshot, capsys):
    result = api.measure_memory(snapshot)
    assert printed(commands[name], "memory", capsys) == json.loads(encode_json(result))
    assert sum(result.devices[0].peak.held.values()) == result.devices[0].peak.allocated > 0


def test_sql_prints_what_the_api_returns(capsys):
    pytest.importorskip("duckdb")
    query = "select rank, sum(ns) from ledger where not partial group by rank order by rank"
    result = api.query(query, DEMO)
    assert printed(["trace", "sql", query, str(DEMO)], "sql", capsys) == json.loads(encode_json(result))
    assert [row[0] for row in result.rows] == [0, 1]


def test_sql_prints_at_most_thirty_rows_unless_full(capsys):
    pytest.importorskip("duckdb")
    command = ["trace", "sql", "select row as number from host limit 50", str(DEMO)]
    assert answer(command) == 0
    shown = capsys.readouterr().out
    check(shown)
    assert "20 more rows" in shown
    assert answer([*command, "--full"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 51


def test_analysis_json_holds_every_finding_table_and_note_of_full(capsys):
    assert answer(["trace", str(DEMO), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert answer(["trace", str(DEMO), "--full"]) == 0
    full = " ".join(capsys.readouterr().out.split())
    for finding in document["findings"]:
        assert f"{finding['summary']}." in full
    for note in document["notes"]:
        assert " ".join(note.split()) in full
    for table in document["tables"]:
        assert table["title"] in full
    assert {"Last to arrive"} <= {table["title"] for table in document["tables"]}


def test_results_show_their_tables_in_notebooks(snapshot, device_trace):
    predicted = api.what_if(device_trace, changes=["compute/matmul=2x"])
    reconciled = api.reconcile(device_trace, tool="hta")
    memory = api.measure_memory(snapshot)
    for result, text in ((predicted, predicted.changes[0]), (reconciled, "HTA"), (memory, "held at the peak")):
        page = result._repr_html_()
        assert page.startswith("<h4>")
        assert "<table>" in page
        assert text in page
