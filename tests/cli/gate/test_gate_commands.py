"""The gate as it is typed: stored runs, revisions in worktrees, and what it says of bad input."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from itertools import count
from math import exp
from pathlib import Path
from random import Random
from threading import Barrier
from typing import Any

import pytest

from tests.cli.one_screen import check
from tests.json_documents import read_document
from tests.refused import code_of, missing_values, refused
from trainyard import api
from trainyard.cli.main import answer
from trainyard.errors import BadInput, CommandFailed, UnknownRevision
from trainyard.job import Job
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.record import Provenance, Run, Sample
from trainyard.run.revisions.in_revision import RevisionRun, run_in, run_pair
from trainyard.run.revisions.worktree import between, checkout, known_revision, revision, subject
from trainyard.store.store import Store

EXAMPLES = Path(__file__).parents[3] / "examples"
MODEL = Model(layers=2, hidden_size=64, ffn_hidden_size=192, heads=4, kv_heads=4, head_dim=16, vocab=256)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path / "store"))
    return Store(tmp_path / "store")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten commits; from the seventh on a file says that steps are a tenth slower."""
    here = tmp_path / "repository"
    (here / "inside").mkdir(parents=True)
    _git(here, "init", "-q", "-b", "main")
    for at in range(10):
        (here / "inside" / "slow").write_text("1.1" if at >= 6 else "1.0")
        (here / "number").write_text(str(at))
        _git(here, "add", ".")
        _git(here, "commit", "-q", "-m", f"change {at}")
    monkeypatch.chdir(here)
    return here


