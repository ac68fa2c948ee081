"""Secrets reach no file, page, export, message or remote store."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import trace_maker
from tests.redaction import BARE, TEXTS, places_of, secrets
from tests.refused import refused
from tests.stored import JOB, samples, stored
from trainyard import job_file
from trainyard.cli.main import answer
from trainyard.errors import BadFile, BadInput, BadJob
from trainyard.formats import regular_files, toml
from trainyard.job import SCRIPT
from trainyard.launch.supervisor import event_log, failure_report
from trainyard.launch.supervisor.event_log import EventLogWriter
from trainyard.launch.supervisor.failure_report import Failure
from trainyard.ledger import encode_hook
from trainyard.record import Incident, Provenance, Run
from trainyard.redact import redact_command, redact_json
from trainyard.run.record import provenance
from trainyard.store import run_folder as folders
from trainyard.store.exchange.push_pull import push
from trainyard.store.exchange.remote_store import Remote
from trainyard.store.index.postgres import PostgresBase
from trainyard.store.redact_run import redact_job
from trainyard.store.store import Store, new_id

SECRET = "Zq7~xw!9Lm/04.pR"  # noqa: S105
KEY_END = "-----END PRIVATE KEY-----"
REPORTS = (".html", ".md", ".csv", ".xlsx", ".json", ".pftrace")


def spoiled_trace(secret: str) -> dict:
    """A trace whose metadata, names and groups hold a secret."""
    login = f"https://me:{secret.replace('/', '%2F').replace('%', '%25')}@host/x"
    group = {"Process Group Name": f"token={secret}", "Process Group Description": f"mesh_token={secret}"}
    document = trace_maker.trace(
        device=[
            ("ncclDevKernel_AllReduce", 7, 100, 300, 10, group),
            (f"kernel password={secret}", 7, 300, 900, 12),
        ],
        host=[(f"load --password {secret}", trace_maker.MAIN, 5, 800, "user_annotation")],
        marks=[("1", 0, 1000), ("2", 1000, 2000)],
        rank=0,
        world=2,
        host_name=f"token={secret}",
        backend=f"password={secret}",
    )
    document |= {"args": ["train.py", "--api-key", secret], "env": {"HF_TOKEN": secret}, "traceName": login}
    document["deviceProperties"][0]["name"] = f"device password={secret}"
    return document


def reports(name: str, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for ending in REPORTS:
        if ending != ".xlsx" or _has("xlsxwriter"):
            assert answer(["report", name, "--out", str(folder / f"report{ending}")]) == 0


def _has(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


# Files


@settings(max_examples=10)
@given(secret=secrets(BARE), number=st.integers(0, len(TEXTS) - 1))
def test_a_stored_run_holds_no_secret(tmp_path_factory: pytest.TempPathFactory, secret: str, number: int) -> None:
    root = tmp_path_factory.mktemp("root")
    store, spoiled = Store(root / "store"), TEXTS[number](secret)
    command = " ".join(redact_command(["python", "train.py", "--hf-token", secret]))
    job = msgspec.structs.replace(JOB, workload=SCRIPT, model=None, sizes={"command": command})
    about = Provenance(environment={"NCCL_X": spoiled}, text=spoiled, host={"name": spoiled})
    incident = Incident(kind="worker_death", time="2025", attempt=0, summary=spoiled)
    run = Run(id=new_id(), job=job, started="2025-01-01T00:00:00.000+00:00", provenance=about)
    folder = store.begin(run, f"# {spoiled}\n".replace("\n", " "))
    for name in ("rank0.err", "launcher.log"):
        (folder / "logs" / name).write_text(f"first\n{spoiled}\nlast\n", "utf-8")
    EventLogWriter(folder, "rank0").fault("disk_full", spoiled)
    failure_report.write(folder, Failure(rank=0, pid=1, exit_code=1, when=0.0, last_words=spoiled))
    done = store.finish(
        msgspec.structs.replace(run, state="failed", samples=samples(), failure=spoiled, incidents=(incident,))
    )
    assert places_of(secret, root) == []
    assert store.load(done.id).digest == folders.digest(folder)
    log = (folder / "logs" / "rank0.err").read_text("utf-8")
    assert (log[:6], log[-5:]) == ("first\n", "last\n")


def test_logs_without_secrets_keep_their_bytes(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    run = Run(id=new_id(), job=JOB, started="2025-01-01T00:00:00.000+00:00")
    log = store.begin(run, "# a job\n") / "logs" / "rank0.out"
    log.write_bytes(b"step 1\r\n\xff\xfe tokens=4096\n\nno newline at the end")
    before = log.stat()
    store.finish(run)
    assert log.read_bytes() == b"step 1\r\n\xff\xfe tokens=4096\n\nno newline at the end"
    assert log.stat().st_ino == before.st_ino


def test_a_private_key_over_several_lines_leaves_a_log(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    run = Run(id=new_id(), job=JOB, started="2025-01-01T00:00:00.000+00:00")
    log = store.begin(run, "# a job\n") / "logs" / "rank0.out"
    key = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----\n"
    log.write_text(f"before\n{key}after\n")
    store.finish(run)
    text = log.read_text()
    assert SECRET not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")


def spoiled_by_an_earlier_version(store: Store) -> Run:
    """A whole run whose files hold a secret, under a digest that fits."""
    run = stored(store)
    folder = store.runs / run.id
    (folder / "SHA256SUMS").unlink()
    (folder / "traces" / "rank0.json.gz").write_bytes(gzip.compress(b"{}"))
    (folder / "job.toml").write_text(f"# train.py --password {SECRET}\nname = 'tiny'\n")
    (folder / "logs" / "rank0.err").write_text(f"token={SECRET}\n")
    head = msgspec.structs.replace(
        run, digest=folders.digest(folder), failure=f"password={SECRET}", samples=(), ledgers=()
    )
    data = {"schema": run.schema, "state": run.state, **msgspec.to_builtins(head, enc_hook=encode_hook)}
    (folder / "run.json").write_bytes(msgspec.json.encode(data))
    return run


def test_a_run_of_an_earlier_version_is_read_without_secrets(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    run = spoiled_by_an_earlier_version(store)
    assert store.load(run.id).failure == "password=***"


def test_a_push_sends_no_secret_and_a_fitting_digest(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    store = Store(tmp_path / "store", say=pytest.fail)
    run = spoiled_by_an_earlier_version(store)
    remote = Remote(str(tmp_path / "bucket"))
    assert push(store.runs / run.id, remote).files
    assert places_of(SECRET, tmp_path) == []
    assert not push(store.runs / run.id, remote).files
    Store(tmp_path / "bucket", say=pytest.fail).load(run.id)


def test_an_altered_run_stays_altered_when_secrets_leave_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", say=lambda _: None)
    run = spoiled_by_an_earlier_version(store)
    folder = store.runs / run.id
    (folder / "samples" / "rank0.jsonl").write_bytes(b"")
    folders.redact_run(folder)
    assert folders.read_head(folder).digest != folders.digest(folder)


# Traces


def test_no_report_of_a_trace_shows_a_secret(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace = trace_maker.write(tmp_path, spoiled_trace(SECRET))
    out = tmp_path / "out"
    reports(str(trace), out)
    assert len(list(out.iterdir())) >= len(REPORTS) - 1
    assert places_of(SECRET, out) == []
    for arguments in ([], ["--json"], ["--full"]):
        assert answer(["trace", str(trace), *arguments]) == 0
    assert answer(["trace", "what-if", str(trace), "--change", "network=2x", "--json"]) == 0
    shown = capfd.readouterr()
    assert SECRET not in shown.out + shown.err
    assert "***" in (out / "report.html").read_text("utf-8")


@pytest.mark.torch
def test_a_captured_trace_holds_no_secret(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from trainyard.run.local.capture import capture

    with capture(tmp_path, 0, 1, torch.device("cpu"), barrier=lambda: None) as profiler:
        torch.autograd._add_metadata_json("TORCH_X", json.dumps(f"Bearer {SECRET}"))
        for _ in range(3):
            with torch.profiler.record_function(f"open --password {SECRET}"):
                torch.ones(8).sum()
            torch.autograd._add_metadata_json("launch", json.dumps(["train.py", "--api-key", SECRET], indent=1))
            torch.autograd._add_metadata_json("environment", json.dumps({"WANDB_API_KEY": SECRET, "LR": 3}))
            profiler.step()
    assert places_of(SECRET, tmp_path) == []
    document = json.loads(gzip.decompress((tmp_path / "traces" / "rank0.json.gz").read_bytes()))
    assert document["launch"] == ["train.py", "--api-key", "***"]
    assert document["environment"] == {"WANDB_API_KEY": "***", "LR": 3}
    assert document["traceEvents"]


# The whole of a run

SCRIPT_TEXT = """
import sys, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(25):
    with torch.profiler.record_function(" ".join(sys.argv)):
        model(torch.randn(8, 8)).square().mean().backward()
    optimizer.step()
