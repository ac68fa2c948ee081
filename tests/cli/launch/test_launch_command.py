"""`trainyard launch` and its modes, on a real Slurm cluster and without one."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.cli import one_screen
from tests.cli.schema_check import valid
from tests.processes import until
from tests.refused import code_of
from tests.slurm_cluster import Cluster
from tests.tiny_job import TWO_REPLICAS
from trainyard import api
from trainyard.cli.main import answer

PYTHON = """#!/bin/sh
# A substitute for the Python of the nodes: `wait` in its folder's parent makes it wait.
printf '%s\\n' "$@" > "$TRAINYARD_STORE/words$SLURM_NODEID"
echo "node $SLURM_NODEID began"
if [ -e "$TRAINYARD_STORE/wait" ]; then
  trap 'exit 75' TERM
  while :; do sleep 0.2; done
fi
exit "$(cat "$TRAINYARD_STORE/code" 2>/dev/null || echo 0)"
"""

HOSTS = ("--host", "n1", "--host", "n2")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an empty store."""
    root = tmp_path / "store"
    root.mkdir()
    monkeypatch.setenv("TRAINYARD_STORE", str(root))
    return root


@pytest.fixture
def job(tmp_path: Path) -> str:
    """A job file of two ranks."""
    path = tmp_path / "job.toml"
    path.write_text('name = "two replicas"\n' + TWO_REPLICAS)
    return str(path)


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A program that the nodes run as their Python."""
    path = tmp_path / "python"
    path.write_text(PYTHON)
    path.chmod(0o755)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command."""
    capsys.readouterr()
    code = answer(["launch", *words])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.slurm
def test_launch_follows_the_job_to_its_end(
    cluster: Cluster, store: Path, job: str, python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, job, "--on", "slurm", "--nodes", "2", "--python", python, "--tag", "first", "--json")
    assert code == 0, err
    report = valid("launch", out)
    assert report["status"]["state"] == "ended"
    assert report["status"]["nodes"] == ["n1", "n2"]
    assert "node 0 began" in err
    id, folder = report["launch"]["id"], Path(report["launch"]["folder"])
    assert folder == store / "launches" / id
    assert (folder / "job.toml").read_text() == Path(job).read_text()
    words = [(store / f"words{node}").read_text().split("\n") for node in range(2)]
    assert words[0][:5] == ["-m", "trainyard.cli.launch.node_main", "--tag", "first", "--job"]
    assert [each[each.index("--node") + 1] for each in words] == ["0", "1"]
    assert words[0][words[0].index("--job-id") + 1] == id
    code, out, _ = run(capsys, "logs", id[:5], "--json")
    assert [log["lines"] for log in valid("launch-logs", out)["logs"]][:2] == [["node 0 began"], ["node 1 began"]]
    code, out, _ = run(capsys, "status", "--json")
    assert [row["id"] for row in valid("launches", out)["launches"]] == [id]
    for mode in (("status",), ("status", id), ("logs", id)):
        code, out, _ = run(capsys, *mode)
        assert code == 0
        one_screen.check(out)


