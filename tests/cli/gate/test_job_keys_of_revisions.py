"""`gate run` and `gate bisect` over a revision of trainyard whose job files have other keys."""

from __future__ import annotations

import shutil
import subprocess
from math import exp
from pathlib import Path
from random import Random

import pytest

from tests.cli.gate.test_gate_commands import kept
from tests.refused import code_of, missing_values
from trainyard.cli.main import answer
from trainyard.record import SCHEMA
from trainyard.run.revisions.worktree import known_revision
from trainyard.store.store import Store

EXAMPLES = Path(__file__).parents[3] / "examples"
OLDER, NEWER = "tokens_per_step", "tokens_a_step"
FAKE = """import json, pathlib, sys
job = pathlib.Path(sys.argv[-1])
if REFUSED in job.read_text():
    print(f"error [bad-job]: {job} at $.recipe: unknown key {REFUSED!r}.", file=sys.stderr)
    print(f"       Did you mean {KNOWN!r}?", file=sys.stderr)
    raise SystemExit(2)
ids = pathlib.Path(IDS)
first, *others = ids.read_text().split()
ids.write_text(" ".join(others))
print(json.dumps({"id": first}))
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a trainyard of its own: the first commit refuses the key that the others read. Its `run` prints
    the ids of stored runs, one after the other."""
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path / "store"))
    store, lot, ids = Store(tmp_path / "store"), Random(3), tmp_path / "ids"  # noqa: S311
    ids.write_text(" ".join(kept(store, at, 1e8 * exp(lot.gauss(0, 0.004))).id for at in range(60)))
    here = tmp_path / "repository"
    main = here / "src" / "trainyard" / "cli" / "main.py"
    main.parent.mkdir(parents=True)
    for package in (main.parent, main.parent.parent):
        (package / "__init__.py").touch()
    shutil.copy(EXAMPLES / "tiny.toml", tmp_path / "job.toml")
    (tmp_path / "older.toml").write_text("# the same job, with the older keys\n")
    _git(here, "init", "-q", "-b", "main")
    for refused, known in ((OLDER, NEWER), (NEWER, OLDER)):
        main.write_text(f"REFUSED, KNOWN, IDS = {refused!r}, {known!r}, {str(ids)!r}\n{FAKE}")
        _git(here, "add", ".")
        _git(here, "commit", "-q", "-m", f"refuse {refused}")
    monkeypatch.chdir(here)
    return here


def _git(here: Path, *words: str) -> None:
    own = ("-c", "user.name=a test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *own, *words], cwd=here, check=True, capture_output=True)


@pytest.mark.parametrize("mode", ["run", "bisect"])
def test_refused_key_is_reported_with_its_revision(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    job = str(tmp_path / "job.toml")
    words = [job, "--base", "HEAD~1"] if mode == "run" else ["HEAD~1", "HEAD", job]
    assert answer(["gate", mode, *words]) == 2
    err = capsys.readouterr().err
    assert code_of(err) == "bad-job"
    older = known_revision(repository, "HEAD~1")
    assert missing_values(err, older[:10], job, "$.recipe", f"'{OLDER}'", f"'{NEWER}'", "--base-job") == []


@pytest.mark.usefixtures("repository")
def test_base_reads_its_own_job_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(tmp_path / "job.toml"), "--base", "HEAD~1"]
    assert answer(["gate", "run", *words, "--base-job", str(tmp_path / "older.toml")]) == 0
    assert "not worse" in capsys.readouterr().out
    assert answer(["gate", "run", *words, "--base-job", "absent.toml"]) == 2
    assert missing_values(capsys.readouterr().err, "--base-job absent.toml") == []
    script = ["gate", "run", "--base", "HEAD~1", "--base-job", str(tmp_path / "older.toml"), "--", "python", "x.py"]
    assert answer(script) == 2
    assert missing_values(capsys.readouterr().err, "--base-job") == []


def test_unreadable_run_of_a_revision_is_reported(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for record in (tmp_path / "store").rglob("run.json"):
        record.write_text(record.read_text().replace(SCHEMA, "trainyard/run/9"))
    assert answer(["gate", "run", str(tmp_path / "job.toml"), "--base", "HEAD", "--head", "HEAD"]) == 2
    err = capsys.readouterr().err
    assert code_of(err) == "bad-file"
    assert missing_values(err, known_revision(repository, "HEAD")[:10], "trainyard/run/9") == []