raise SystemExit(int(sys.argv[1]))
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("ends_with", [0, 3])
def test_a_script_with_secrets_leaves_none_behind(tmp_path: Path, ends_with: int) -> None:
    pytest.importorskip("torch")
    (tmp_path / "my_train.py").write_text(SCRIPT_TEXT)
    secret, encoded = SECRET, SECRET.replace("/", "%2F")
    command = [
        "env", f"WANDB_API_KEY={secret}", sys.executable, "my_train.py", str(ends_with), "--hf-token", secret,
        f"--db.password={secret}", "--url", f"https://me:{encoded}@host/path",
        "--config", json.dumps({"secret": secret}),
        "--header", f"Authorization: Bearer {secret}", "--lr", "3e-4", "--max-tokens", "4096",
    ]  # fmt: skip
    variables = {
        "TRAINYARD_STORE": str(tmp_path / "store"), "OMP_NUM_THREADS": "1", "TORCH_X": f"Bearer {secret}",
        "NCCL_OPTS": f"--password {secret}", "GLOO_PROXY": f"u:{secret}@proxy:80", "SLURM_JWT": secret,
        "NCCL_JSON": json.dumps({"api_key": secret}), "TRAINYARD_TOKEN": secret,
    }  # fmt: skip
    given = [sys.executable, "-m", "trainyard.cli.main", "run", "--tag", "spoiled", "--", *command]
    done = subprocess.run(
        given, capture_output=True, text=True, env={**os.environ, **variables}, check=False, cwd=tmp_path
    )
    assert done.returncode == (4 if ends_with else 0), done.stderr
    assert secret not in done.stdout + done.stderr
    store = Store(tmp_path / "store")
    run = store.load("spoiled")
    shown = str(run.job.sizes["command"])
    assert "--lr 3e-4 --max-tokens 4096" in shown
    assert "WANDB_API_KEY=***" in shown
    assert "https://***@host/path" in shown
    assert run.provenance.environment["NCCL_OPTS"] == "--password ***"
    assert "TRAINYARD_TOKEN" not in run.provenance.environment
    assert places_of(secret, tmp_path / "store") == []
    out = tmp_path / "out"
    environment = {**os.environ, "TRAINYARD_STORE": str(store.root)}
    out.mkdir()
    for ending in REPORTS[: 2 if ends_with else None]:
        if ending != ".xlsx" or _has("xlsxwriter"):
            report = [sys.executable, "-m", "trainyard.cli.main", "report", "spoiled", "--out", str(out / f"r{ending}")]
            subprocess.run(report, env=environment, check=True, capture_output=True)
    assert places_of(secret, out) == []
    if _has("fsspec"):
        push(store.find("spoiled"), Remote(str(tmp_path / "bucket")))
        assert places_of(secret, tmp_path / "bucket") == []