def _git(here: Path, *words: str) -> str:
    own = ("-c", "user.name=a test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *own, *words], cwd=here, check=True, capture_output=True, text=True).stdout


def kept(store: Store, number: int, step_ns: float, **changed: Any) -> Run:
    samples = tuple(
        Sample(step=at, rank=0, repeat=0, wall_ns=round(step_ns) + at, tokens=8, memory_bytes=1 << 20)
        for at in range(5)
    )
    job = Job(name="j", model=MODEL, recipe=Recipe(seq_len=8, tokens_per_step=8))
    given = {
        "id": f"{number + 0xA0000000:08x}", "job": job, "started": f"2026-01-01T00:{number:04d}", "state": "complete",
        "samples": samples,
    }  # fmt: skip
    run = Run(**(given | changed))
    folder = store.begin(run, "")
    (folder / "samples").mkdir(exist_ok=True)
    return store.finish(run)


def sides(store: Store, slower: float, pairs: int = 8) -> list[str]:
    """The command's arguments."""
    lot = Random(1)  # noqa: S311
    words: list[str] = []
    for at in range(pairs):
        base = kept(store, 2 * at, 1e8 * exp(lot.gauss(0, 0.004)))
        head = kept(store, 2 * at + 1, 1e8 * slower * exp(lot.gauss(0, 0.004)))
        words += [head.id, "--base", base.id]
    return words


@pytest.mark.parametrize(("slower", "pairs", "code", "says"), [
    (1.1, 8, 1, "worse"), (1.0, 8, 0, "not worse"), (1.1, 2, 3, "unclear"),
])  # fmt: skip
def test_stored_runs_are_judged(
    store: Store, capsys: pytest.CaptureFixture[str], slower: float, pairs: int, code: int, says: str
) -> None:
    words = sides(store, slower, pairs)
    assert answer(["gate", *words]) == code
    out = capsys.readouterr().out
    assert f"{pairs} pairs" in " ".join(out.split())
    check(out)
    assert answer(["gate", *words, "--json"]) == code
    document = read_document("gate", capsys.readouterr().out)
    result = api.gate(words[::3], base=words[2::3])
    assert document["headline"] == result.headline
    assert "<pre" in result._repr_html_()
    assert document["verdicts"][0]["outcome"] == says
    assert document["verdict"] == says
    assert len(document["runs"]) == pairs
    assert answer(["gate", *words, "--format", "github"]) == code
    assert capsys.readouterr().out.startswith("## ")


def test_revision_resolves_to_its_runs(store: Store, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shas = {name: revision(repository, name) for name in ("HEAD", "HEAD~1")}
    for at in range(16):
        sha = shas["HEAD" if at % 2 else "HEAD~1"]
        kept(store, at, 1e8 + at, provenance=Provenance(code={"sha": sha, "dirty": "no"}))
    kept(store, 99, 9e8, provenance=Provenance(code={"sha": shas["HEAD"], "dirty": "yes"}))
    assert answer(["gate", "HEAD", "--base", "HEAD~1"]) == 0
    printed = capsys.readouterr()
    assert "8 pairs" in printed.out
    assert missing_values(printed.err, "HEAD~1", 8, shas["HEAD~1"][:10]) == []
    assert answer(["gate", "HEAD~2", "--base", "HEAD"]) == 2
    err = capsys.readouterr().err
    assert code_of(err) == "unknown-name"
    assert missing_values(err, "HEAD~2", revision(repository, "HEAD~2")[:10]) == []
    assert answer(["gate", "HEAD", "--base", "nothing"]) == 2
    err = capsys.readouterr().err
    assert code_of(err) == "unknown-name"
    assert missing_values(err, "'nothing'") == []


def test_branch_resolves_to_its_newest_commit_with_runs(
    store: Store, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline, head = revision(repository, "HEAD~3"), revision(repository, "HEAD")
    for at in range(16):
        kept(store, at, 1e8 + at, provenance=Provenance(code={"sha": head if at % 2 else baseline, "dirty": "no"}))
    assert answer(["gate", "HEAD", "--base", "HEAD~1"]) == 0
    assert missing_values(capsys.readouterr().err, "HEAD~1", 8, baseline[:10], 2) == []
    assert answer(["gate", "HEAD~2", "--base", "HEAD"]) == 2  # head is asked about as it is
    assert answer(["gate", "HEAD", "--base", "HEAD~5"]) == 2
    err = capsys.readouterr().err
    assert code_of(err) == "unknown-name"
    assert missing_values(err, "HEAD~5", revision(repository, "HEAD~5")[:10]) == []


@pytest.mark.parametrize(("words", "code", "values"), [
    (["--margin", "x%"], "bad-input", ["'x%'"]), (["--margin", "300%"], "bad-input", [3, 0, 1]),
    (["--alpha", "0"], "bad-input", [0, 0.2]), (["--metric", "mfu"], "bad-input", ["mfu", "step_time"]),
    (["--metric", "steptime"], "unknown-name", ["'steptime'"]),
    (["--across", "weather"], "unknown-name", ["--across weather"]),
    (["--format", "pdf"], "unknown-name", ["--format pdf"]),
])  # fmt: skip
def test_what_cannot_be_asked_is_said(
    store: Store, capsys: pytest.CaptureFixture[str], words: list[str], code: str, values: list[object]
) -> None:
    assert answer(["gate", *sides(store, 1.0, 2), *words]) == 2
    err = capsys.readouterr().err
    assert code_of(err) == code
    assert missing_values(err, *values) == []


@pytest.mark.parametrize("columns", ["40", "80", "120"])
def test_output_fits_its_width(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    words = sides(store, 1.1)
    assert answer(["gate", *words]) == 1
    check(capsys.readouterr().out, columns=int(columns))
    assert answer(["gate", *words, "--full"]) == 1
    check(capsys.readouterr().out, columns=int(columns), lines=100)


def test_run_without_samples_is_refused(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    timed, other = kept(store, 1, 1e8), kept(store, 2, 1e8, samples=())
    assert answer(["gate", other.id, "--base", timed.id]) == 2
    err = capsys.readouterr().err
    assert code_of(err) == "bad-input"
    assert missing_values(err, other.id, "step_time") == []


# Worktrees


def test_checkout_is_temporary(repository: Path) -> None:
    first = known_revision(repository, "HEAD~9")
    with checkout(repository / "inside", first) as folder:
        assert (folder / "slow").read_text() == "1.0"
        assert (folder.parent / "number").read_text() == "0"
        assert subject(folder, "HEAD") == "change 0"
        parent = folder.parent
    assert not parent.exists()
    assert _git(repository, "worktree", "list").count("\n") == 1
    with pytest.raises(RuntimeError), checkout(repository, first) as folder:
        raise RuntimeError
    assert not folder.exists()


def test_revisions_are_gits(repository: Path, tmp_path: Path) -> None:
    head, first = known_revision(repository, "main"), known_revision(repository, "HEAD~9")
    commits = between(repository, first, head)
    assert [subject(repository, commit) for commit in commits] == [f"change {at}" for at in range(1, 10)]
    with refused(BadInput, head[:10]):
        between(repository, head, head)
    with refused(BadInput, head[:10], first[:10]):
        between(repository, head, first)
    with refused(UnknownRevision, repository, "'topic'"):
        known_revision(repository, "topic")
    with refused(UnknownRevision, repository, "'--help'"):
        known_revision(repository, "--help")
    with refused(BadInput, tmp_path, ".git", "'main'"):
        known_revision(tmp_path, "main")
    (repository / "new").mkdir()
    with refused(BadInput, first[:10], "new"), checkout(repository / "new", first):
        pass


@pytest.fixture
def measured(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Instead of a training run: a record of what the folder's `inside/slow` says. Returns where it was asked for."""
    numbers, lot, folders = count(), Random(4), list[Path]()  # noqa: S311

    def run(folder: Path, target: list[str], into: Store) -> Run:
        folders.append(folder)
        slow = float((folder / "inside" / "slow").read_text())
        sha = _git(folder, "rev-parse", "HEAD").strip()
        about = Provenance(code={"sha": sha, "dirty": "no"})
        return kept(into, next(numbers), 1e8 * slow * exp(lot.gauss(0, 0.004)), provenance=about)

    monkeypatch.setattr("trainyard.run.revisions.in_revision.run_in", run)
    return folders


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot keep runs on a core")
def test_together_is_at_once_and_on_one_core(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    both, seen, numbers = Barrier(2, timeout=30), list[set[int]](), count()

    def run(folder: Path, target: list[str], into: Store) -> Run:
        both.wait()  # breaks where one waits for the other to end
        seen.append(os.sched_getaffinity(0))
        return kept(into, next(numbers), 1e8)

    monkeypatch.setattr("trainyard.run.revisions.in_revision.run_in", run)
    before = os.sched_getaffinity(0)
    assert len(run_pair([RevisionRun(tmp_path, ["job.toml"])] * 2, store, together=True)) == 2
    assert seen[0] == seen[1]
    assert len(seen[0]) == 1
    assert os.sched_getaffinity(0) == before
    monkeypatch.setattr("trainyard.run.revisions.in_revision.run_in", _fails)
    with pytest.raises(RuntimeError):
        run_pair([RevisionRun(tmp_path, ["job.toml"])] * 2, store, together=True)
    assert os.sched_getaffinity(0) == before


def _fails(folder: Path, target: list[str], into: Store) -> Run:
    raise RuntimeError("a crash")


def test_gate_run_interleaves_two_revisions(
    repository: Path, measured: list[Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job = tmp_path / "job.toml"
    shutil.copy(EXAMPLES / "tiny.toml", job)
    assert answer(["gate", "run", str(job), "--base", "HEAD~9"]) == 1
    printed = capsys.readouterr()
    assert "worse: step time" in printed.out
    assert "pair 7/20" in printed.err
    assert repository in measured, "without --head it is the folder as it is"
    assert answer(["gate", "run", str(job), "--base", "HEAD~9", "--head", "HEAD~8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["caveats"] == []
    assert answer(["gate", "run", str(job), "--base", "HEAD~9", "--pairs", "3"]) == 2
    err = capsys.readouterr().err
    assert code_of(err) == "bad-input"
    assert missing_values(err, 3, 7, 24) == []
    assert answer(["gate", "run", str(job), "--base", "gone"]) == 2
    err = capsys.readouterr().err
    assert code_of(err) == "unknown-revision"
    assert missing_values(err, "'gone'") == []
    assert _git(repository, "worktree", "list").count("\n") == 1


@pytest.mark.parametrize(("words", "code", "values"), [
    (["--metric", "speed"], "unknown-name", ["'speed'"]), (["--across", "foo"], "unknown-name", ["--across foo"]),
    (["--format", "foo"], "unknown-name", ["--format foo"]),
    (["--format", "asv", "--json"], "bad-input", ["--format", "--json"]),
    (["--together"], "bad-input", ["tiny.toml", 2, "--together"]),
])  # fmt: skip
def test_unanswerable_request_is_refused_before_any_run(
    repository: Path,
    measured: list[Path],
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: str,
    values: list[object],
) -> None:
    assert answer(["gate", "run", str(EXAMPLES / "tiny.toml"), "--base", "HEAD~1", *words]) == 2
    err = capsys.readouterr().err
    assert code_of(err) == code
    assert missing_values(err, *values) == []
    assert answer(["gate", "run", "absent.toml", "--base", "HEAD~1"]) == 2
    err = capsys.readouterr().err
    assert code_of(err) == "missing-file"
    assert missing_values(err, "absent.toml") == []
    assert measured == []


def test_a_terminated_gate_leaves_no_worktree(repository: Path) -> None:
    code = (
        "import os, signal, sys, time\nfrom pathlib import Path\n"
        "from trainyard.run.revisions.worktree import checkout\n"
        "with checkout(Path.cwd(), sys.argv[1]) as one, checkout(Path.cwd(), sys.argv[1]) as other:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, revision(repository, "HEAD~1")], check=False, timeout=50)
    assert done.returncode != 0
    assert _git(repository, "worktree", "list").count("\n") == 1


@pytest.mark.usefixtures("measured")
def test_bisect_finds_the_commit(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["gate", "bisect", "HEAD~9", "HEAD", "--", "python", "train.py"]) == 0
    printed = capsys.readouterr()
    culprit = known_revision(repository, "HEAD~3")
    assert f"{culprit[:10]} made it slower" in printed.out
    assert "change 6" in printed.out
    check(printed.out)
    assert answer(["gate", "bisect", "HEAD~9", "HEAD~5", "--json", "--", "python", "train.py"]) == 0
    document = read_document("bisect", capsys.readouterr().out)
    assert document["suspects"] == []
    assert set(document["subjects"]) == {step["commit"] for step in document["steps"]}


@pytest.mark.usefixtures("repository", "measured")
def test_self_check_reports_machine_noise(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["gate", "self-check", "--pairs", "8", "--", "python", "train.py"]) == 0
    printed = capsys.readouterr().out
    check(printed)
    assert "16 identical runs" in " ".join(printed.split())
    assert "not worse" in printed
    assert answer(["gate", "self-check", "--pairs", "2", "--metric", "mfu", "--", "python", "train.py"]) == 2
    err = capsys.readouterr().err
    assert code_of(err) == "bad-input"
    assert missing_values(err, "mfu", "step_time") == []
    assert answer(["gate", "self-check", "--pairs", "2", "--json", "--", "python", "train.py"]) == 0
    document = read_document("self-check", capsys.readouterr().out)
    assert document["runs"] == 4
    assert document["sentences"]


@pytest.mark.torch
def test_a_folders_own_code_is_what_runs(repository: Path, store: Store) -> None:
    (repository / "own.py").write_text("HERE = __file__\n")
    (repository / "train.py").write_text(
        "import own, torch\n"
        "p = torch.nn.Linear(4, 4)\n"
        "o = torch.optim.SGD(p.parameters())\n"
        "assert 'trainyard-' in own.HERE\n"
        "for _ in range(8):\n"
        "    p(torch.ones(2, 4)).sum().backward()\n"
        "    o.step()\n"
    )
    _git(repository, "add", ".")
    _git(repository, "commit", "-q", "-m", "a script")
    sha = known_revision(repository, "HEAD")
    with checkout(repository, sha) as folder:
        run = run_in(folder, [sys.executable, "train.py"], store)
        with refused(CommandFailed, folder, "absent.py"):
            run_in(folder, [sys.executable, "absent.py"], store)
    assert run.provenance.code == {"sha": sha, "dirty": "no"}


@pytest.mark.parametrize("name", ["examples/gate.yml", ".pre-commit-hooks.yaml"])
def test_what_is_there_to_copy_names_options_that_exist(name: str) -> None:
    from trainyard.cli.gate.run import command

    known = {option for parameter in command.params for option in parameter.opts}
    text = (Path(__file__).parents[3] / name).read_text()
    used = set(re.findall(r"(?<![\w-])--[a-z]+", text))
    assert used
    assert used <= known


def test_pytest_fixture_fails_skips_and_passes(repository: Path, tmp_path: Path) -> None:
    """In a pytest of its own, where the runs are made up."""
    (repository / "test_own.py").write_text(
        "import random\n"
        "from trainyard.job import Job, Recipe\n"
        "from trainyard.record import Run, Sample\n"
        "from trainyard.store.store import new_id, now\n"
        "def test_no_slower(perf_gate, monkeypatch):\n"
        "    def run_in(folder, what, store):\n"
        "        ns = int(float((folder / 'inside' / 'slow').read_text()) * random.gauss(1e8, 1e5))\n"
        "        sample = Sample(step=0, rank=0, repeat=0, wall_ns=ns, tokens=1, memory_bytes=1)\n"
        "        job = Job(name='j', recipe=Recipe(tokens_per_step=1))\n"
        "        return Run(id=new_id(), job=job, started=now(), state='complete', samples=(sample,))\n"
        "    monkeypatch.setattr('trainyard.run.revisions.in_revision.run_in', run_in)\n"
        "    perf_gate('python', 'train.py')\n"
    )

    def outcome(*words: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *words]
        return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False).stdout

    assert "1 skipped" in (printed := outcome())
    assert "--perf-base" in printed
    assert "1 passed" in outcome("--perf-base", "HEAD")
    assert "worse: step time +" in outcome("--perf-base", "HEAD~9")
