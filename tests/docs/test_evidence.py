"""`make device-evidence` on a machine without a device."""

import gzip
import json
import math
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from benchmarks import collect, dense, evidence, scrub, synthetic, trim
from benchmarks.device_hour import compare_numerics, dense_jobs, faults, numerics, run_part, workload_jobs
from tests.hangs import nccl_job
from tests.refused import missing_values, refused
from trainyard import job_file, plugins
from trainyard.errors import BadInput, BadJob
from trainyard.hangs.find_culprit import find_culprit
from trainyard.hangs.load_records import load_records
from trainyard.numerics.parity_trial import Trial
from trainyard.predict.inputs import cases
from trainyard.predict.memory import native_memory
from trainyard.run.chaos import fault_plan, score_recovery
from trainyard.store import run_folder as folders
from trainyard.trace.measure import measure, read
from trainyard.train.rules import memory_rules, trainable
from trainyard.train.step.outcome import Outcome

H100, H200 = 80_000_000_000, 150_000_000_000


@pytest.fixture
def full_trace(tmp_path):
    path = tmp_path / "full.json"
    synthetic.write(path)
    return path


@pytest.fixture
def session(tmp_path):
    (tmp_path / "place").mkdir()
    return collect.Session(tmp_path / "place", tmp_path / "store")


# Sizes


