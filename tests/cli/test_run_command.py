"""The command line: what is printed where, and with which exit code."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from functools import partial
from io import StringIO
from pathlib import Path

import click
import msgspec
import pytest

from tests.refused import code_of, missing_values
from tests.run.local.test_harness import CORES, WORKER
from tests.stored import stored
from tests.tiny_job import ONE_LAYER
from trainyard import __version__, errors
from trainyard.cli import main
from trainyard.cli.main import COMMANDS, answer
from trainyard.cli.runs import list_runs
from trainyard.store.store import Store

JOB = f"""
name = "tiny"{ONE_LAYER}[layout]
dp_replicate = {{ranks}}
[recipe]
seq_len = 8
tokens_per_step = 16
[measure]
warmup = 1
steps = 2
repeats = 2
profiled = 2
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path / "store"))
    return Store()


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["--help"]) == 0
    printed = capsys.readouterr()
    assert all(re.search(rf"^  {name} ", printed.out, re.MULTILINE) for name in COMMANDS)
    assert not printed.err
    assert answer([]) == 0
    assert capsys.readouterr() == printed
    assert answer(["--version"]) == 0
    assert capsys.readouterr().out == f"trainyard, version {__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_and_has_at_most_ten_flags(name: str) -> None:
    command = main.cli.get_command(click.Context(main.cli), name)
    assert command is not None
    assert command.help
    for one in (command, *(command.commands.values() if isinstance(command, click.Group) else ())):
        assert len([param for param in one.params if isinstance(param, click.Option)]) <= 10


@pytest.mark.parametrize("args", [["rnu"], ["--wrong"], ["runs", "--wrong"], ["run"], ["runs", "tag", "one"]])
def test_wrong_usage_exits_2_and_prints_no_data(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(args) == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err
    assert args != ["rnu"] or missing_values(printed.err, "'rnu'", "'run'") == []


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """The exit code of a command that raises `error`."""

    def raises(**_: object) -> None:
        raise error

    monkeypatch.setattr(list_runs.command, "callback", raises)
    return answer(["runs"])


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.TrainyardError, 70),
        (errors.BadJob, 2),
        (errors.UnknownName, 2),
        (errors.NotEnoughEvidence, 3),
        (errors.PlaceUnwritable, 4),
        (errors.RankDied, 4),
    ],
)
def test_our_errors_end_in_words_and_their_code(
    kind: type[errors.TrainyardError], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failing(monkeypatch, kind("it \x1b[31mbroke.", "Mend it.")) == code
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"error [{kind.code}]: it ⟨U+001B⟩[31mbroke.\n       Mend it.\n")


