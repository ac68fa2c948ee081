"""`trainyard report A B`: formats, names of files, exit codes."""

import csv
import io
import json
import re

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tests.compared_runs import PAGES, hostile_runs, plans, stored_run
from tests.refused import code_of, refused
from tests.report.render.test_html import BROWSER, Elements, drawn
from tests.stored import JOB_TEXT
from tests.trace_maker import trace, write
from trainyard import api
from trainyard.cli.main import answer
from trainyard.cli.report import command
from trainyard.errors import BadInput
from trainyard.ledger import decode_hook, encode_hook
from trainyard.printable import printable
from trainyard.report.comparison.build_comparison import compare_runs
from trainyard.report.comparison.comparison_page import page
from trainyard.report.comparison.comparison_tables import markdown_text
from trainyard.report.comparison.runs_comparison import RunsComparison
from trainyard.store.store import Store

AFTER_STEPS = ((1200, 100, 400, 2, 3), (1210, 112, 410, 2, 3))


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A store with the runs aaaa and bbbb and one without a profile, cccc."""
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path / "store"))
    store = Store()
    for run in (
        stored_run("a" * 8, (1000, 100, 500, 2, 3), (1010, 110, 510, 2, 3)),
        stored_run("b" * 8, *AFTER_STEPS),
        stored_run("c" * 8),
    ):
        store.begin(replace(run, state="incomplete", samples=(), ledgers=()), JOB_TEXT)
        store.finish(run)
    return store


def test_formats_hold_the_same_changes(stored, tmp_path):
    comparison = api.diff("aaaa", "bbbb")
    document = tmp_path / "x.json"
    written = api.report(["aaaa", "bbbb"], out=document)
    assert (written.format, written.file) == ("json", str(document))
    decoded = msgspec.json.decode(document.read_bytes(), type=RunsComparison, dec_hook=decode_hook)
    assert decoded.comparisons == (comparison,)
    api.report(["aaaa", "bbbb"], out=tmp_path / "x.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "x.csv").read_text("utf-8"))))
    assert {row["account"]: (int(row["change_ns"]), row["verdict"]) for row in rows} == {
        str(change.account): (change.ns, change.verdict) for change in comparison.changes
    }
    api.report(["aaaa", "bbbb"], out=tmp_path / "x.md")
    text = (tmp_path / "x.md").read_text("utf-8")
    assert "| Matmul | 1,005 | 1,205 | +200 | worse |" in text


def test_default_name_is_of_the_runs(stored, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, ["aaaa", "bbbb", "cccc", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["file"] == f"{'a' * 8}-vs-{'b' * 8}-vs-{'c' * 8}.html"


def test_plans_against_a_run(stored, tmp_path):
    (tmp_path / "plans.json").write_bytes(msgspec.json.encode(plans(100, 120), enc_hook=encode_hook))
    api.report([tmp_path / "plans.json", "aaaa"], out=tmp_path / "x.json")
    check = json.loads((tmp_path / "x.json").read_bytes())["plan_checks"][0]
    assert (check["measured_ns"], check["low_ns"], check["high_ns"], check["position"]) == (125, 90, 110, "above")


def test_analyses_can_be_compared(tmp_path):
    files = [
        write(tmp_path, trace(device=[("gemm", 7, 0, ns, 0)], host=[("aten::mm", 100, 0, 5, "cpu_op")]), f"{ns}.json")
        for ns in (10, 20)
    ]
    api.report([api.analyse(file) for file in files], out=tmp_path / "x.json")
    document = json.loads((tmp_path / "x.json").read_bytes())
    assert [run["wall_ns"] for run in document["runs"]] == [10, 20]
    assert document["comparisons"][0]["doubts"]
    assert {change["verdict"] for row in document["rows"] for change in row["changes"]} == {"unknown"}


def test_formats_of_a_single_run_are_refused_before_reading(tmp_path):
    with refused(BadInput, tmp_path / "x.xlsx") as caught:
        api.report(["nothing", "there"], out=tmp_path / "x.xlsx")
    assert ".html" in caught.value.next_step
    with refused(BadInput):
        api.report([])


def test_damaged_run_is_reported_with_exit_code_2(stored, tmp_path, capsys):
    ledgers = stored.find("bbbb") / "ledgers.json"
    ledgers.write_text(ledgers.read_text("utf-8") + "\n")  # valid, but not as recorded
    assert answer(["report", "aaaa", "bbbb", "--out", str(tmp_path / "x.json")]) == 2
    document = json.loads((tmp_path / "x.json").read_bytes())
    assert document["comparisons"] == [None]
    assert document["runs"][1]["state"] == "damaged"
    assert code_of(capsys.readouterr().err) is None


def test_hostile_names_stay_text():
    runs = hostile_runs()
    document = Elements(page(runs))
    assert [tag for tag, _ in document.tags if tag in ("script", "img", "style", "iframe")] == [
        "style", "script", "script"
    ]  # fmt: skip
    data = json.loads(document.inside["script"][0])
    assert data["runs"][0]["name"] == printable(runs[0].name)
    assert len(data["runs"][1]["name"]) < 100 < len(runs[1].name)
    assert not re.search("[<\u2028\u2029\u202e\x00\x1b]", document.inside["script"][0])
    static = Elements(page(runs).partition("<noscript>")[2].partition("</noscript>")[0])
    assert not [tag for tag, _ in static.tags if tag in ("script", "img", "svg", "iframe")]
    assert [tag for tag, _ in static.tags].count("table") > 3
    outside_code = re.sub("`[^`]*`", "", markdown_text(compare_runs(runs)))
    assert not re.search(r"(?<!\\)<|\u202e", outside_code)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(
    ("called", "state", "has"),
    [
        ("traces", "#kind=Matmul&steps=1.2&q=gemm", ['aria-pressed="true"', "A 1 match, 4.00 µs · B 1 match, 5.00 µs"]),
        ("plan", "#theme=dark", ["0 of 1 measured step", "Peak of allocated memory", 'class="check below"']),
        ("hostile", "", ["&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;", "⟨U+202E⟩evil", "6 appeared"]),
    ],
)
def test_browser_draws_every_section_without_errors(tmp_path, called, state, has):
    (tmp_path / "page.html").write_text(page(PAGES[called](tmp_path)), "utf-8")
    document, complaints = drawn(tmp_path / "page.html", state, width=1400 if state else 800)
    assert complaints == []
    assert [text for text in has if text not in document] == []
    assert "<footer>" in document
    shown = re.sub(r"(?s)<script.*?</script>", "", document)
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b-\u200f\u061c\x1b]", document)
    assert not re.search("<img|<svg onload|window.hacked = 1</script", shown)