# Messages


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("TORCH_X", f"Bearer {SECRET}", "Bearer ***"),
        ("NCCL_OPTS", f"--password {SECRET}", "--password ***"),
        ("NCCL_JSON", json.dumps({"a": 1, "api_key": SECRET}), '{"a": 1, "api_key": "***"}'),
        ("GLOO_PROXY", f"u:{SECRET}@proxy:80", "***@proxy:80"),
        ("TORCH_HUB", "hf_0123456789abcdefghij", "hf_***"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "expandable_segments:True"),
        ("NCCL_KEY_DIM", "64", "64"),
        ("TORCH_TOKENS_PER_STEP", "4096", "4096"),
        ("SLURM_JWT", SECRET, None),
        ("TORCH_API_KEY", SECRET, None),
    ],
)
def test_the_environment_is_kept_without_secrets(name: str, value: str, kept: str | None) -> None:
    assert provenance.environment({name: value}).get(name) == kept


def test_last_words_hold_no_secret(tmp_path: Path) -> None:
    log = tmp_path / "rank0.err"
    key = "\n".join(["-----BEGIN PRIVATE KEY-----", *[SECRET] * 12, "-----END PRIVATE KEY-----"])
    log.write_text(f"{key}\nurllib3: https://me:{SECRET.replace('/', '%2F')}@host refused\n")
    words = failure_report.tail(log)
    assert SECRET[:4] not in words
    assert "@host refused" in words


