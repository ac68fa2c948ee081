"""`trainyard runs`, its modes and `trainyard report`: one screen, JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.cli import one_screen
from tests.cli.schema_check import valid
from tests.refused import code_of
from tests.stored import stored
from trainyard import api
from trainyard.cli.main import answer
from trainyard.record import Provenance
from trainyard.store.store import Store
from trainyard.train.checkpoint import export_weights


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path / "store"))
    return Store()


def test_list_of_many_runs_fits_one_screen(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for minute in range(50):
        stored(store, started=f"2025-01-01T00:{minute:02}:00.000+00:00")
    assert answer(["runs"]) == 0
    shown = capsys.readouterr().out
    one_screen.check(shown)
    assert "12 older runs" in shown
    assert answer(["runs", "--full"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 52
    assert answer(["runs", "--json"]) == 0
    assert len(valid("runs", capsys.readouterr().out)["runs"]) == 50
    monkeypatch.setenv("COLUMNS", "40")
    assert answer(["runs"]) == 0
    one_screen.check(capsys.readouterr().out, columns=40)


def test_shown_run_fits_one_screen_and_full_adds_provenance(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    known = msgspec.structs.replace(stored(store), provenance=Provenance(packages={"torch": "2.13"}))
    run = store.finish(known)
    assert answer(["runs", "show", run.id]) == 0
    shown = capsys.readouterr().out
    one_screen.check(shown)
    assert answer(["runs", "show", run.id, "--full"]) == 0
    full = capsys.readouterr().out
    assert all(part in full for part in ("provenance\n", "torch 2.13", run.id, str(store.runs)))
    assert "provenance\n" not in shown


def test_shown_run_is_a_valid_document(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run = stored(store)
    assert answer(["runs", "show", run.id, "--json"]) == 0
    document = valid("run", capsys.readouterr().out)
    assert document["headline"]
    assert document["figures"][0]["label"] == "step time"
    assert (document["chaos"], document["error"], document["missing"]) == (None, None, [])


def test_changes_of_runs_are_valid_documents(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(schema: str, *words: str) -> dict[str, object]:
        assert answer(["runs", *words, "--json"]) == 0
        return valid(schema, capsys.readouterr().out)

    run, remote = stored(store), str(tmp_path / "remote")
    assert printed("run-tag", "tag", run.id, "main")["tag"] == "main"
    assert printed("run-tag", "untag", "main")["untagged"] == "main"
    pushed = printed("copied", "push", run.id, "--to", remote)
    assert printed("deleted-run", "delete", run.id, "--yes")["run"] == run.id
    pulled = printed("copied", "pull", "--from", remote)
    assert [[copied["id"] for copied in document["runs"]] for document in (pushed, pulled)] == [[run.id], [run.id]]  # type: ignore[attr-defined]
    done = export_weights.Exported(step=9, tensors=1, bytes=4096, rejected=())
    monkeypatch.setattr(export_weights, "export", lambda *_: done)
    weights = printed("weights", "export-weights", run.id, "--out", "w.safetensors")
    assert (weights["run"], weights["step"], weights["bytes"]) == (run.id, 9, 4096)


def test_errors_are_valid_documents(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["runs", "show", "nothing", "--json"]) == 2
    printed = capsys.readouterr()
    assert valid("error", printed.out)["code"] == code_of(printed.err) == "unknown-name"


def test_report_prints_a_valid_document(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = stored(store), tmp_path / "page.md"
    assert answer(["report", run.id, "--out", str(out), "--json"]) == 0
    document = valid("report", capsys.readouterr().out)
    assert (document["file"], document["format"], document["state"]) == (str(out), "md", "complete")
    assert out.read_text("utf-8").startswith("#")


@pytest.mark.parametrize("format", ["md", "csv", "json", "html"])
def test_report_of_a_result_needs_no_store(
    format: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    analysis = api.analyse(root / "src" / "trainyard" / "data" / "demo")
    written = api.report(analysis, format=format)
    assert Path(written.file).suffix == f".{format}"
    assert (tmp_path / written.file).stat().st_size
    assert written.file in written._repr_html_()