@pytest.mark.parametrize("size", dense.SIZES, ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_every_size_is_a_trainable_job(size, ranks):
    for variant in dense_jobs.VARIANTS:
        wanted = job_file.parse(dense.job_text(size, ranks, variant), "evidence")
        trainable.check(wanted)
        assert wanted.layout.ranks == ranks
        assert (wanted.accumulate, wanted.recipe.dtype, wanted.recipe.compile) == (2, variant.dtype, variant.compiled)


def test_sizes_are_in_descending_order():
    state = [dense.memory_of(job_file.parse(dense.job_text(size, 1), "evidence")).state for size in dense.SIZES]
    assert state == sorted(state, reverse=True)


def test_memory_of_one_size():
    wanted = job_file.parse(dense.job_text(dense.Size(2, 512), 1), "evidence")
    attention, gated = 512 * 512 * 2 + 2 * 512 * 128, 3 * 512 * 1792
    parameters = 2 * (attention + gated) + 2 * 256 * 512 + 5 * 512
    need = dense.memory_of(wanted)
    assert need == (16 * parameters, 16 * parameters // 2, 4096 * 512 * (4 + 160))
    assert str(need).endswith(f"= {dense.show_size(sum(need))}")
    sharded = dense.memory_of(job_file.parse(dense.job_text(dense.Size(2, 512), 8), "evidence"))
    assert sharded == (2 * parameters, *need[1:])


@pytest.mark.parametrize(
    ("name", "memory", "ranks", "largest"),
    [("NVIDIA H200", H200, 1, (32, 4096)), ("NVIDIA H200", H200, 8, (32, 4096)), ("unheard of", 16 * 2**30, 1, None)],
)
def test_largest_job_that_fits_memory_and_time_comes_first(name, memory, ranks, largest):
    jobs = list(dense.fitting(ranks, memory, dense.peak_of(name), 190.0))
    sizes = [(job.model.layers, job.model.hidden_size) for job, _ in jobs]
    assert sizes == [size for size in dense.SIZES if size in sizes]
    assert largest is None or sizes[0] == largest
    for job, arithmetic in jobs:
        assert sum(dense.memory_of(job)) <= 0.9 * memory
        assert re.search(r"state .* = .* of 90% of .*, about \d+ s", arithmetic)


def test_variant_limits_the_width():
    jobs = list(dense.fitting(1, H200, 1e15, math.inf, dense.Variant(width=2048)))
    assert {job.decoder.hidden_size for job, _ in jobs} == {2048, 1024, 512}


def test_every_dense_variant_has_a_job_for_80_gb():
    for variant in dense_jobs.VARIANTS:
        job, _ = next(dense.fitting(1, H100, dense.peak_of("NVIDIA H100 80GB HBM3"), 300.0, variant))
        predicted = float(native_memory.peak(cases.of_jobs([job]), first=True).total[0])
        assert job.decoder.hidden_size == variant.width
        assert predicted < dense.USABLE * H100


# The jobs of the other parts


JOB_FILES = [*(workload_jobs.JOBS / f"{name}.toml" for name in workload_jobs.NAMES), faults.JOB]


def test_every_job_file_is_used():
    assert sorted(workload_jobs.JOBS.glob("*.toml")) == sorted(JOB_FILES)


@pytest.mark.parametrize("path", JOB_FILES, ids=lambda path: path.stem)
def test_job_files_are_trainable_in_80_gb(path):
    wanted = job_file.load(path)
    workload = plugins.load("workloads", wanted.workload)
    workload.expect(wanted)
    memory_rules.check(wanted, workload.weights(wanted), round(dense.USABLE * H100), "H100", shared=False)
    if wanted.workload in ("transformer", "diffusion"):
        assert float(native_memory.peak(cases.of_jobs([wanted]), first=True).total[0]) < dense.USABLE * H100


def test_memory_bound_refuses_an_uncut_model():
    wanted = job_file.load(workload_jobs.JOBS / "flux-cut.toml")
    uncut = replace(wanted, sizes={**wanted.sizes, "double": 19, "single": 38})
    weights = plugins.load("workloads", uncut.workload).weights(uncut)
    with refused(BadJob, "H100"):
        memory_rules.check(uncut, weights, round(dense.USABLE * H100), "H100", shared=False)


@pytest.mark.parametrize("kind", faults.KINDS)
def test_faults_can_be_injected_into_their_job(kind):
    fault_plan.parse(faults.plan_text(kind), kind).check(job_file.load(faults.JOB))


@pytest.mark.parametrize("fault", ["none", "device_stuck"])
def test_expected_verdicts_are_those_on_one_simulated_rank(fault, tmp_path):
    job = nccl_job.Job(1, [(0,)], [nccl_job.Slot("all_reduce", 0, 64)], fault, 0, 2, 0)
    (tmp_path / "nccl_trace_rank_0").write_bytes(nccl_job.encode(nccl_job.dumps_of(job)[0], "pickle"))
    analysis = find_culprit(load_records([tmp_path]).records)
    assert (analysis.kind, analysis.operation) == faults.EXPECTED[fault]


def test_nccl_process_without_a_record_fails(session, monkeypatch):
    monkeypatch.setattr(session, "call", lambda command, limit: subprocess.CompletedProcess(command, 3, "", "no NCCL"))
    verdict = faults.flight_record(session, "watchdog")
    assert not verdict.passed
    assert "exit code 3" in str(verdict)
    assert (session.folder / "nccl-watchdog.txt").read_text("utf-8") == "no NCCL"


@pytest.mark.parametrize(
    ("changes", "passed"),
    [({}, True), ({"losses": "different"}, False), ({"outcome": "stuck"}, False), ({"correctly_blamed": False}, False)],
)
def test_recovery_passes_if_culprit_outcome_and_losses_are_right(session, monkeypatch, changes, passed):
    score = score_recovery.FaultScore(
        kind="stop", step=12, blamed="hang", correctly_blamed=True, outcome="recovered", losses="identical"
    )
    document = {"chaos": {"faults": [msgspec.to_builtins(replace(score, **changes))]}}
    output = msgspec.json.encode(document).decode()
    monkeypatch.setattr(session, "trainyard", lambda *args, limit: subprocess.CompletedProcess(args, 0, output, ""))
    assert faults.recovery(session, "stop", "calm").passed is passed


@pytest.mark.parametrize("name", compare_numerics.JOBS)
def test_numerics_jobs_are_trainable(name):
    for dtype in compare_numerics.DTYPES:
        wanted = compare_numerics.job(name, dtype)
        plugins.load("workloads", wanted.workload).expect(wanted)
        assert wanted.accumulate == 2


def test_numerics_compare_the_device_with_jittered_replicas_on_the_cpu():
    exact = [Outcome(2.0, 1.0)] * compare_numerics.STEPS
    calls = []

    def train(job, steps, replicas, vendor):
        calls.append((vendor, bool(replicas)))
        moved = [Outcome(step.loss * (1 + 1e-6), step.grad_norm) for step in exact]
        far = [Outcome(step.loss * 1.01, step.grad_norm) for step in exact]
        if vendor == "cpu":
            return Trial(exact, 0.0, [moved] * replicas)
        return Trial(moved if job.recipe.dtype == "float32" else far, 0.0)

    results = list(compare_numerics.compare_sides("dense", "nvidia", train))
    assert [result.verdict for result in results] == ["equal", "different"]
    assert calls == [("nvidia", False), ("cpu", True)] * 2
    assert "1.0e-02" in numerics.row(results[1])


def test_slow_devices_get_smaller_jobs():
    fast, slow = (list(dense.fitting(1, H200, peak, 120.0)) for peak in (1e15, 1e13))
    assert len(slow) < len(fast)
    assert not list(dense.fitting(1, 10**8, 1e15, math.inf))


# Trimming


def test_trimmed_trace_equals_its_last_step(full_trace, tmp_path):
    (before,) = measure(read([full_trace])).ranks
    trimmed = trim.trim(full_trace, 10**6)
    assert trimmed.same
    path = tmp_path / "trimmed.json.gz"
    path.write_bytes(trimmed.data)
    measured = measure(read([path]))
    (rank,) = measured.ranks
    assert not measured.mean.scope.partial
    assert measured.mean.scope.steps == (str(synthetic.STEPS - 1),)
    assert rank.ledgers[-1].entries == before.ledgers[-1].entries
    assert measured.mean.wall_ns == before.ledgers[-1].wall_ns == sum(entry.ns for entry in measured.mean.entries)
    assert len(trimmed.data) < len(gzip.compress(full_trace.read_bytes())) / 2


@pytest.mark.parametrize("name", ["a100_ddp_resnet.json.gz", "mi300_resnet_ac.json.gz"])
def test_public_traces_trim_to_the_same_ledger(public_trace, name):
    trimmed = trim.trim(public_trace(name), 1_500_000)
    assert trimmed.same


def test_trimming_drops_cpu_ops_to_meet_the_limit(full_trace):
    room = len(trim.trim(full_trace, 10**9).data) - 1
    small = trim.trim(full_trace, room)
    assert len(small.data) <= room
    categories = {event.get("cat") for event in json.loads(gzip.decompress(small.data))["traceEvents"]}
    assert "kernel" in categories
    assert "cpu_op" not in categories
    with refused(BadInput, full_trace.name, "1,000"):
        trim.trim(full_trace, 1000)


def test_trimming_keeps_exact_timestamps_and_drops_host_names(full_trace, tmp_path):
    document = json.loads(full_trace.read_text("utf-8"))
    document |= {"host_name": "node17", "traceName": "/home/someone/x.json", "baseTimeNanoseconds": 1_700_000_000_123}
    document["deviceProperties"][0]["uuid"] = "GPU-1234"
    text = json.dumps(document)
    stamp = next(event["ts"] for event in reversed(document["traceEvents"]) if event.get("cat") == "kernel")
    assert f'"ts": {stamp},' in text
    exact = f"{int(stamp) + 2**60 // 10**6}.{123:03d}"
    assert float(exact) != int(exact.replace(".", "")) / 1000 or len(exact) > 15
    (tmp_path / "odd.json").write_text(text, "utf-8")
    trimmed = gzip.decompress(trim.trim(tmp_path / "odd.json", 10**6).data).decode()
    assert f'"ts":{stamp}' in trimmed
    assert not re.search("node17|someone|traceName|GPU-1234|ac2g", trimmed)


# What must not be published


def test_hosts_secrets_and_folders_are_scrubbed():
    given = {"HOME": "/home/ada", "HF_TOKEN": "hf_abcdefgh123", "A_KEY": "1", "HOSTNAME": "node17.lab.example"}
    hidden = scrub.private(given, host="node17.lab.example")
    assert scrub.private({"PWD": "/home/ada/x", "DB_PWD": "12345678", "JWT": "abcdefgh"}, host="localhost") == {
        "12345678": "SECRET",
        "abcdefgh": "SECRET",
    }
    cleaned = scrub.clean(
        "node17 and node17.lab.example, hf_abcdefgh123; /home/ada/x/y.py:3 node170 https://a.b/c/d", hidden
    )
    assert cleaned == "HOST and HOST, SECRET; PATH/y.py:3 node170 https://a.b/c/d"
    assert scrub.clean('{"a": "compute/matmul", "r": "1.5 TFLOP/s", "k": 1}', hidden) == (
        '{"a": "compute/matmul", "r": "1.5 TFLOP/s", "k": 1}'
    )


def test_leaks_are_found_in_plain_and_gzipped_files(tmp_path):
    hidden = scrub.private({"HF_TOKEN": "hf_abcdefgh123"}, host="node17")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json.gz").write_bytes(gzip.compress(b'{"x": "node17"}'))
    (tmp_path / "b.txt").write_text("token=hf_abcdefgh123 node170", "utf-8")
    assert list(scrub.leaks(tmp_path, hidden)) == ["b.txt: SECRET", "in/a.json.gz: HOST"]


# No accelerator


def fake_torch(folder, text):
    (folder / "torch.py").write_text(text, "utf-8")
    return folder


LYING = """
from types import SimpleNamespace as Space
__version__ = "9.9"
cuda = Space(device_count=lambda: {count}, get_device_properties=lambda i: Space(name="Pretend 1", total_memory=7 - i))
"""


@pytest.mark.parametrize(
    ("text", "names", "why"),
    [
        (LYING.format(count=2), ("Pretend 1", "Pretend 1"), ""),
        (LYING.format(count=0), (), "torch 9.9 sees none"),
        ("raise ImportError('libcudart.so.13: cannot open')", (), "torch does not work: ImportError: libcudart"),
        ("import os; os._exit(3)", (), "torch does not work: exit code 3"),
    ],
)
def test_accelerators_that_torch_reports(tmp_path, monkeypatch, text, names, why):
    monkeypatch.setenv("PYTHONPATH", str(fake_torch(tmp_path, text)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(evidence, "find_spec", lambda name: name)
    accelerators = evidence.accelerators()
    assert accelerators.names == names
    assert accelerators.memory == (6 if names else 0)
    assert why in accelerators.why


@pytest.mark.parametrize("part", ["0", "7", "dense"])
def test_unknown_part_is_refused(part, capsys):
    assert evidence.main(part) == 2
    assert missing_values(capsys.readouterr().err, part, "1 tests", "6 faults") == []


def test_every_part_has_a_runner_and_all_fit_in_the_limit():
    assert list(run_part.RUNS) == list(evidence.PARTS.values())
    assert sum(part.max_bytes for part in run_part.RUNS.values()) <= collect.LIMIT


def test_all_parts_run_in_order_whichever_fail(tmp_path):
    script = tmp_path / "part.py"
    script.write_text("import sys\nopen(sys.argv[1], 'a').write(sys.argv[2])\nsys.exit(sys.argv[2] in '23' and 5)\n")
    assert evidence.run_all((sys.executable, str(script), str(tmp_path / "ran"))) == 5
    assert (tmp_path / "ran").read_text() == "123456"


def test_no_accelerator_is_reported_and_succeeds(monkeypatch, capsys):
    monkeypatch.setattr(evidence, "find_spec", lambda name: None)
    assert evidence.main() == 0
    assert capsys.readouterr().out == "There is no accelerator here (torch is not installed): nothing to show.\n"


def test_needs_only_the_standard_library_to_start(root):
    script = "import sys; sys.modules.update(dict.fromkeys(['msgspec', 'click', 'numpy', 'torch', 'pytest'])); "
    script += "import benchmarks.evidence as e; e.accelerators = lambda: e.Devices((), 0, 'none'); sys.exit(e.main())"
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_missing_library_is_named(monkeypatch, capsys):
    monkeypatch.setattr(evidence, "accelerators", lambda: evidence.Devices(("Pretend 1",), 7))
    monkeypatch.setattr(evidence, "find_spec", lambda name: None if name == "msgspec" else name)
    assert evidence.main() == 4
    assert missing_values(capsys.readouterr().err, "msgspec", "make carry") == []


# With one, pretended


def test_pytest_without_a_passed_test_fails(session):
    assert not session.tests("tests/golden/test_golden.py")  # none of them is a device test: exit code 5
    assert "deselected" in (session.folder / "tests.txt").read_text("utf-8")


def test_smaller_job_starts_only_after_out_of_memory(session, monkeypatch):
    jobs = list(dense.fitting(1, H200, 1e15, math.inf))
    ends = iter([(4, "torch.OutOfMemoryError: CUDA out of memory."), (0, "")])
    calls = []

    def trainyard(*args, limit):
        calls.append(args)
        code, words = next(ends)
        return subprocess.CompletedProcess(args, code, "", words)

    monkeypatch.setattr(session, "trainyard", trainyard)
    assert [attempt.ended for attempt in session.largest_job(jobs)] == ["out of memory", "ran"]
    ends = iter([(4, "rank 0 died: ValueError")])
    assert [attempt.ended for attempt in session.largest_job(jobs)] == ["exit code 4"]
    assert len(calls) == 3
    assert not session.largest_job([])


def test_timeout_kills_the_process_and_its_children(session, tmp_path):
    session.deadline = time.monotonic() + 1.5
    pid_file = str(tmp_path / "pid")
    child = f"import time, os; open({pid_file!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    began = time.monotonic()
    done = session.call([sys.executable, "-c", parent], 100)
    assert (done.returncode, time.monotonic() - began < 10) == (124, True)
    assert ended(int((tmp_path / "pid").read_text()))


def ended(process: int) -> bool:
    """Whether the process ends within five seconds. A zombie counts as ended."""
    for _ in range(50):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


def test_large_or_private_files_are_refused(session, capsys, monkeypatch):
    (session.folder / "README.md").write_text("all is well", "utf-8")
    assert collect.sound(session.folder, session)
    monkeypatch.setattr(session, "hidden", {"node17": "HOST"})
    (session.folder / "log.txt").write_text("on node17", "utf-8")
    assert not collect.sound(session.folder, session)
    (session.folder / "log.txt").write_bytes(b"0" * (collect.LIMIT + 1))
    assert not collect.sound(session.folder, session)
    errors = capsys.readouterr().err
    assert missing_values(errors, "log.txt: HOST", "2.0 MB") == []


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.nightly
def test_collects_all_evidence_on_the_cpu(tmp_path, monkeypatch, root):
    """With devices that torch does not see, ranks train on the CPU and all files are written."""
    pytest.importorskip("torch")
    text = dense.job_text(dense.Size(1, 512), 2).replace("seq_len = 2048", "seq_len = 32")
    text = text.replace(f"tokens_per_step = {8192 * 2}", "tokens_per_step = 256").replace(
        "steps = 5\nrepeats = 3", "steps = 2\nrepeats = 1"
    )
    monkeypatch.setattr(dense, "SIZES", (dense.Size(1, 512),))
    monkeypatch.setattr(dense, "job_text", lambda size, ranks, variant: text)
    monkeypatch.setattr(dense_jobs, "VARIANTS", dense_jobs.VARIANTS[:1])
    monkeypatch.setattr(collect, "ROOT", tmp_path)
    monkeypatch.setenv("TRAINYARD_PRETEND", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("MY_TOKEN", "s3cr3t-s3cr3t")
    monkeypatch.setenv("NCCL_SOMETHING", "s3cr3t-s3cr3t at /home/ada/lib/nccl.conf")
    assert run_part.run_part(2, evidence.Devices(("NVIDIA H100 80GB HBM3",) * 2, 10**10, "", "9.9 (CUDA 12)"))
    [folder] = (tmp_path / "evidence").glob("*/dense")
    assert re.fullmatch(r"nvidia-h100-80gb-hbm3-\d{4}-\d\d-\d\d", folder.parent.name)
    [variant] = map(str, dense_jobs.VARIANTS)
    assert {"README.md", "machine.json", variant, f"{variant}.txt"} == {path.name for path in folder.iterdir()}
    records = folder / variant
    wanted = {"run", "report.html.gz", "trace.json.gz", "ledger.json", "analysis.json", "summary.json", "plan.json"}
    assert wanted == {path.name for path in records.iterdir()}
    assert collect.size_of(folder) < run_part.RUNS["dense"].max_bytes
    facts = json.loads((folder / "machine.json").read_text("utf-8"))
    assert facts["torch"] == "9.9 (CUDA 12)"
    assert folder.parent.name.endswith(facts["date"])
    run = folders.read(records / "run")
    assert run.digest == folders.digest(records / "run")
    assert run.state == "complete"
    assert not (records / "run" / "traces").exists()
    every = "".join(path.read_text("utf-8") for path in folder.rglob("*") if path.is_file() and path.suffix != ".gz")
    assert not re.search(rf"s3cr3t|/home/ada|{re.escape(str(tmp_path))}|\b{re.escape(socket.gethostname())}\b", every)
    readme = (folder / "README.md").read_text("utf-8")
    assert f"| {variant} | ran |" in readme
    assert "dense-1x512: state" in readme
    assert measure(read([records / "trace.json.gz"])).mean.wall_ns > 0
