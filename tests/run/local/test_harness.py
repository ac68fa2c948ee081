"""The harness: what a run leaves in the store when its ranks end well, die, or are interrupted."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.processes import alive, until
from tests.refused import missing_values, refused
from tests.tiny_job import ONE_LAYER
from trainyard import plugins
from trainyard.errors import (
    BadFile,
    BadJob,
    DeviceUnusable,
    MissingLibrary,
    PortInUse,
    RankDied,
    TrainyardError,
    UnknownName,
)
from trainyard.job import Job, Measure, Recovery
from trainyard.launch.supervisor import event_log
from trainyard.layout import Layout
from trainyard.ledger import Account, Entry, Ledger
from trainyard.machine import Claim
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.record import DeviceSeen, Provenance, Run, Sample
from trainyard.run.local import usable_devices
from trainyard.run.local.follow_ranks import _read_samples
from trainyard.run.local.harness import execute
from trainyard.run.local.host_devices import capacity, find_devices
from trainyard.run.local.rank_facts import RankFacts, write_facts
from trainyard.run.record import run_claims
from trainyard.run.record.finish_run import read_measurements
from trainyard.run.record.supervisor_death import record_supervisor_death
from trainyard.run.session import Book, Progress, Session
from trainyard.store.store import Store, new_id
from trainyard.train.rules.torch_build_rules import TorchBuild
from trainyard.vendors import cpu_vendor

CORES = (DeviceSeen(index=0, name="some cores", vendor="cpu", facts={"cores": "2"}),)
LEDGER = Ledger(wall_ns=5, entries=(Entry(account=Account("compute", "matmul"), ns=5),))

WORKER = """
import os, signal, sys, time
from pathlib import Path
import msgspec
from trainyard.machine import Claim
from trainyard.record import Sample
from trainyard.run.local.rank_facts import RankFacts, write_facts
folder = Path(sys.argv[1])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
how = (folder / "job.toml").read_text().partition("how: ")[2].strip()
(folder / f"pid{rank}").write_text(str(os.getpid()))
walls = [900, 100, 110, 120, 130, 999, 400, 420]
with open(folder / "samples" / f"rank{rank}.jsonl", "ab", buffering=0) as out:
    for step, wall in enumerate(walls):
        sample = Sample(
            step=step, rank=rank, repeat=max(0, (step - 1) // 2), wall_ns=wall * 1000, tokens=8, loss=5.0 - step / 10,
            memory_bytes=1000, warmup=step in (0, 5), profiled=step >= 5,
        )
        out.write(msgspec.json.encode(sample) + b"\\n")
        if step == 3 and how == "die":
            if rank == 1:
                print("something is odd here", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        if step == 3 and how == "fill the device":
            if rank == 1:
                raise RuntimeError(
                    "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 1 has a total capacity of 31.50 GiB of which "
                    "2.50 GiB is free. Including non-PyTorch memory, this process has 29.00 GiB memory in use. Of the "
                    "allocated memory 28.00 GiB is allocated by PyTorch, and 1.50 MiB is reserved by PyTorch but "
                    "unallocated."
                )
            time.sleep(60)
        if step == 3 and how == "hang":
            time.sleep(60)
def span(cat, name, start, dur):
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": dur}
spans = [span("user_annotation", f"ProfilerStep#{n}", 400.0 * n, 400.0) for n in (1, 2)]
spans += [span("cpu_op", "aten::mm", 400.0 * n + 50, 300.0) for n in (1, 2)]
info = {"rank": rank, "world_size": world, "backend": "gloo"}
document = {"traceEvents": spans, "distributedInfo": info}
(folder / "traces" / f"rank{rank}.json.partial").write_bytes(b"half")
(folder / "traces" / f"rank{rank}.json").write_bytes(msgspec.json.encode(document))
write_facts(folder, RankFacts(
    rank=rank, local_rank=rank, world=world, vendor="cpu", device="some cores", backend="gloo", threads=1,
    text="stdlib",
    digests={"text": "t", "weights_final": "same" if how != "differ" else f"w{rank}"}, seeds={"model": 3},
    parameters=10, model_flops=5000, clocks={"load": "0.5"} if rank == 0 else {},
    matmul_rate=Claim(value=1e9 + rank * 1e9, unit="FLOP/s", source="probe", measured=True),
    torch_build={"version": "x"},
))
"""


JOB_TEXT = f"""{ONE_LAYER}[recipe]
seq_len = 8
tokens_per_step = 16
"""


def job(**layout: int) -> Job:
    return Job(
        name="tiny",
        model=Model(layers=1, hidden_size=8, ffn_hidden_size=8, heads=1, kv_heads=1, head_dim=8),
        layout=Layout(**(layout or {"dp_replicate": 2})),
        recipe=Recipe(seq_len=8, tokens_per_step=16 * layout.get("tp", 1)),
        measure=Measure(warmup=2, steps=2, repeats=2, profiled=2),
    )


def book(paths: list[Path]) -> list[Ledger]:
    assert [path.name for path in paths] == ["rank0.json", "rank1.json"]
    assert all(path.is_file() for path in paths)
    return [LEDGER, LEDGER]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store of its own, and the worker above to be found by its ranks."""
    (tmp_path / "acting_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return Store(tmp_path / "store")


def run(store: Store, how: str, book: Book = book, **options) -> Run:  # type: ignore[no-untyped-def]
    session = Session(store, book, devices=CORES, worker="acting_worker", **options)
    return execute(job(), f"# how: {how}\n", session)


@pytest.mark.torch
def test_a_run_that_ends_well(store: Store) -> None:
    pytest.importorskip("torch")
    seen: list[Progress] = []
    messages: list[str] = []
    done = run(store, "well", progress=seen.append, say=messages.append)
    assert done == store.load(done.id)
    assert (done.state, len(done.samples), done.ledgers) == ("complete", 16, (LEDGER, LEDGER))
    assert done.trace == ("traces/rank0.json", "traces/rank1.json")
    assert [(at.step, at.steps) for at in seen] == [(n, 9) for n in range(1, 9)]
    assert (seen[0].loss, seen[-1].loss) == (5.0, 4.3)
    assert seen[1].tokens_per_s == pytest.approx(16 / 100e-6)
    assert done.id in messages[0]
    assert done.claims["matmul_rate"].value == 1.5e9
    assert done.claims["matmul_rate"].source == "probe; mean of 2 ranks"
    assert done.claims["model_flops"].value == 5000
    products = 2 * 8 * (4 * 8 * 8 + 3 * 8 * 8 + 8 * 256)  # 8 tokens a rank; attention's, the gated part's, the head's
    assert done.claims["matmul_flops"].value == 3 * products
    assert done.claims["profiler_cost"].value == 410_000 - 115_000
    assert done.claims["profiler_cost"].measured
    recorded = done.provenance
    assert recorded.digests == {"text": "t", "weights_final": "same"}
    assert (recorded.text, recorded.seeds, recorded.torch_build) == ("stdlib", {"model": 3}, {"version": "x"})
    assert recorded.environment["OMP_NUM_THREADS"]
    assert recorded.packages["trainyard"]
    assert recorded.clocks["at_work.cpu.load"] == "0.5"
    assert recorded.devices == CORES
    assert (store.runs / done.id / "job.toml").read_text() == "# how: well\n"


@pytest.mark.torch
def test_ranks_that_differ_are_told_apart(store: Store) -> None:
    pytest.importorskip("torch")
    digests = run(store, "differ").provenance.digests
    assert (digests["weights_final"], digests["weights_final.rank1"]) == ("w0", "w1")


@pytest.mark.torch
def test_a_dead_rank_ends_the_run_and_is_named(store: Store) -> None:
    pytest.importorskip("torch")
    begun = time.monotonic()
    with refused(RankDied, "rank 1", "SIGKILL") as caught:
        run(store, "die")
    assert time.monotonic() - begun < 20
    assert caught.value.exit_code == 4
    assert caught.value.message.endswith("something is odd here")
    (row,) = store.rows()
    resume = f"`trainyard run resume {row.id}`"
    wanted = (
        4,
        9,
        "loss 4.7000",
        "[checkpoint]",
        "interval = N",
        resume,
        "[recovery]",
        "max_restarts = N",
        f"run {row.id}",
    )
    assert missing_values(caught.value.next_step, *wanted) == []
    assert row.state == "failed"
    kept = store.load(row.id)
    assert kept.failure == caught.value.message
    assert len([sample for sample in kept.samples if sample.rank == 1]) == 4
    assert not kept.ledgers
    assert len(kept.digest) == 64


@pytest.mark.torch
def test_rank_without_device_memory_is_named_with_sizes(store: Store) -> None:
    pytest.importorskip("torch")
    with refused(RankDied, "rank 1", "Device 1", "4.0 GiB", "2.5 GiB", "31.5 GiB", "micro_batch_size") as caught:
        run(store, "fill the device")
    assert "Traceback" not in str(caught.value)
    (row,) = store.rows()
    assert store.load(row.id).failure == caught.value.message


STUCK_WORKER = """
import time
from trainyard.launch.agents import rank_progress
scope = {"time": time}
exec(compile("def synchronize(): time.sleep(60)", "/lib/torch/cuda/streams.py", "exec"), scope)
heartbeat = rank_progress.own_heartbeat()
for step in range(3):
    heartbeat.begin(step, fresh=step == 0)
    if step == 2:
        scope["synchronize"]()
    heartbeat.end()
"""


@pytest.mark.torch
@pytest.mark.slow
def test_rank_whose_device_hangs_ends_the_run_with_a_verdict(store: Store, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "stuck_worker.py").write_text(STUCK_WORKER)
    impatient = msgspec.structs.replace(job(dp_replicate=1), recovery=Recovery(hang_timeout_s=1.0))
    with refused(RankDied, "rank 0", "device", "Xid"):
        execute(impatient, JOB_TEXT, Session(store, book, devices=CORES, worker="stuck_worker"))
    (incident,) = store.load(store.rows()[0].id).incidents
    assert (incident.kind, incident.rank, incident.verdict) == ("hang", 0, "device_stuck")


@pytest.mark.torch
def test_traces_that_cannot_be_booked_lose_nothing_that_was_measured(store: Store) -> None:
    pytest.importorskip("torch")

    def refuse(_: list[Path]) -> list[Ledger]:
        raise BadFile("rank0.json: it is empty.")

    with pytest.raises(BadFile):
        run(store, "well", book=refuse)
    (row,) = store.rows()
    kept = store.load(row.id)
    assert (kept.state, len(kept.samples)) == ("failed", 16)
    assert kept.failure == "its traces could not be booked: rank0.json: it is empty."


@pytest.mark.torch
def test_interrupted_while_booking_it_keeps_what_was_measured(store: Store) -> None:
    pytest.importorskip("torch")

    def interrupt(_: list[Path]) -> list[Ledger]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(store, "well", book=interrupt)
    kept = store.load(store.rows()[0].id)
    assert (kept.state, len(kept.samples), len(kept.trace)) == ("incomplete", 16, 2)
    assert kept.claims["matmul_rate"].value == 1.5e9
    assert kept.digest


def test_traces_are_complete_files_in_rank_order(tmp_path: Path) -> None:
    for part in ("traces", "facts", "samples"):
        (tmp_path / part).mkdir()
    for name in (
        "rank10.json.gz",
        "rank9.json.gz",
        "rank2.json",
        "rank3.json.packed",
        "rank4.json.partial",
        "rank.json",
    ):
        (tmp_path / "traces" / name).touch()
    bare = Run(id=new_id(), job=job(), started="2025-01-01")
    traces = read_measurements(bare, tmp_path, {}).trace
    assert traces == ("traces/rank2.json", "traces/rank9.json.gz", "traces/rank10.json.gz")


STARTER = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
sys.path.insert(0, sys.argv[2])
from test_harness import run
from trainyard.store.store import Store
run(Store(Path(sys.argv[1])), "hang")
"""


@pytest.mark.torch
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_it_leaves_no_process_and_an_incomplete_run(store: Store, sign: signal.Signals) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-c", STARTER, str(store.root), str(Path(__file__).parent)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as parent:
        assert until(lambda: len(list(store.runs.glob("*/pid?"))) == 2)
        (folder,) = store.runs.iterdir()
        assert until(lambda: all((folder / "samples" / f"rank{rank}.jsonl").exists() for rank in range(2)))
        parent.send_signal(sign)
        parent.communicate(timeout=60)
    pids = [int((folder / f"pid{rank}").read_text()) for rank in range(2)]
    assert until(lambda: not any(map(alive, pids)), 8)
    kept = store.load(folder.name)
    assert kept.state == "incomplete"
    assert kept.samples
    record_supervisor_death(folder)  # as a resumption does
    faults = [event.kind for event in event_log.read(folder) if event.type == "fault"]
    assert faults == (["supervisor_death"] if sign == signal.SIGKILL else [])


@pytest.mark.torch
def test_killed_supervisor_leaves_an_incident(store: Store) -> None:
    pytest.importorskip("torch")

    def kill_supervisor(at: Progress) -> None:
        if at.step == 3:
            (path,) = store.runs.glob("*/logs/supervisor.pid")
            os.kill(int(path.read_text()), signal.SIGKILL)

    with refused(RankDied, "SIGKILL"):
        run(store, "hang", progress=kill_supervisor)
    kept = store.load(store.rows()[0].id)
    assert kept.state == "failed"
    assert [(incident.kind, incident.rank) for incident in kept.incidents] == [("supervisor_death", -1)]


def test_a_layout_that_does_not_fit_starts_nothing(store: Store) -> None:
    with refused(BadJob, "$.layout:", "dp_replicate 2", "tp 2", 4, "some cores", 2):
        execute(job(dp_replicate=2, tp=2), "", Session(store, book, devices=CORES))
    assert not store.root.exists()


@pytest.mark.parametrize(
    ("change", "kind", "values"),
    [
        ({"layout": Layout(tp=2)}, BadJob, ["heads 1 % tp 2", "tp = 1"]),
        ({"workload": "transfomer"}, UnknownName, ["'transfomer'", "'transformer'"]),
        (
            {"recipe": Recipe(seq_len=8, tokens_per_step=16, dataset="nosuch")},
            BadJob,
            ["dataset = 'nosuch'", "$.recipe:", os.strerror(errno.ENOENT)],
        ),
    ],
)
def test_what_cannot_be_trained_starts_nothing(
    store: Store, change: dict[str, object], kind: type[TrainyardError], values: list[str]
) -> None:
    with refused(kind, *values):
        execute(msgspec.structs.replace(job(), **change), "", Session(store, book, devices=CORES))
    assert not store.root.exists()


def test_a_port_in_use_starts_nothing(store: Store) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with refused(PortInUse, port):
            run(store, "well", port=port)
    assert not store.root.exists()


def test_what_cannot_start_leaves_no_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.launch.local.find_spec", lambda _: None)
    with refused(MissingLibrary, "torch"):
        run(store, "well")
    assert store.rows() == []


def test_accelerators_go_before_cores_and_pretended_ones_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_PRETEND", "3")
    vendors = plugins.load_all("vendors")
    assert [device.vendor for device in find_devices(vendors)] == ["pretend"] * 3
    assert capacity(find_devices(vendors)) == 3
    monkeypatch.delenv("TRAINYARD_PRETEND")
    only = {"cpu": vendors["cpu"], "pretend": vendors["pretend"]}
    assert [device.vendor for device in find_devices(only)] == ["cpu"]
    assert capacity(find_devices(only)) == cpu_vendor.cores()


def facts(vendor: str, device: str) -> RankFacts:
    return RankFacts(
        rank=0, local_rank=0, world=1, vendor=vendor, device=device, backend="", threads=1, text="python",
        digests={}, seeds={}, parameters=1, model_flops=1, torch_build={},
        matmul_rate=Claim(value=1, unit="FLOP/s", source="probe"),
    )  # fmt: skip


H200 = DeviceSeen(
    index=0, name="NVIDIA H200", vendor="nvidia", facts={"driver": "535.1", "cuda_driver": "12020", "uuid": "GPU-1"}
)  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize(
    ("build", "facts", "values"),
    [
        (TorchBuild("2.13.0+cpu", "", ""), {}, ("nvidia", "2.13.0+cpu", "CUDA_VISIBLE_DEVICES")),
        (TorchBuild("2.13.0+cu130", "13.0", ""), {}, ("535.1", "CUDA 12.2", "CUDA 13.0")),
        (TorchBuild("2.13.0+cu126", "12.6", ""), {"compute_mode": "prohibited"}, ("device 0", "nvidia-smi")),
    ],
)
def test_unusable_devices_are_refused_before_a_run_is_stored(
    store: Store, monkeypatch: pytest.MonkeyPatch, build: TorchBuild, facts: dict[str, str], values: tuple[str, ...]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(usable_devices, "installed_build", lambda: build)
    device = msgspec.structs.replace(H200, facts={**H200.facts, **facts})
    with refused(DeviceUnusable, *values):
        execute(job(dp_replicate=1), JOB_TEXT, Session(store, book, devices=(device,)))
    assert not list(store.runs.glob("*"))


@pytest.mark.torch
def test_predicted_shortage_of_memory_is_said_before_the_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(usable_devices, "installed_build", lambda: None)
    weights = plugins.load("workloads", "transformer").weights(job())
    devices = tuple(
        msgspec.structs.replace(H200, index=index, memory_bytes=16 * weights) for index in range(2)
    )  # enough for weights, gradients and AdamW's state, and for nothing else
    messages: list[str] = []
    session = Session(store, book, devices=devices, worker="acting_worker", say=messages.append)
    assert execute(job(), "# how: well\n", session).state == "complete"
    assert missing_values(messages[0], "predicted", "NVIDIA H200", "trainyard plan check") == []


@pytest.mark.torch
def test_devices_that_torch_cannot_initialise_fail_the_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(usable_devices, "installed_build", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    devices = (DeviceSeen(index=0, name="NVIDIA H200", vendor="nvidia"),)
    with refused(RankDied, "nvidia", f"torch {torch.__version__}", "CUDA_VISIBLE_DEVICES"):
        execute(job(dp_replicate=1), JOB_TEXT, Session(store, book, devices=devices))


def test_incomplete_line_is_read_once_complete(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    appended = _read_samples(path)
    assert next(appended) == []
    sample = Sample(step=0, rank=0, repeat=0, wall_ns=1, tokens=1, loss=1.0, memory_bytes=1)
    line = msgspec.json.encode(sample) + b"\n"
    path.write_bytes(line[:10])
    assert next(appended) == []
    path.write_bytes(line + line[:5])
    assert next(appended) == [sample]
    path.write_bytes(line + line)
    assert next(appended) == [sample]
    assert next(appended) == []


@pytest.mark.torch
@pytest.mark.parametrize("profiled", [0, 3])
def test_as_many_steps_are_announced_as_a_rank_takes(profiled: int) -> None:
    pytest.importorskip("torch")
    from trainyard.run.local.planned_steps import plan_steps

    measure = Measure(warmup=2, steps=3, repeats=2, profiled=profiled)
    assert measure.in_all == len(list(plan_steps(measure)))


def test_claims_without_data_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    vendors = plugins.load_all("vendors")
    monkeypatch.setenv("TRAINYARD_PRETEND", "1")
    recorded = Provenance(devices=tuple(vendors["pretend"].devices()))
    bare = Run(id=new_id(), job=job(), started="2025-01-01", provenance=recorded)
    assert run_claims.derive_claims(bare, [], vendors) == {}, "nobody knows yet what will train"
    assert run_claims.derive_claims(bare, [facts("pretend", "Pretend 1")], vendors)["peak"].value == 1e12


@pytest.mark.parametrize(
    ("vendor", "device", "peak"),
    [("nvidia", "NVIDIA H200", True), ("nvidia", "NVIDIA H200 MIG 1g.18gb", False), ("cpu", "some cores", False)],
)
def test_peak_is_that_of_the_training_device(tmp_path: Path, vendor: str, device: str, peak: bool) -> None:
    driver = DeviceSeen(index=0, name="NVIDIA H200", vendor="nvidia")
    half = msgspec.structs.replace(job(), recipe=Recipe(seq_len=8, tokens_per_step=16, dtype="bfloat16"))
    bare = Run(id=new_id(), job=half, started="2025-01-01", provenance=Provenance(devices=(driver,)))
    write_facts(tmp_path, facts(vendor, device))
    (tmp_path / "samples").mkdir()
    kept = read_measurements(bare, tmp_path, plugins.load_all("vendors"))
    assert [(device_seen.vendor, device_seen.name) for device_seen in kept.provenance.devices] == [(vendor, device)]
    assert ("peak" in kept.claims) == peak