def test_a_diary_holds_no_secret(tmp_path: Path) -> None:
    EventLogWriter(tmp_path, "rank0").fault("disk_full", f"s3 said: token={SECRET}")
    assert places_of(SECRET, tmp_path) == []
    assert event_log.read(tmp_path)[0].message == "s3 said: token=***"


@pytest.mark.parametrize(
    "url", [f"mysql://me:{SECRET}@host/db", "postgresql://me:Zq7#secret@host/db", "postgresql://me:[Zq7/x@host/db"]
)
def test_a_refused_index_shows_no_password(url: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as error:
        PostgresBase(url, tmp_path)
    assert "Zq7" not in str(error.value)
    assert "host/db" in str(error.value)


def test_an_index_with_an_at_sign_in_its_query_is_taken(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    for url in (
        "postgresql://host:5432/db?user=a@b",
        "postgresql:///db?host=/tmp/a@b",
        "postgresql://me:a%2Fb@host/db",
    ):
        PostgresBase(url, tmp_path)


@pytest.mark.parametrize("url", [f"nosuch://key:{SECRET}@bucket/x", f"memory://key:{SECRET}@bucket/x"])
def test_a_remote_store_shows_no_password(url: str) -> None:
    pytest.importorskip("fsspec")
    if url.startswith("memory"):
        assert Remote(url).url == "memory://***@bucket/x"
        return
    with pytest.raises(BadInput) as error:
        Remote(url)
    assert SECRET not in str(error.value)


def test_an_error_on_the_terminal_shows_no_secret(capfd: pytest.CaptureFixture[str]) -> None:
    assert answer(["trace", f"/nowhere/https://me:{SECRET.replace('/', '%2F')}@host/trace.json"]) == 2
    shown = capfd.readouterr().err
    assert SECRET[:6] not in shown
    assert "host/trace.json" in shown


# Runs of earlier versions


def test_a_push_sends_no_old_trace_ledger_or_sample_with_secrets(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    store = Store(tmp_path / "store", say=pytest.fail)
    folder = store.runs / spoiled_by_an_earlier_version(store).id
    trace = json.dumps({"traceEvents": [], "env": {"HF_TOKEN": SECRET}}).encode()
    (folder / "traces" / "rank0.json.gz").write_bytes(gzip.compress(trace))
    (folder / "traces" / "rank1.json").write_bytes(trace)
    for path in (folder / "samples" / "rank0.jsonl", folder / "ledgers.json"):
        path.write_bytes(path.read_bytes().replace(b"{", f'{{"password": "{SECRET}", '.encode(), 1))
    head = (folder / "run.json").read_text()
    old = json.loads(head)["digest"]
    (folder / "run.json").write_text(head.replace(old, folders.digest(folder)))
    push(folder, Remote(str(tmp_path / "bucket")))
    assert places_of(SECRET, tmp_path) == []
    there = tmp_path / "bucket" / "runs" / folder.name / "traces"
    for data in (gzip.decompress((there / "rank0.json.gz").read_bytes()), (there / "rank1.json").read_bytes()):
        assert json.loads(data) == {"traceEvents": [], "env": {"HF_TOKEN": "***"}}


def test_a_damaged_old_trace_is_not_pushed(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", say=pytest.fail)
    folder = store.runs / spoiled_by_an_earlier_version(store).id
    path = folder / "traces" / "rank0.json.gz"
    for data in (b"a trace", gzip.compress(b"{}" * 99)[:-9]):
        path.write_bytes(data)
        with refused(BadFile, path):
            folders.redact_run(folder)


def test_an_unreadable_log_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store", say=pytest.fail)
    folder = store.runs / spoiled_by_an_earlier_version(store).id

    def opener(path: str, flags: int) -> int:
        if str(path).endswith("rank0.err"):
            raise PermissionError(13, "Permission denied")
        return os.open(path, flags)

    monkeypatch.setattr(regular_files, "_open_without_blocking", opener)
    with refused(BadFile, folder / "logs" / "rank0.err"):
        folders.redact_run(folder)


# Job files


def test_a_job_keeps_its_values_and_loses_secrets_in_comments() -> None:
    values = 'pass = 3\ndataset = "# token=3 is not # a comment"  '
    blocks = f"""s = '''a # b''''\nm = \"\"\"x "" # y\\\"\"\"\"\"\n{values}"""
    text = f"# --token \\\n# x\n# --token {SECRET}\n{blocks}# password={SECRET}\n# {KEY_END}\nend = 1\n"
    assert SECRET not in (shown := redact_job(text.replace("token=3", "tokens=3")))
    assert toml.loads(shown) == toml.loads(text.replace("token=3", "tokens=3"))


def test_a_secret_in_an_old_job_is_hidden() -> None:
    assert redact_job('text = "/data/token=abc1"\n') == 'text = "/data/token=***"\n'


def test_a_job_with_a_secret_in_a_value_is_refused() -> None:
    job_file.check_secrets("pass = 3\n[sizes]\ndataset = '/data/tokens=3'\n", "job.toml")
    with refused(BadJob, "job.toml", "$.sizes.dataset", "$.list[1].api_key"):
        job_file.check_secrets(
            f"[sizes]\ndataset = '/data/token=abc'\n[[list]]\n[[list]]\napi_key = '{SECRET}'\n", "job.toml"
        )


@pytest.mark.torch
def test_a_job_with_a_secret_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    text = (Path(__file__).parents[2] / "examples" / "tiny-one.toml").read_text("utf-8")
    (tmp_path / "job.toml").write_text(text.replace("name = ", f"name = 'token={SECRET}' # ", 1), "utf-8")
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path / "store"))
    assert answer(["run", str(tmp_path / "job.toml")]) == 2
    assert not (tmp_path / "store" / "runs").exists()


def test_a_number_in_a_record_stays_a_number() -> None:
    data = b'{"token": 3, "password": {"a": true, "b": null, "c": "x1"}}'
    assert redact_json(data, keep_numbers=True) == data.replace(b"x1", b"***")