@pytest.mark.slurm
def test_array_is_followed_and_has_logs_of_each_element(
    cluster: Cluster, store: Path, job: str, python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--on", "slurm", "--nodes", "1", "--array", "0-1", "--no-exclusive", "--python", python, "--json")
    code, out, err = run(capsys, job, *words)
    assert code == 0, err
    assert sorted(line for line in err.splitlines() if "began" in line) == ["0: node 0 began", "1: node 0 began"]
    id = valid("launch", out)["launch"]["id"]
    code, out, _ = run(capsys, "logs", id, "--node", "0", "--json")
    names = [Path(log["path"]).name for log in valid("launch-logs", out)["logs"]]
    assert (code, names) == (0, ["node0-0.log", "node0-1.log"])


@pytest.mark.slurm
def test_failed_job_ends_with_exit_code_4(
    cluster: Cluster, store: Path, job: str, python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (store / "code").write_text("3")
    code, out, err = run(capsys, job, "--on", "slurm", "--nodes", "2", "--python", python)
    assert code == 4
    assert "error [command-failed]" in err
    assert "3:0" in err
    one_screen.check(out)


@pytest.mark.slurm
@pytest.mark.parametrize(("option", "state"), [((), "cancelled"), (("--save",), "preempted")])
def test_detached_job_is_cancelled(
    cluster: Cluster, store: Path, job: str, python: str, capsys: pytest.CaptureFixture[str], option: tuple[str, ...],
    state: str,
) -> None:  # fmt: skip
    (store / "wait").touch()
    code, out, err = run(capsys, job, "--on", "slurm", "--nodes", "1", "--python", python, "--detach", "--json")
    assert code == 0, err
    id = valid("launch", out)["launch"]["id"]
    assert until((store / "words0").exists, 60)
    assert api.launch_status(id).status.state == "running"
    code, out, _ = run(capsys, "cancel", id, *option, "--json")
    assert code == 0
    assert until(lambda: api.launch_status(id).status.is_over, 60)
    assert api.launch_status(id).status.state == state


@pytest.mark.slurm
def test_refused_submission_leaves_no_launch(
    cluster: Cluster, store: Path, job: str, python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, job, "--on", "slurm", "--partition", "nowhere", "--json")
    assert code == 4
    assert valid("error", out)["code"] == "scheduler-failed"
    assert "sinfo" in err
    assert list((store / "launches").iterdir()) == []


def test_render_prints_exactly_the_submitted_files(store: Path, job: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "render", job, "--on", "slurm", "--nodes", "2", "--time-limit", "1d12h", "--json")
    rendered = valid("launch-files", out)
    assert code == 0
    assert (rendered["nodes"], rendered["ranks"]) == (2, 2)
    code, out, _ = run(capsys, "render", job, "--on", "slurm", "--nodes", "2", "--time-limit", "1d12h")
    assert rendered["files"] == {"job.sbatch": out}
    assert "#SBATCH --time=1-12:00:00\n" in out
    assert not (store / "launches").exists()


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (("slurm",), []),
        (("slurm", "--image", "x"), ["1800"]),
        (("slurm", "--gather", "90m"), ["5400"]),
        (("slurm", "--image", "x", "--gather", "9"), ["9"]),
        (("k8s", "--image", "x"), ["1800"]),
        (("k8s", "--image", "x", "--gather", "1h"), ["3600"]),
        (("ray",), []),
        (("ray", "--gather", "90m"), ["5400"]),
        (("ssh", *HOSTS), []),
        (("ssh", *HOSTS, "--gather", "90m"), ["5400"]),
    ],
)
def test_time_that_nodes_wait_for_each_other(
    store: Path, job: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], seconds: list[str]
) -> None:
    code, out, err = run(capsys, "render", job, "--nodes", "2", "--json", "--on", *words)
    assert code == 0, err
    text = "\n".join(valid("launch-files", out)["files"].values())
    assert re.findall(r"--gather-s[\s\\\"',]+(\d+)", text) == seconds


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--on", "nowhere"), "unknown-name"),
        (("--on", "local"), "bad-input"),
        (("--on", "slurm", "--nodes", "3"), "bad-input"),
        (("--on", "slurm", "--component", "2x"), "bad-input"),
        (("--on", "slurm", "--component", "2x2"), "bad-input"),
        (("--on", "slurm", "--component", "1x1,nodes=3"), "bad-input"),
        (("--on", "slurm", "--time-limit", "soon"), "bad-input"),
        (("--on", "slurm", "--partition", "a; rm -rf /"), "bad-input"),
        (("--on", "slurm", "--constraint", 'a" --uid=0'), "bad-input"),
        (("--on", "slurm", "--account", "$(id)"), "bad-input"),
        (("--on", "slurm", "--qos", "a\nb"), "bad-input"),
        (("--on", "slurm", "--array", "0-3 --uid=0"), "bad-input"),
        (("--on", "slurm", "--image", "x y"), "bad-input"),
        (("--on", "slurm", "--image", "x", "--mount", "/a,/b"), "bad-input"),
        (("--on", "slurm", "--env", "LD PRELOAD=x"), "bad-input"),
        (("--on", "slurm", "--env", "WANDB_API_KEY=0123456789"), "bad-input"),
        (("--on", "slurm", "--env", "PROXY=http://user:pass@proxy"), "bad-input"),
        (("--on", "slurm", "--env", "EMPTY"), "bad-input"),
    ],
)
def test_bad_option_is_refused(
    store: Path, job: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: str
) -> None:
    exit_code, out, _ = run(capsys, "render", job, *words, "--json")
    assert exit_code == 2
    assert json.loads(out)["code"] == code


def test_a_job_with_a_secret_is_refused(store: Path, job: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(job).write_text(Path(job).read_text() + 'data = "https://user:secret@host/data"\n')
    code, out, _ = run(capsys, job, "--on", "slurm", "--json")
    assert code == 2
    assert json.loads(out)["code"] in ("bad-job", "bad-input")
    assert not (store / "launches").exists()


def test_unwritable_store_has_next_step(store: Path, job: str, python: str, capsys: pytest.CaptureFixture[str]) -> None:
    (store / "launches").write_text("a file")
    code, out, _ = run(capsys, job, "--on", "slurm", "--python", sys.executable, "--json")
    error = json.loads(out)
    assert (code, error["code"]) == (4, "not-writable")
    assert "TRAINYARD_STORE" in error["next_step"]


def test_unknown_launch_is_refused(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("status", "logs", "cancel"):
        code, out, _ = run(capsys, mode, "abcd", "--json")
        assert (code, json.loads(out)["code"]) == (2, "unknown-name")
    code, out, _ = run(capsys, "status")
    assert (code, out) == (0, "")


def test_missing_hostfile_is_bad_input(
    store: Path, job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path / "absent.txt", tmp_path):
        code, _, err = run(capsys, job, "--on", "ssh", "--hostfile", str(path))
        assert code == 2
        assert code_of(err) in ("missing-file", "bad-file")
        assert str(path) in err
