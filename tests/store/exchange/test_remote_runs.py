"""Pulling from a remote that is damaged or hostile: nothing comes that was not pushed, and the other runs do come."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from tests.refused import code_of, missing_values, refused
from tests.stored import JOB, JOB_TEXT, LEDGER, samples, stored
from trainyard.cli.main import answer, cli
from trainyard.errors import (
    BadFile,
    BadInput,
    DamagedFile,
    EnvironmentFailed,
    MissingFile,
    MissingLibrary,
    WrongRunState,
)
from trainyard.record import Run
from trainyard.store import digests, tags
from trainyard.store import run_folder as folders
from trainyard.store.exchange.push_pull import pull, push
from trainyard.store.exchange.remote_store import Remote
from trainyard.store.store import Store

pytest.importorskip("fsspec")
ID = "0000000a"


@pytest.fixture
def here(tmp_path: Path) -> Store:
    return Store(tmp_path / "here", say=_never)


@pytest.fixture
def there(tmp_path: Path) -> Store:
    return Store(tmp_path / "there", say=_never)


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


def _never(text: str) -> None:
    raise AssertionError(text)


def _with_trace(store: Store, id: str = ID) -> Run:
    run = Run(id=id, job=JOB, started="2025-01-01T00:00:00Z", trace=("traces/rank0.json.gz",))
    (store.begin(run, JOB_TEXT) / "traces" / "rank0.json.gz").write_bytes(b"a trace")
    (store.runs / id / "logs" / "rank0.out").write_text("step 1\n")
    return store.finish(msgspec.structs.replace(run, state="complete", samples=samples(), ledgers=(LEDGER,)))


def _pushed(store: Store, bucket: Path) -> Path:
    """The folder of a run that was pushed to `bucket`."""
    run = _with_trace(store)
    store.tag(run.id, "main")
    push(store.runs / run.id, Remote(str(bucket)))
    return bucket / "runs" / run.id


def _invoke(store: Store, *words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["runs", *map(str, words)], env={"TRAINYARD_STORE": str(store.root)})


def _refused(there: Store, bucket: Path, *values: object) -> None:
    """The run is refused by its path there, nothing of it stays, and nothing temporary is named."""
    with pytest.raises(BadInput) as caught:
        pull(there, Remote(str(bucket)), ID)
    assert caught.value.exit_code == 2
    assert missing_values(str(caught.value), *values) == []
    assert str(bucket / "runs" / ID) in str(caught.value)
    assert str(there.root) not in caught.value.message
    assert not there.runs.exists() or [*there.runs.iterdir()] == []


FILES = [
    "run.json", "job.toml", "samples/rank0.jsonl", "samples/rank1.jsonl", "ledgers.json", "traces/rank0.json.gz",
    "logs/rank0.out",
]  # fmt: skip


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["altered", "cut", "longer", "missing", "a link", "a pipe", "a folder"])
def test_every_file_of_a_run_is_held_to_its_digest(
    here: Store, there: Store, bucket: Path, name: str, damage: str, tmp_path: Path
) -> None:
    path = _pushed(here, bucket) / name
    data = path.read_bytes()
    if damage in ("altered", "cut", "longer"):
        path.write_bytes({"altered": bytes([data[0] ^ 1]) + data[1:], "cut": data[:-1], "longer": data + b"\n"}[damage])
    else:
        path.unlink()
    if damage == "a link":
        (tmp_path / "same").write_bytes(data)
        path.symlink_to(tmp_path / "same")
    elif damage == "a pipe":
        os.mkfifo(path)
    elif damage == "a folder":
        path.mkdir()
    _refused(there, bucket)


def test_the_run_folder_or_a_folder_in_it_may_not_be_a_link(
    here: Store, there: Store, bucket: Path, tmp_path: Path
) -> None:
    folder = _pushed(here, bucket)
    (folder / "traces").rename(tmp_path / "traces")
    (folder / "traces").symlink_to(tmp_path / "traces", target_is_directory=True)
    _refused(there, bucket, "link")
    (folder / "traces").unlink()
    (tmp_path / "traces").rename(folder / "traces")
    folder.rename(tmp_path / "run")
    folder.symlink_to(tmp_path / "run", target_is_directory=True)
    _refused(there, bucket, "link")


@pytest.mark.parametrize("present", [True, False])
def test_the_folder_of_all_runs_may_not_be_a_link(
    here: Store, there: Store, bucket: Path, tmp_path: Path, present: bool
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    if present:
        _pushed(here, bucket)
        (bucket / "runs").rename(outside / "runs")
    else:
        _with_trace(here)
        bucket.mkdir()
        (outside / "runs").mkdir()
    (bucket / "runs").symlink_to(outside / "runs", target_is_directory=True)
    before = sorted(outside.rglob("*"))
    with refused(BadFile, bucket / "runs"):
        push(here.runs / ID, Remote(str(bucket)))
    with refused(BadFile, bucket / "runs"):
        pull(there, Remote(str(bucket)), ID)
    with refused(BadFile, bucket / "runs"):
        Remote(str(bucket)).ids()
    assert sorted(outside.rglob("*")) == before


def test_a_pull_names_a_run_that_is_damaged_here(here: Store, there: Store, bucket: Path) -> None:
    _pushed(here, bucket)
    pull(there, Remote(str(bucket)), ID)
    (there.runs / ID / "ledgers.json").write_bytes(b"{")
    done = _invoke(there, "pull", "--from", bucket)
    assert done.exit_code == 2 or isinstance(done.exception, BadFile)
    with refused(BadFile, there.runs / ID, "ledgers.json", f"trainyard runs delete {ID}"):
        pull(there, Remote(str(bucket)), ID)


def test_a_push_does_not_follow_a_link(here: Store, bucket: Path, tmp_path: Path) -> None:
    run = _with_trace(here)
    (tmp_path / "outside").mkdir()
    (bucket / "runs").mkdir(parents=True)
    (bucket / "runs" / ID).symlink_to(tmp_path / "outside", target_is_directory=True)
    with refused(BadFile, bucket / "runs" / ID):
        push(here.runs / run.id, Remote(str(bucket)))
    assert [*(tmp_path / "outside").iterdir()] == []


def test_files_without_a_digest_stay_there(here: Store, there: Store, bucket: Path, tmp_path: Path) -> None:
    folder = _pushed(here, bucket)
    (folder / "traces" / "rank1.json.gz").write_bytes(b"added")
    (folder / "checkpoints").symlink_to(tmp_path, target_is_directory=True)
    pull(there, Remote(str(bucket)), ID)
    assert not (there.runs / ID / "traces" / "rank1.json.gz").exists()
    assert (there.runs / ID / "SHA256SUMS").read_bytes() == (folder / "SHA256SUMS").read_bytes()


def test_a_run_without_digests_is_refused_until_it_is_pushed_again(here: Store, there: Store, bucket: Path) -> None:
    """As an earlier version pushed it, or after the list was removed to hide a change."""
    folder = _pushed(here, bucket)
    (folder / "SHA256SUMS").unlink()
    with refused(MissingFile, folder, "SHA256SUMS") as caught:
        pull(there, Remote(str(bucket)), ID)
    assert f"trainyard runs push {ID}" in caught.value.next_step
    (folder / "samples" / "rank0.jsonl").write_bytes(b"")
    assert push(here.runs / ID, Remote(str(bucket))).files == 8
    pull(there, Remote(str(bucket)), ID)
    assert there.load(ID) == here.load(ID)


def test_a_run_of_an_earlier_version_is_pushed_with_digests(here: Store, there: Store, bucket: Path) -> None:
    run = _with_trace(here)
    (here.runs / ID / "SHA256SUMS").unlink()
    (here.runs / ID / "traces" / "rank0.json.gz").write_bytes(gzip.compress(b"{}"))
    push(here.runs / ID, Remote(str(bucket)))
    pull(there, Remote(str(bucket)), ID)
    assert there.load(ID) == run


LINE = "0" * 64 + "  {}\n"


@pytest.mark.parametrize(
    "name",
    [
        "../../evil", "traces/../../evil", "/etc/evil", "traces//evil", "./evil", "traces/.", "tags.json", "lock",
        "checkpoints/1/weights", ".hidden", "traces/.part", "a\\b", "a\x1b[2Jb", "a\u202eb", "a\0b", "x" * 300,
        "a/" * 20 + "b", "run.json/x", "run.json", "SHA256SUMS",
    ],
)  # fmt: skip
def test_strange_names_among_the_digests_are_refused(here: Store, there: Store, bucket: Path, name: str) -> None:
    folder = _pushed(here, bucket)
    with (folder / "SHA256SUMS").open("a") as file:
        file.write(LINE.format(name))
    _refused(there, bucket, "SHA256SUMS")


def test_absurd_sizes_and_counts_are_refused(
    here: Store, there: Store, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _pushed(here, bucket)
    monkeypatch.setattr("trainyard.store.exchange.check_fetched._MAX_FILES", 3)
    _refused(there, bucket, "7 files", "3")
    monkeypatch.undo()
    monkeypatch.setattr("trainyard.store.exchange.check_fetched.free_bytes", lambda _: 1000)
    with refused(BadFile, bucket / "runs" / ID, "1000 B"):
        pull(there, Remote(str(bucket)), ID)
    monkeypatch.undo()
    for name in ("run.json", "SHA256SUMS"):
        data = (folder / name).read_bytes()
        with (folder / name).open("r+b") as file:
            file.truncate(1 << 30)  # sparse
        _refused(there, bucket)
        (folder / name).write_bytes(data)
    pull(there, Remote(str(bucket)), ID)


def test_no_more_is_fetched_than_is_listed(
    here: Store, there: Store, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _pushed(here, bucket)
    remote = Remote(str(bucket))
    sizes = remote.sizes(ID)
    with (folder / "traces" / "rank0.json.gz").open("r+b") as file:
        file.truncate(1 << 30)
    monkeypatch.setattr(remote, "sizes", lambda _: sizes)  # it grew after it was listed
    with refused(DamagedFile, "rank0.json.gz", "7 bytes"):
        pull(there, remote, ID)


TAGS = [
    b"[]", b"{", b'{"../x": "2025-01-01"}', b'{"\xe2\x80\xaemain": "2025-01-01"}', b'{"main": "9999-12-31"}',
    b'{"main": "later"}', b'{"abcdef01": "2025-01-01"}', b" " * (2 << 20),
]  # fmt: skip


@pytest.mark.parametrize("data", TAGS, ids=range(len(TAGS)))
def test_bad_tags_are_refused_and_the_run_comes(here: Store, there: Store, bucket: Path, data: bytes) -> None:
    folder = _pushed(here, bucket)
    (folder / "tags.json").write_bytes(data)
    done = _invoke(there, "pull", "--from", bucket)
    assert isinstance(done.exception, BadInput)
    assert str(folder / "tags.json") in done.output
    assert [row.tags for row in there.rows()] == [()]
    again = _invoke(there, "pull", "--from", bucket, ID)  # naming a run reads the tags of all
    assert isinstance(again.exception, BadInput)
    assert push(here.runs / ID, Remote(str(bucket))).notes
    assert tags.read_tags(folder) == tags.read_tags(here.runs / ID)
    assert _invoke(there, "pull", "--from", bucket, "main").exit_code == 0
    assert [row.tags for row in there.rows()] == [("main",)]


# One run and the others


@pytest.mark.parametrize("json_too", [False, True])
def test_a_damaged_run_does_not_stop_the_others(here: Store, there: Store, bucket: Path, json_too: bool) -> None:
    for id in ("0000000a", "0000000b", "0000000c"):
        stored(here, id)
    assert _invoke(here, "push", "--to", bucket).exit_code == 0
    damaged = bucket / "runs" / "0000000b" / "ledgers.json"
    damaged.write_text("{")
    done = _invoke(there, "pull", "--from", bucket, *["--json"] * json_too)
    assert isinstance(done.exception, BadInput)
    assert done.exception.exit_code == 2
    assert {row.id for row in there.rows()} == {"0000000a", "0000000c"}
    assert str(damaged) in done.output
    assert ".pull-" not in done.output
    if json_too:
        printed = json.loads(done.stdout)
        assert [run["id"] for run in printed["runs"]] == ["0000000a", "0000000c"]
        assert [run["id"] for run in printed["refused"]] == ["0000000b"]


def test_a_damaged_run_is_not_pushed_and_the_others_are(here: Store, bucket: Path) -> None:
    for id in ("0000000a", "0000000b", "0000000c"):
        stored(here, id)
    shutil.rmtree(here.runs / "0000000b" / "samples")
    (here.runs / "0000000c" / "tags.json").write_text("{")
    done = _invoke(here, "push", "--to", bucket)
    assert isinstance(done.exception, BadInput)
    assert Remote(str(bucket)).ids() == ["0000000a"]
    assert str(here.runs / "0000000b") in done.output


def test_an_altered_trace_is_not_pushed_and_a_deleted_one_is_reported(here: Store, there: Store, bucket: Path) -> None:
    _with_trace(here)
    trace = here.runs / ID / "traces" / "rank0.json.gz"
    trace.write_bytes(b"another")
    with refused(DamagedFile, here.runs / ID, "traces/rank0.json.gz"):
        push(here.runs / ID, Remote(str(bucket)))
    trace.unlink()
    copied = push(here.runs / ID, Remote(str(bucket)))
    assert len(copied.notes) == 1
    assert "rank0.json.gz" in copied.notes[0]
    pull(there, Remote(str(bucket)), ID)
    assert there.load(ID).state == "complete"


def test_a_folder_in_the_way_is_named(here: Store, there: Store, bucket: Path) -> None:
    _pushed(here, bucket)
    (there.runs / ID).mkdir(parents=True)
    with refused(BadInput, there.runs / ID, "run.json"):
        pull(there, Remote(str(bucket)), ID)


def test_a_run_that_has_not_ended_there_is_refused(here: Store, there: Store) -> None:
    here.begin(Run(id=ID, job=JOB, started="2025-01-01T00:00:00Z"), JOB_TEXT)
    with refused(WrongRunState, here.runs / ID):
        pull(there, Remote(str(here.root)), ID)


def test_a_store_that_was_never_pushed_to_can_be_pulled_from(here: Store, there: Store) -> None:
    run = _with_trace(here)
    pull(there, Remote(str(here.root)), ID)
    assert there.load(ID) == run


# Commands on a damaged run


@pytest.fixture
def damaged(here: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    stored(here, "0000000a")
    stored(here, "0000000b")
    shutil.rmtree(here.runs / "0000000a" / "samples")
    monkeypatch.setenv("TRAINYARD_STORE", str(here.root))
    return here


@pytest.mark.parametrize(
    "words",
    [
        ["runs", "show", "0000000a"], ["runs", "show", "0000000a", "--json"], ["diff", "0000000a", "0000000b"],
        ["diff", "0000000b", "0000000a"], ["gate", "0000000a", "--base", "0000000b"],
        ["gate", "convergence", "0000000a", "--base", "0000000b"], ["report", "0000000a", "--out", "{out}/a.html"],
        ["report", "0000000a", "--out", "{out}/a.md"], ["run", "resume", "0000000a"],
    ],
)  # fmt: skip
def test_commands_report_a_damaged_run(
    damaged: Store, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer([word.format(out=tmp_path) for word in words]) == 2
    printed = capsys.readouterr()
    assert "damaged" in printed.err
    assert "rank0.jsonl" in printed.err
    if words[0] == "report":
        assert "damaged" in (tmp_path / words[-1].removeprefix("{out}/")).read_text()
    if "--json" in words:
        assert json.loads(printed.out)["state"] == "damaged"


def test_lists_show_a_damaged_run(damaged: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["runs", "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)["runs"]}
    assert [rows[id]["state"] for id in sorted(rows)] == ["damaged", "complete"]
    assert "rank0.jsonl" in rows["0000000a"]["damage"]


def test_history_passes_over_a_damaged_run(damaged: Store, capsys: pytest.CaptureFixture[str]) -> None:
    answer(["history", "tiny", "--json"])
    printed = capsys.readouterr()
    assert "0000000a" in printed.err
    assert "0000000a" not in printed.out


# Signatures


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Path]:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    folder = tmp_path / "keys"
    folder.mkdir()
    for name in ("ours", "theirs"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(folder / name)]
        subprocess.run(make, check=True)
    allowed = folder / "allowed"
    allowed.write_text(f'me@example.org,us@example.org namespaces="trainyard" {(folder / "ours.pub").read_text()}')
    return {"ours": folder / "ours", "theirs": folder / "theirs", "allowed": allowed}


def test_a_signed_run_is_pulled_and_its_signer_shown(
    here: Store, there: Store, bucket: Path, keys: dict[str, Path]
) -> None:
    run = _with_trace(here)
    assert _invoke(here, "push", "--to", bucket, "--sign", keys["ours"]).exit_code == 0
    for _ in range(2):  # also a run that is here already
        done = _invoke(there, "pull", "--from", bucket, "--verify", keys["allowed"], "--json")
        assert done.exit_code == 0
        assert json.loads(done.stdout)["runs"][0]["signer"] == "me@example.org"
    assert there.load(ID) == run
    shutil.rmtree(bucket)
    push(there.runs / ID, Remote(str(bucket)))  # the signature travels on
    pull(Store(here.root.parent / "third"), Remote(str(bucket)), ID, keys["allowed"])


def test_a_run_that_is_there_already_is_signed(here: Store, there: Store, bucket: Path, keys: dict[str, Path]) -> None:
    _pushed(here, bucket)
    with refused(BadFile, bucket / "runs" / ID, "--verify", "--sign KEY"):
        pull(there, Remote(str(bucket)), ID, keys["allowed"])
    assert push(here.runs / ID, Remote(str(bucket)), keys["ours"]).files == 0
    assert pull(there, Remote(str(bucket)), ID, keys["allowed"]).signer == "me@example.org"


def test_runs_that_are_there_are_signed_and_counted(here: Store, bucket: Path, keys: dict[str, Path]) -> None:
    _pushed(here, bucket)
    _with_trace(here, "0000000b")
    signed: list[list[bool]] = []
    for _ in range(2):
        done = _invoke(here, "push", "--to", bucket, "--sign", keys["ours"], "--json")
        assert done.exit_code == 0
        signed.append([run["signed"] for run in json.loads(done.stdout)["runs"]])
    assert signed == [[True, True], [False, False]]
    (bucket / "runs" / ID / "SHA256SUMS.sig").unlink()
    stderr = _invoke(here, "push", "--to", bucket, "--sign", keys["ours"]).stderr
    assert re.search(r"^0 of 2 runs .*\b1 signed", stderr, re.MULTILINE)


def _forged(folder: Path) -> None:
    """Everything consistent, but of another run."""
    path = folder / "run.json"
    path.write_text(path.read_text().replace('"tiny"', '"evil"'))
    (folder / "SHA256SUMS").write_bytes(digests.render(digests.compute(folder)))


def _signed_by_another(folder: Path) -> None:
    _forged(folder)
    key = folder.parents[2] / "keys" / "theirs"
    sums = folder / "SHA256SUMS"
    (folder / "SHA256SUMS.sig").unlink()
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-n", "trainyard", "-f", str(key), str(sums)], check=True)


def _signed_for_another_use(folder: Path) -> None:
    key = folder.parents[2] / "keys" / "ours"
    (folder / "SHA256SUMS.sig").unlink()
    sums = folder / "SHA256SUMS"
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-n", "git", "-f", str(key), str(sums)], check=True)


@pytest.mark.parametrize(
    "attack",
    [
        _forged,
        _signed_by_another,
        _signed_for_another_use,
        lambda folder: (folder / "SHA256SUMS.sig").unlink(),
        lambda folder: (folder / "SHA256SUMS.sig").write_bytes(b""),
        lambda folder: (folder / "SHA256SUMS.sig").write_bytes(os.urandom(1000)),
        lambda folder: (folder / "SHA256SUMS.sig").write_bytes(b"x" * (1 << 20)),
    ],
)
def test_a_run_that_its_signer_did_not_sign_is_refused(
    here: Store, there: Store, bucket: Path, keys: dict[str, Path], attack: Callable[[Path], object]
) -> None:
    _with_trace(here)
    push(here.runs / ID, Remote(str(bucket)), keys["ours"])
    attack(bucket / "runs" / ID)
    with pytest.raises(BadFile) as caught:
        pull(there, Remote(str(bucket)), ID, keys["allowed"])
    assert str(bucket) in caught.value.message
    assert not there.runs.exists()


def test_a_run_here_that_is_not_the_signed_one_is_refused(
    here: Store, there: Store, bucket: Path, keys: dict[str, Path]
) -> None:
    _with_trace(here)
    push(here.runs / ID, Remote(str(bucket)), keys["ours"])
    pull(there, Remote(str(bucket)), ID)
    samples = there.runs / ID / "samples" / "rank0.jsonl"
    samples.write_text(samples.read_text().replace("100", "101", 1))
    (there.runs / ID / "SHA256SUMS").write_bytes(digests.render(digests.compute(there.runs / ID)))
    with refused(DamagedFile, there.runs / ID, "samples/rank0.jsonl"):
        pull(there, Remote(str(bucket)), ID, keys["allowed"])


def test_a_resumed_run_loses_its_old_signature(here: Store, bucket: Path, keys: dict[str, Path]) -> None:
    run = _with_trace(here)
    (here.runs / ID / "SHA256SUMS.sig").write_bytes(b"of the digests before")
    here.finish(run)
    assert not (here.runs / ID / "SHA256SUMS.sig").exists()


def test_a_key_that_cannot_sign_is_reported(
    here: Store, bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_trace(here)
    (tmp_path / "key").write_text("not a key")
    with refused(BadInput, tmp_path / "key"):
        push(here.runs / ID, Remote(str(bucket)), tmp_path / "key")
    assert Remote(str(bucket)).ids() == []
    monkeypatch.setenv("PATH", str(tmp_path))
    with refused(MissingLibrary, "ssh-keygen"):
        push(here.runs / ID, Remote(str(bucket)), tmp_path / "key")


def test_a_run_whose_secrets_were_removed_is_the_same_run(here: Store, bucket: Path) -> None:
    there = _pushed(here, bucket)
    head = json.loads((there / "run.json").read_bytes())
    old = {**head, "digest": "0" * 64, "failure": "password=Zq7xw9Lm"}
    (there / "run.json").write_text(json.dumps(old))
    local = here.runs / ID / "run.json"
    local.write_text(json.dumps({**head, "failure": "password=***"}))
    assert push(here.runs / ID, Remote(str(bucket))).files == 0
    (there / "run.json").write_text(json.dumps({**old, "started": "2024-01-01T00:00:00Z"}))
    with refused(BadInput, ID):
        push(here.runs / ID, Remote(str(bucket)))


@pytest.mark.parametrize(
    ("error", "exit_code", "code"),
    [(EnvironmentFailed("the disk is full."), 4, "environment-failed"), (BadFile("/x/log: cannot."), 2, "bad-input")],
)
def test_a_run_that_fails_does_not_stop_the_others(
    here: Store,
    bucket: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    exit_code: int,
    code: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    runs = [stored(here, id) for id in ("0000000a", "0000000b", "0000000c")]
    redact_run = folders.redact_run

    def failing(folder: Path) -> None:
        if folder.name == runs[1].id:
            raise error
        redact_run(folder)

    monkeypatch.setattr(folders, "redact_run", failing)
    monkeypatch.setenv("TRAINYARD_STORE", str(here.root))
    assert answer(["runs", "push", "--to", str(bucket)]) == exit_code
    assert sorted(path.name for path in (bucket / "runs").iterdir()) == ["0000000a", "0000000c"]
    assert code_of(capfd.readouterr().err) == code