def test_an_unforeseen_error_is_70_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRAINYARD_DEBUG", raising=False)
    assert failing(monkeypatch, RuntimeError("what\nis this")) == 70
    messages = capsys.readouterr().err
    assert messages.startswith("error [internal-error]: RuntimeError: what\n")
    assert missing_values(messages, "TRAINYARD_DEBUG=1") == []
    assert "Traceback" not in messages
    monkeypatch.setenv("TRAINYARD_DEBUG", "1")
    assert failing(monkeypatch, RuntimeError("what")) == 70
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "code", "exit_code", "value"),
    [
        (["trace", "nowhere.json", "--json"], "missing-file", 2, "nowhere.json"),
        (["runs", "show", "nothing", "--json"], "unknown-name", 2, "'nothing'"),
        (["runs", "--wrong", "--json"], "bad-usage", 2, "--wrong"),
    ],
)
def test_an_error_with_json_is_one_document(
    args: list[str], code: str, exit_code: int, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(args) == exit_code
    printed = capsys.readouterr()
    assert code_of(printed.err) == code
    document = json.loads(printed.out)
    assert document.keys() == {"schema", "code", "exit_code", "message", "next_step"}
    assert (document["schema"], document["code"], document["exit_code"]) == ("trainyard/error/1", code, exit_code)
    assert missing_values(document["message"], value) == []


def test_json_of_the_users_command_is_not_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["run", "--wrong", "--", "train.py", "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "interrupted.\n"
    known = KeyboardInterrupt()
    known.add_note("`trainyard run resume x` continues it.")
    assert failing(monkeypatch, known) == 130
    assert capsys.readouterr().err == "interrupted. `trainyard run resume x` continues it.\n"


def test_a_reader_that_goes_away_is_no_error(store: Store) -> None:
    for _ in range(3):
        stored(store)
    code = "import sys; from trainyard.cli.main import answer; sys.exit(answer(['runs', '--json']))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_empty_store_says_so_on_stderr(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["runs"]) == 0
    printed = capsys.readouterr()
    assert not printed.out
    assert missing_values(printed.err, store.root) == []


def test_runs_are_listed_shown_tagged_and_deleted(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = stored(store), stored(store)
    assert answer(["runs", "tag", first.id, "main"]) == 0
    assert answer(["runs", "tag", second.id, "main"]) == 0
    assert missing_values(capsys.readouterr().err, "'main'", first.id, second.id) == []
    assert answer(["runs", "--full"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "id", "job", "state", "tags", "step,", "ms", "when", "(UTC)", "layout", "per", "second"
    ]  # fmt: skip
    assert {line.split()[0] for line in lines[1:3]} == {first.id, second.id}
    assert "main" in next(line for line in lines if line.startswith(second.id)).split()
    assert answer(["runs", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["schema"] == "trainyard/runs/1"
    assert {run["id"]: run["tags"] for run in listed["runs"]} == {first.id: [], second.id: ["main"]}
    assert answer(["runs", "show", "main"]) == 0
    assert f"run {second.id}" in capsys.readouterr().out
    assert answer(["runs", "untag", "main"]) == 0
    assert answer(["runs", "show", "main"]) == 2
    assert answer(["runs", "delete", first.id, "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": "trainyard/deleted-run/1", "run": first.id, "deleted": True
    }  # fmt: skip
    assert [row.id for row in store.rows()] == [second.id]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_long_job_name_leaves_the_ids_whole(
    width: int, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stored(store, name="pretraining-" + "x" * 51 + "17")
    monkeypatch.setenv("COLUMNS", str(width))
    assert answer(["runs"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split()[0] == run.id
    assert line.split()[1].startswith("pretr")
    assert line.split()[1].endswith("x17")
    assert len(line) <= width


def test_delete_asks_first(store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = stored(store)
    monkeypatch.setattr("sys.stdin", StringIO("n\n"))
    assert answer(["runs", "delete", run.id]) == 2
    err = capsys.readouterr().err
    assert code_of(err) == "bad-input"
    assert missing_values(err, "--yes") == []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert answer(["runs", "delete", run.id]) == 130
    assert len(store.rows()) == 1


def test_a_shown_run_as_json_is_all_of_it(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run = stored(store)
    assert answer(["runs", "show", run.id, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["schema"], shown["state"], shown["id"]) == ("trainyard/run/3", "complete", run.id)
    assert len(shown["samples"]) == 12
    assert sum(entry["ns"] for entry in shown["ledgers"][0]["entries"]) == shown["ledgers"][0]["wall_ns"]
    assert shown["summary"]["step_ns"] == 125


@pytest.mark.parametrize("name", ["ledgers.json", "samples/rank1.jsonl"])
def test_run_with_unreadable_file_shows_the_rest(store: Store, capsys: pytest.CaptureFixture[str], name: str) -> None:
    run = stored(store)
    (store.runs / run.id / name).write_bytes(b"\x00garbage\n\n")
    assert answer(["runs", "show", run.id]) == 2
    printed = capsys.readouterr()
    assert str(store.runs / run.id / name) in printed.err
    assert run.id in printed.out
    assert "tiny" in printed.out
    assert answer(["runs", "show", run.id, "--json"]) == 2
    shown = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["id"]) == ("damaged", run.id)
    left = (12, 0) if name == "ledgers.json" else (0, 1)
    assert (len(shown.get("samples", ())), len(shown.get("ledgers", ()))) == left


def test_reindex_counts_the_folders(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    stored(store)
    (store.root / "index.sqlite3").write_bytes(b"rubbish")
    assert answer(["runs", "--reindex", "--json"]) == 0
    printed = capsys.readouterr()
    assert "indexed 1 run in" in printed.err
    assert len(json.loads(printed.out)["runs"]) == 1


@pytest.fixture
def acting(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job file whose ranks only act."""
    pytest.importorskip("torch")
    from trainyard.api import run_jobs

    (tmp_path / "acting_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    acting_session = partial(run_jobs.Session, devices=CORES, worker="acting_worker")
    monkeypatch.setattr("trainyard.run.session.Session", acting_session)
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(ranks=2))
    return path


@pytest.mark.torch
def test_a_run_prints_its_figures_and_ledger(acting: Path, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["run", str(acting), "--tag", "main"]) == 0
    printed = capsys.readouterr()
    (row,) = store.rows()
    assert row.tags == ("main",)
    assert printed.out.startswith(f"run {row.id}\n")
    assert "256.5 % profiler's cost (295.0 µs a step, by medians)" in printed.out
    assert "115.0 µs step time" in printed.out
    assert "Profiled step" in printed.out
    assert " 0.400 " in printed.out
    assert "step 8/8  loss 4.3000" in printed.err
    assert "loss 5.0000" in printed.err


@pytest.mark.torch
def test_a_quiet_run_prints_json_alone(acting: Path, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["run", str(acting), "--json", "--quiet"]) == 0
    printed = capsys.readouterr()
    assert not printed.err
    shown = json.loads(printed.out)
    assert (shown["state"], shown["id"]) == ("complete", store.rows()[0].id)
    assert shown["summary"]["repeats_ns"] == [105000, 125000]
    assert shown["claims"]["matmul_rate"]["value"] == 1.5e9
    assert shown["ledgers"][-1]["scope"]["ranks"] == [0, 1]
    assert sum(entry["ns"] for entry in shown["ledgers"][-1]["entries"]) == 400_000


@pytest.mark.torch
def test_a_dead_rank_is_one_clear_error(acting: Path, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    acting.write_text(acting.read_text() + "# how: die\n")
    assert answer(["run", str(acting), "--tag", "doomed"]) == 4
    printed = capsys.readouterr()
    assert not printed.out
    assert code_of(printed.err) == "rank-died"
    assert "Traceback" not in printed.err
    (row,) = store.rows()
    assert row.state == "failed"
    assert missing_values(printed.err, "rank 1", "SIGKILL", "something is odd", f"run {row.id}") == []
    assert row.tags == ("doomed",)
    assert answer(["runs", "show", row.id]) == 0
    assert missing_values(capsys.readouterr().out, "rank 1", "SIGKILL") == []


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (JOB.format(ranks=2).replace("heads = 1", "haeds = 1", 1), ["$.model:", "'haeds'", "'heads'"]),
        ("name = ", ["TOML"]),
        ("", ["$:", "`recipe`"]),
    ],
)
def test_a_bad_job_file_exits_2_before_anything_starts(
    text: str, values: list[str], tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text)
    assert answer(["run", str(path)]) == 2
    err = capsys.readouterr().err
    assert code_of(err) == "bad-job"
    assert missing_values(err, path, *values) == []
    assert answer(["run", str(tmp_path / "none.toml")]) == 2
    err = capsys.readouterr().err
    assert code_of(err) == "missing-file"
    assert missing_values(err, tmp_path / "none.toml") == []
    assert not store.root.exists()


@pytest.mark.parametrize(
    ("change", "code", "values"),
    [
        (("dp_replicate = 1", "tp = 1\ninterleave = 2"), "bad-job", ["interleave = 2", "$.layout", "pp = 1"]),
        (('name = "tiny"', 'workload = "transfomer"'), "unknown-name", ["'transfomer'", "'transformer'"]),
        (
            ("seq_len = 8", 'seq_len = 8\ndataset = "nosuch"'),
            "bad-job",
            ["dataset = 'nosuch'", "$.recipe:", os.strerror(errno.ENOENT)],
        ),
    ],
)
def test_a_job_that_cannot_be_trained_exits_2_and_leaves_no_run(
    change: tuple[str, str],
    code: str,
    values: list[str],
    tmp_path: Path,
    store: Store,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(ranks=1).replace(*change))
    assert answer(["run", str(path)]) == 2
    err = capsys.readouterr().err
    assert code_of(err) == code
    assert missing_values(err, *values) == []
    assert not store.root.exists()


def test_neither_command_nor_job_file_is_an_error(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["run", "--", "nosuchcommand"]) == 2
    err = capsys.readouterr().err
    assert code_of(err) == "bad-input"
    assert missing_values(err, "'nosuchcommand'") == []
    assert answer(["run", "resume", "a", "python", "x.py"]) == 2
    assert code_of(capsys.readouterr().err) == "bad-usage"
    assert not store.root.exists()


def test_a_run_with_broken_traces_is_shown_without_them(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stored(store)
    kept = store.load(run.id)
    store.finish(msgspec.structs.replace(kept, trace=("traces/rank0.json",)))
    (store.runs / run.id / "traces" / "rank0.json").write_bytes(b"")
    assert answer(["report", run.id, "--out", str(tmp_path / "page.html")]) == 0
    assert missing_values(capsys.readouterr().err, "rank0.json", run.id) == []
    assert (tmp_path / "page.html").stat().st_size


def test_more_ranks_than_the_machine_holds(tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(ranks=4096).replace("tokens_per_step = 16", "tokens_per_step = 32768"))
    assert answer(["run", str(path)]) == 2
    err = capsys.readouterr().err
    assert code_of(err) == "bad-job"
    assert missing_values(err, "$.layout:", "dp_replicate 4096") == []
    assert answer(["run", str(path), "--tag", "no/name"]) == 2
    assert not store.root.exists()
