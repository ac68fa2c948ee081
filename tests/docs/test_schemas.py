"""docs/schemas holds the JSON Schemas of the types, and the output of the commands conforms to them."""

import json

import jsonschema
import pytest
import schemas

from tests.predict.calibrate.test_fit_constants import BASE, HERE, LAYOUTS, SEEN, a_job, as_probed, as_run
from tests.stored import stored
from trainyard import analyse, api
from trainyard.api import probe_machine
from trainyard.cli.main import answer
from trainyard.predict.calibrate import machine_file
from trainyard.printable import encode_json
from trainyard.report.plans.launch_files import launch_file
from trainyard.store.store import Store

PLAN = ["plan", "llama3-8b", "--machine", "h100", "--devices", "16", "--batch", "16", "--seq-len", "2048"]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Ids of six stored runs, base and head interleaved."""
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path / "store"))
    store = Store(tmp_path / "store")
    return [stored(store, started=f"2025-01-01T00:0{minute}:00.000+00:00").id for minute in range(6)]


def valid(name, text):
    document = json.loads(text)
    validator = jsonschema.Draft202012Validator(schemas.schema_of(schemas.DOCUMENTS[name]))
    assert [error.json_path for error in validator.iter_errors(document)] == []
    assert set(document) - {"schema"}
    return document


def test_the_files_are_up_to_date():
    assert {path: path.read_text("utf-8") for path in schemas.FOLDER.iterdir()} == schemas.render(), "run 'make docs'"


def test_document_of_another_type_is_invalid():
    with pytest.raises(AssertionError):
        valid("gate", '{"schema": "trainyard/ledgers/1", "ledgers": []}')


@pytest.mark.parametrize("options", [[], ["--window", "all"]])
def test_trace_prints_a_valid_document(root, capsys, options):
    assert answer(["trace", str(root / "src" / "trainyard" / "data" / "demo"), *options, "--json"]) == 0
    assert valid("analysis", capsys.readouterr().out)["ledgers"]


def test_trace_prints_what_analyse_returns(root, capsys):
    folder = root / "src" / "trainyard" / "data" / "demo"
    analysis = analyse(folder)
    assert answer(["trace", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [finding["rule"] for finding in document["findings"]] == [finding.rule for finding in analysis.findings]
    assert [table["title"] for table in document["tables"]] == [table.title for table in analysis.tables]
    assert document["ledgers"][-1]["wall_ns"] == analysis.mean.wall_ns
    assert analysis.findings
    assert analysis._repr_html_().startswith("<iframe srcdoc=")


def test_demo_prints_a_valid_document(tmp_path, capsys):
    assert answer(["demo", "--json", "--out", str(tmp_path / "page.html")]) == 0
    assert valid("analysis", capsys.readouterr().out)["findings"]


def test_plan_prints_a_valid_document(capsys):
    assert answer([*PLAN, "--json"]) == 0
    assert valid("plans", capsys.readouterr().out)["choices"]


def test_plan_prints_what_the_api_returns(capsys):
    plans = api.plan("llama3-8b", machine="h100", devices=16, batch=16, seq_len=2048, front=True)
    assert answer([*PLAN, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(encode_json(plans))
    assert plans.pareto_front
    assert plans._repr_html_().startswith("<iframe srcdoc=")


def test_plan_list_prints_what_the_api_returns(capsys):
    assert answer(["plan", "list", "--json"]) == 0
    document = valid("catalogue", capsys.readouterr().out)
    assert document == json.loads(encode_json(api.catalogue()))


def test_probe_prints_a_valid_document(monkeypatch, capsys):
    monkeypatch.setattr(probe_machine.devices, "devices", lambda ranks, dtype: (SEEN, 2, ()))
    monkeypatch.setattr(probe_machine.devices, "probe", lambda vendor, ranks, dtype: (as_probed(), None))
    assert answer(["probe", "--wait", "0", "--json"]) == 0
    assert valid("machine", capsys.readouterr().out)["calls"]


def test_fit_prints_a_valid_document(monkeypatch, capsys, tmp_path):
    runs = {"a": as_run(HERE, BASE, a_job(LAYOUTS[0]), "a")}
    monkeypatch.setattr(probe_machine, "measured_run", lambda name, say: runs[name])
    (tmp_path / "here.toml").write_text(machine_file.write(HERE, "A test."))
    assert answer(["probe", "fit", "a", "--machine", str(tmp_path / "here.toml"), "--json"]) == 0
    assert valid("fit", capsys.readouterr().out)["runs"]


def test_checked_plan_begins_with_the_configuration(tmp_path, capsys):
    job = tmp_path / "job.toml"
    plans = api.plan("tiny", machine="h100", devices=4, batch=16, seq_len=128)
    job.write_text(launch_file(plans).text)
    checked = api.check_plan(job, machine="h100")
    assert checked.as_configured
    assert checked.best.plan.job.layout == plans.best.plan.job.layout
    assert answer(["plan", "check", str(job), "--machine", "h100", "--json"]) == 0
    assert valid("plans", capsys.readouterr().out)["as_configured"]


def test_diff_prints_a_valid_document(root, capsys):
    folder = root / "src" / "trainyard" / "data" / "demo"
    paths = folder / "rank0.json.gz", folder / "rank1.json.gz"
    assert answer(["diff", *map(str, paths), "--json"]) == 0
    document = valid("comparison", capsys.readouterr().out)
    comparison = api.diff(*paths)
    assert document == json.loads(encode_json(comparison))
    assert sum(change.ns for change in comparison.changes) == comparison.wall_change_ns


def test_gate_prints_a_valid_document(runs, capsys):
    code = answer(["gate", *runs[1::2], *(word for run in runs[::2] for word in ("--base", run)), "--json"])
    assert code in (0, 3)
    valid("gate", capsys.readouterr().out)
