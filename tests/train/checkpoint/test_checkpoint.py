"""Checkpoints: resumed training matches uninterrupted training on any layout; damaged ones are reported, never used."""

import errno
import os
import pickle
import shutil
import threading
from contextlib import nullcontext
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.ranks import on_ranks
from tests.refused import missing_values, refused
from trainyard import job_file as jobs
from trainyard import plugins
from trainyard.cli.runs import command as runs_command
from trainyard.errors import BadFile, BadInput, BadJob, EnvironmentFailed, RunInUse, WrongRunState
from trainyard.job import Checkpoint, Job, Measure
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.record import DeviceSeen, Run
from trainyard.run.folder_lock import lock_folder
from trainyard.run.local import harness
from trainyard.run.session import Session
from trainyard.store.store import Store, now
from trainyard.train.checkpoint import checkpoint_store
from trainyard.train.checkpoint import manifest as manifests
from trainyard.train.checkpoint.checkpoint_store import CheckpointStore
from trainyard.train.checkpoint.manifest import File, Manifest, Piece, Stored

MODEL = Model(layers=2, hidden_size=32, ffn_hidden_size=64, heads=4, kv_heads=2, head_dim=8)
MOE = msgspec.structs.replace(
    MODEL, experts=4, top_k=2, moe_ffn_hidden_size=16, shared_experts=1, router="sigmoid", load_balancing="bias"
)
UNTIL, SAVED = 6, 2
TEXT = str(Path(manifests.__file__))


def a_job(spread=None, every=0, mode="sync", keep=2, model=MODEL, **recipe):
    recipe = {"seq_len": 16, "tokens_per_step": 128, "learning_rate": 1e-2, "seed": 7, "dataset": TEXT, **recipe}
    if spread is not None and spread.pp > 1:
        recipe["schedule"] = "1f1b"
    kept = Checkpoint(interval=every, mode=mode, keep_latest_k=keep)
    return Job(model=model, layout=spread or Layout(), recipe=Recipe(**recipe), checkpoint=kept)


def train(ranks, job, run, until=UNTIL):
    """Trains from the last good checkpoint: (first step, losses and norms, notices, digest of the weights). As in a
    run, no weights are drawn if there is a checkpoint."""
    from trainyard.train.checkpoint.checkpoint_saver import Saver
    from trainyard.train.model import initial_weights

    with initial_weights.skipped() if steps_of(run) else nullcontext():
        training = plugins.load("workloads", job.workload).build(job, "cpu")
    saver = Saver(Path(run), job, ranks, training)
    first = saver.resume()
    outcomes = []
    for step in range(first, until):
        outcomes.append(tuple(training(step)))
        saver.save_if_due(step)
    saver.close()
    return first, outcomes, [notice[:3] for notice in saver.take_notices()], training.about().digests["weights_final"]


def here():
    """A single rank in this process."""
    torch = pytest.importorskip("torch")
    from trainyard.train.process_group import Ranks

    torch.set_num_threads(1)
    return Ranks(0, 0, 1, 1, "cpu", torch.device("cpu"))


def steps_of(run):
    return CheckpointStore(Path(run)).steps()


def folder_of(run, step):
    return CheckpointStore(Path(run)).folder(step)


# On any layout

FOUR = {
    "fsdp": a_job(Layout(dp_shard=4), every=3),
    "hsdp": a_job(Layout(dp_replicate=2, dp_shard=2), every=3, mode="async"),
    "tp x fsdp": a_job(Layout(tp=2, dp_shard=2), every=3),
}
TWO = {
    "ddp": a_job(Layout(dp_replicate=2), every=3, mode="async"),
    "fsdp": a_job(Layout(dp_shard=2), every=3),
    "unequal shares": a_job(Layout(dp_shard=2, zero=2, batch_shares=(3, 1)), every=3),
    "zero1": a_job(Layout(dp_shard=2, zero=1), every=3, mode="async"),
    "tp": a_job(Layout(tp=2), every=3, mode="async"),
    "pp": a_job(Layout(pp=2), every=3),
}
THEN = {"ddp": "tp", "fsdp": "unequal shares", "unequal shares": "pp", "zero1": "fsdp", "tp": "zero1", "pp": "ddp"}
OTHERS = {
    name: a_job(Layout(dp_shard=2), every=3, optimizer=name, optimizer_implementation="foreach")
    for name in ("muon", "shampoo", "sgd")
} | {
    "experts": a_job(Layout(dp_shard=2, ep=2), every=3, model=MOE),
    "schedule": a_job(Layout(dp_shard=2), every=3, lr_decay_style="linear", warmup_steps=2, decay_steps=3),
    "loss scale": a_job(Layout(dp_shard=2), every=3, dtype="float16"),
}


def unkept(job):
    return msgspec.structs.replace(job, checkpoint=Checkpoint())


def alone_of(job):
    return msgspec.structs.replace(unkept(job), layout=Layout())


def several(ranks, work):
    """`train` for each (job, run). A job that saves trains twice, from the beginning and from step 3."""
    import torch.distributed as dist

    results = {}
    for name, job, run in work:
        results[name] = [train(ranks, job, run)]
        if job.checkpoint.interval:
            if ranks.rank == 0:
                shutil.rmtree(folder_of(run, 5))
            if ranks.world > 1:
                dist.barrier()
            results[name].append(train(ranks, unkept(job), run))
    return results


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Results by name of each job that saved, and of each that resumed from another's checkpoint."""
    pytest.importorskip("torch")
    at = str(tmp_path_factory.mktemp("runs")) + "/"
    single_rank = [("alone", a_job(every=3), at + "alone")]
    four = [(name, job, f"{at}four {name}") for name, job in FOUR.items()]
    two = [(name, job, f"{at}two {name}") for name, job in (TWO | OTHERS).items()]
    two += [(f"{name} to {then}", unkept(TWO[then]), f"{at}two {name}") for name, then in THEN.items()]
    two += [(f"four {name} to two", unkept(TWO["fsdp"]), f"{at}four {name}") for name in FOUR]
    two += [(f"alone to {then}", unkept(TWO[then]), at + "alone") for then in ("ddp", "fsdp")]
    last = [(f"four {name} to one", alone_of(job), f"{at}four {name}") for name, job in FOUR.items()]
    last += [(f"{name} to one", alone_of(job), f"{at}two {name}") for name, job in OTHERS.items()]
    results = {}
    for world, work in ((1, single_rank), (4, four), (2, two), (1, last)):
        every = on_ranks(world, several, work, patience_s=400)
        for name in every[0]:
            assert all(rank[name] == every[0][name] for rank in every), "ranks say the same"
        results |= every[0]
    return results


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", ["alone", *FOUR, *TWO, *OTHERS])
def test_resume_on_the_same_layout_is_bit_exact(runs, name):
    (first, outcomes, _, digest), (again, rest, notices, same) = runs[name]
    assert (first, again, notices) == (0, SAVED + 1, [])
    assert rest == outcomes[again:]
    assert same == digest


@pytest.mark.torch
@pytest.mark.slow
def test_saving_does_not_change_training(runs):
    assert train(here(), a_job(), "/nowhere")[1] == runs["alone"][0][1]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *(f"four {name} to {fewer}" for name in FOUR for fewer in ("two", "one")),
        *(f"{before} to {after}" for before, after in THEN.items()),
        *(f"alone to {after}" for after in ("ddp", "fsdp")),
    ],
)
def test_resume_on_another_layout_continues_losses(runs, name):
    ((first, outcomes, notices, _),) = runs[name]
    assert (first, notices) == (SAVED + 1, [])
    assert np.allclose(outcomes, runs["alone"][0][1][first:], rtol=1e-5, atol=0)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_state_is_restored(runs, name):
    ((first, outcomes, _, _),) = runs[f"{name} to one"]
    assert first == SAVED + 1
    near = 1e-5 if name != "loss scale" else 5e-3  # half precision adds up in another order
    assert np.allclose(outcomes, runs[name][0][1][first:], rtol=near, atol=0)


@pytest.mark.torch
def test_replicas_are_written_once_by_different_ranks(tmp_path):
    pytest.importorskip("torch")
    on_ranks(2, train, a_job(Layout(dp_replicate=2), every=1, keep=1), str(tmp_path), 1)
    manifest = CheckpointStore(tmp_path).read(0)
    sizes = [file.bytes for file in manifest.files.values()]
    assert len(sizes) == 2
    values = sum(np.prod(t.shape) * manifests.WIDTHS[t.dtype] for t in manifest.tensors.values())
    assert values <= sum(sizes) < 1.05 * values
    assert max(sizes) < 0.6 * sum(sizes)


# Damage

LATEST = 5


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A run with checkpoints after its third and sixth step, by one rank."""
    run = tmp_path_factory.mktemp("good")
    _, outcomes, _, digest = train(here(), a_job(every=3), run)
    return run, outcomes, digest


@pytest.fixture
def run(good, tmp_path):
    shutil.copytree(good[0] / "checkpoints", tmp_path / "checkpoints")
    return tmp_path


# Each damages a checkpoint and returns the values that its notice must name.


def truncated(folder):
    path = folder / "rank0.bin"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size // 2)
    return path.name, f"{size // 2:,}", f"{size:,}"


def flipped(folder, name="rank0.bin", at=1000):
    path = folder / name
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 4
    path.write_bytes(data)
    return name, "sha256"


def missing(folder):
    (folder / "rank0.bin").unlink()
    return ("rank0.bin",)


def without_manifest(folder):
    (folder / manifests.NAME).unlink()
    return manifests.NAME, os.strerror(errno.ENOENT)


def swapped(folder):
    shutil.copy(folder.with_name("step-000003") / manifests.NAME, folder)
    return manifests.NAME, 3


def stranger(folder):
    (folder / "rank7.bin").write_bytes(b"x")
    return ("rank7.bin",)


def flipped_manifest(folder):
    return flipped(folder, manifests.NAME, 500)[:1]


@pytest.mark.torch
@pytest.mark.parametrize("harm", [truncated, flipped, missing, without_manifest, swapped, stranger, flipped_manifest])
def test_damaged_checkpoint_is_set_aside_for_the_previous_one(good, run, harm):
    values = harm(folder_of(run, LATEST))
    first, outcomes, notices, digest = train(here(), a_job(), run)
    assert first == SAVED + 1
    assert outcomes == good[1][SAVED + 1 :]
    assert digest == good[2]
    ((kind, step, message),) = notices
    assert (kind, step) == ("bad_checkpoint", LATEST)
    assert missing_values(message, *values) == []
    assert missing_values((run / "checkpoints" / "bad-step-000006" / "why.txt").read_text(), *values) == []
    assert steps_of(run) == [SAVED]


@pytest.mark.torch
def test_without_a_good_checkpoint_training_starts_over(good, run):
    for step in (SAVED, LATEST):
        flipped(folder_of(run, step))
    first, outcomes, notices, _ = train(here(), a_job(), run)
    assert (first, outcomes) == (0, good[1])
    assert [step for _, step, _ in notices] == [LATEST, SAVED]


@given(st.data())
def test_manifest_with_a_changed_byte_is_refused(data):
    whole = manifests.seal(MANIFEST)
    at = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda value: value != whole[at]))
    with pytest.raises(BadFile):
        manifests.unseal(whole[:at] + bytes([other]) + whole[at + 1 :])


@given(st.integers(0, 10**6))
def test_truncated_manifest_is_refused(at):
    whole = manifests.seal(MANIFEST)
    with pytest.raises(BadFile):
        manifests.unseal(whole[: at % len(whole)])


MANIFEST = Manifest(
    step=1,
    ranks=1,
    saved="2026-01-01T00:00:00.000+00:00",
    job=a_job(),
    files={"rank0.bin": File(bytes=32, sha256="0" * 64)},
    tensors={"model/w": Stored(dtype="float32", shape=(2, 4), pieces=(Piece((0, 0), (2, 4), "rank0.bin", 0),))},
)


def test_manifest_round_trip():
    assert manifests.unseal(manifests.seal(MANIFEST)) == MANIFEST


@pytest.mark.parametrize(
    ("stored", "values"),
    [
        (Stored(dtype="object", shape=(2,), pieces=()), ["'object'"]),
        (Stored(dtype="float32", shape=(8,), pieces=(Piece((0,), (8,), "rank0.bin", 1),)), ["byte 1", "'rank0.bin'"]),
        (Stored(dtype="float32", shape=(8,), pieces=(Piece((0,), (8,), "../x", 0),)), ["byte 0", "'../x'"]),
        (Stored(dtype="float32", shape=(8,), pieces=(Piece((-1,), (8,), "rank0.bin", 0),)), ["[-1]", "[8]"]),
        (Stored(dtype="float32", shape=(8,), pieces=(Piece((0,), (4,), "rank0.bin", 0),)), [4, 8]),
        (Stored(dtype="float32", shape=(8,), pieces=(Piece((0,), (4,), "rank0.bin", 0),) * 2), [8]),
        (Stored(dtype="float32", shape=(-1, 0), pieces=()), ["[-1, 0]"]),
        (Stored(dtype="float32", shape=(2**62, 2**62, 0), pieces=()), [f"[{2**62}, {2**62}, 0]"]),
        (Stored(dtype="float32", shape=(2**62,) * 1000, pieces=()), [1000]),
    ],
)
def test_inconsistent_manifest_is_refused(stored, values):
    wrong = msgspec.structs.replace(MANIFEST, tensors={"model/w": stored})
    with refused(BadFile, "manifest.json:", "model/w", *values):
        manifests.unseal(manifests.seal(wrong))


class Bomb:
    """Writes a file when unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.write_text, (self.trace, "it ran")


@pytest.mark.torch
@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "rank0.bin", "manifest.json", "rank1.bin"])
def test_loading_executes_no_pickle(good, run, tmp_path, name):
    bomb = pickle.dumps(Bomb(tmp_path / "trace"))
    (folder_of(run, LATEST) / name).write_bytes(bomb)
    first, outcomes, notices, _ = train(here(), a_job(), run)
    assert (first, outcomes) == (SAVED + 1, good[1][SAVED + 1 :])
    assert [(kind, step) for kind, step, _ in notices] == [("bad_checkpoint", LATEST)]
    assert not (tmp_path / "trace").exists()
    pickle.loads(bomb)  # noqa: S301 - it is a bomb
    assert (tmp_path / "trace").exists()


@pytest.mark.torch
@pytest.mark.slow
def test_ranks_agree_on_what_to_load(good, run):
    """Only the second rank reads the damaged file; both fall back."""
    on_ranks(2, train, a_job(Layout(dp_shard=2), every=1, keep=9), str(run), LATEST + 3)
    assert steps_of(run)[:3] == [7, 6, 5]
    flipped(folder_of(run, 7), "rank1.bin")
    results = on_ranks(2, train, a_job(Layout(dp_shard=2)), str(run), LATEST + 3)
    assert [rank[0] for rank in results] == [7, 7]
    assert [rank[2] for rank in results] == [results[0][2]] * 2
    assert missing_values(results[1][2][0][2], "rank1.bin", "sha256") == []


@pytest.mark.torch
def test_checkpoint_of_another_model_is_refused(run):
    with refused(BadJob, 6, "(256, 16)"):
        train(here(), a_job(model=msgspec.structs.replace(MODEL, hidden_size=16)), run)
    with refused(BadJob, 6, "layers.2"):
        train(here(), a_job(model=msgspec.structs.replace(MODEL, layers=3)), run)


# A full disk


@pytest.fixture
def full(monkeypatch):
    """`full["after"]`: the number of files written before the disk is full."""
    left = {"after": 10**6}
    whole = checkpoint_store.write

    def write(path, parts):
        if not left["after"]:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        left["after"] -= 1
        return whole(path, parts)

    from trainyard.train.checkpoint import checkpoint_saver as saver

    monkeypatch.setattr(checkpoint_store, "write", write)
    monkeypatch.setattr(saver, "write", write)
    return left


@pytest.mark.torch
@pytest.mark.parametrize("room", [2, 3], ids=["for nothing", "for all but the manifest"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_full_disk_gives_a_notice_and_training_continues(good, tmp_path, full, room, mode):
    pytest.importorskip("torch")
    full["after"] = room
    first, outcomes, notices, _ = train(here(), a_job(every=3, mode=mode), tmp_path)
    assert (first, outcomes) == (0, good[1])
    assert [(kind, step) for kind, step, _ in notices] == [("disk_full", LATEST)]
    assert "No space left on device" in notices[0][2]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000003"]


@pytest.mark.torch
def test_other_write_errors_end_training(tmp_path, monkeypatch):
    here()
    (tmp_path / "checkpoints").write_text("no folder")
    with refused(EnvironmentFailed, 3, "rank 0", os.strerror(errno.ENOTDIR)):
        train(here(), a_job(every=3, mode="async"), tmp_path)


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_failed_save_ends_its_thread_and_counts_its_time(tmp_path, mode):
    ranks = here()
    from trainyard.train.checkpoint.checkpoint_saver import Saver

    (tmp_path / "checkpoints").write_text("no folder")
    job = a_job(every=1, mode=mode)
    training = plugins.load("workloads", "transformer").build(job, "cpu")
    saver = Saver(tmp_path, job, ranks, training)
    earlier = set(threading.enumerate())
    training(0)
    if mode == "sync":
        with refused(EnvironmentFailed, 1):
            saver.save_if_due(0)
        assert saver.stalled_ns > 0
        saver.close()
    else:
        saver.save_if_due(0)
        stalled_before_ns = saver.stalled_ns
        with refused(EnvironmentFailed, 1):
            saver.close()
        assert saver.stalled_ns > stalled_before_ns
    assert not [thread for thread in set(threading.enumerate()) - earlier if thread.name == "checkpoint"]


def fill_on_one(ranks, job, run):
    """`train`, with no disk space for the second rank's part of step 2."""
    from trainyard.train.checkpoint import checkpoint_saver as saver

    whole = saver.write

    def write(path, parts):
        if ranks.rank == 1 and path.parent.name.startswith(".step-000003"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(path, parts)

    saver.write = write
    return train(ranks, job, run)


@pytest.mark.torch
@pytest.mark.slow
def test_full_disk_of_one_rank_drops_the_checkpoint_of_all(good, tmp_path):
    results = on_ranks(2, fill_on_one, a_job(Layout(dp_shard=2), every=3, mode="async"), str(tmp_path))
    assert [rank[2] for rank in results] == [results[0][2]] * 2
    assert results[0][2][0][:2] == ("disk_full", SAVED)
    assert np.allclose(results[0][1], good[1], rtol=1e-5, atol=0)
    assert steps_of(tmp_path) == [LATEST]


# Retention and waiting


@pytest.mark.torch
def test_newest_checkpoints_are_retained(tmp_path):
    train(here(), a_job(every=1, keep=3), tmp_path)
    assert steps_of(tmp_path) == [5, 4, 3]
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-000004", "step-000005", "step-000006"}


def test_old_checkpoints_are_removed_after_the_new_one_is_complete(tmp_path):
    checkpoints = CheckpointStore(tmp_path, "token")
    for step in (1, 2, 3):
        checkpoints.unfinished_folder(step).mkdir(parents=True)
        file = checkpoint_store.write(checkpoints.unfinished_folder(step) / "rank0.bin", [bytes(32)])
        if step < 3:
            checkpoints.commit(msgspec.structs.replace(MANIFEST, step=step, files={"rank0.bin": file}))
        checkpoints.retain(1)
    assert checkpoints.steps() == [2]
    assert checkpoints.unfinished_folder(3).is_dir(), "what is being written is not older"
    CheckpointStore(tmp_path, "other").clear()
    assert not checkpoints.unfinished_folder(3).exists()
    assert checkpoints.read(2).step == 2


def test_set_aside_checkpoints_are_removed_with_older_ones(tmp_path):
    checkpoints = CheckpointStore(tmp_path, "token")
    for step in (1, 2, 3):
        checkpoints.folder(step).mkdir(parents=True)
    assert checkpoints.set_aside(1, "torn").name == "bad-step-000002"
    checkpoints.folder(1).mkdir()
    assert checkpoints.set_aside(1, "again").name == "bad-step-000002.1"
    checkpoints.retain(2)
    assert len(list(checkpoints.root.iterdir())) == 4 - 2
    assert checkpoints.steps() == [3, 2]


@pytest.mark.torch
def test_next_save_waits_for_the_one_in_flight(tmp_path, monkeypatch):
    ranks = here()
    from trainyard.train.checkpoint import checkpoint_saver as savers

    going, free, busy = threading.Event(), threading.Event(), []
    whole = savers.write

    def write(path, parts):
        busy.append(path)
        going.set()
        assert free.wait(60)
        assert len(busy) == 1
        busy.clear()
        return whole(path, parts)

    monkeypatch.setattr(savers, "write", write)
    job = a_job(every=1, mode="async")
    training = plugins.load("workloads", "transformer").build(job, "cpu")
    saver = savers.Saver(tmp_path, job, ranks, training)
    training(0)
    saver.save_if_due(0)
    assert going.wait(60)
    outcome = training(1)  # while it is written
    assert steps_of(tmp_path) == []
    threading.Timer(0.3, free.set).start()
    before = saver.stalled_ns
    saver.save_if_due(1)
    assert saver.stalled_ns - before > 0.2e9, "waiting for the one before is a stall too"
    saver.close()
    assert steps_of(tmp_path) == [1, 0]
    shutil.rmtree(folder_of(tmp_path, 1))
    assert train(ranks, a_job(), tmp_path, 2)[1] == [tuple(outcome)], "the saved state is that at the time of the call"


@pytest.mark.torch
def test_save_now_returns_when_on_disk(tmp_path):
    ranks = here()
    from trainyard.train.checkpoint.checkpoint_saver import Saver

    job = a_job(every=2, mode="async")
    training = plugins.load("workloads", "transformer").build(job, "cpu")
    saver = Saver(tmp_path, job, ranks, training)
    for step in range(2):
        training(step)
        saver.save_if_due(step)
    saver.save_now(1)
    assert steps_of(tmp_path) == [1], "the state after step 1 was on its way already"
    training(2)
    saver.save_now(2)
    assert steps_of(tmp_path) == [2, 1]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_stall_is_booked_to_the_checkpoint(tmp_path, mode):
    ranks = here()
    from trainyard.run.local.capture import capture
    from trainyard.trace.measure import measure, read
    from trainyard.train.checkpoint.checkpoint_saver import Saver

    job = a_job(every=1, mode=mode)
    training = plugins.load("workloads", "transformer").build(job, "cpu")
    saver = Saver(tmp_path, job, ranks, training)
    stalls = []
    with capture(tmp_path, 0, 3, ranks.device, barrier=lambda: None) as profiler:
        for step in range(4):
            before = saver.stalled_ns
            training(step)
            saver.save_if_due(step)
            stalls.append(saver.stalled_ns - before)
            profiler.step()
    saver.close()
    *steps, _ = measure(read([tmp_path / "traces" / "rank0.json.gz"])).ledgers  # the last is their mean
    booked = [{str(account): ns for account, ns in step.by_account().items()} for step in steps]
    # The first step was warm-up. A stall includes waits for the interpreter lock after the span has closed.
    fractions = [step["checkpoint/save"] / stall for step, stall in zip(booked, stalls[1:], strict=True)]
    assert max(fractions) == pytest.approx(1, abs=0.35)
    assert not any(account.startswith("comm") for step in booked for account in step)


# Export


@pytest.mark.torch
def test_weights_are_exported_as_safetensors(good, run, tmp_path):
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    from trainyard.train.checkpoint.export_weights import export

    training = plugins.load("workloads", "transformer").build(a_job(), "cpu")
    for step in range(SAVED + 1):
        training(step)
    flipped(folder_of(run, LATEST))
    with refused(BadFile, "step-000006:", "rank0.bin", "sha256"):
        export(run, tmp_path / "no.safetensors", LATEST)
    done = export(run, tmp_path / "w.safetensors")
    assert done.step == SAVED
    assert missing_values(done.rejected[0], 6, "rank0.bin", "sha256") == []
    weights = safetensors.load_file(tmp_path / "w.safetensors")
    whole = training.parallel_model.modules[0].state_dict()
    assert weights.keys() == whole.keys()
    assert all(torch.equal(weights[name], whole[name]) for name in whole)
    with refused(BadInput, 10, 6, 3):
        export(run, tmp_path / "no.safetensors", 9)
    with refused(BadInput, tmp_path / "nothing", "[checkpoint]", "interval"):
        export(tmp_path / "nothing", tmp_path / "no.safetensors")
    assert not (tmp_path / "no.safetensors").exists()
    with refused(BadInput, "w.bin:", "w.safetensors"):
        export(run, tmp_path / "w.bin")
    (tmp_path / "new").touch()
    assert (tmp_path / "w.safetensors").stat().st_mode == (tmp_path / "new").stat().st_mode


def test_export_joins_pieces_and_widens_bfloat16_exactly(tmp_path):
    pytest.importorskip("safetensors")
    from trainyard.train.checkpoint.export_weights import tensor

    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    (tmp_path / "rank0.bin").write_bytes(halves[:, :2].tobytes())
    (tmp_path / "rank1.bin").write_bytes(bytes(64) + halves[:, 2:].tobytes())
    pieces = (Piece((0, 0), (4, 2), "rank0.bin", 0), Piece((0, 2), (4, 1), "rank1.bin", 64))
    assert np.array_equal(tensor(tmp_path, Stored(dtype="bfloat16", shape=(4, 3), pieces=pieces)), values)


# Resuming a run

TOML = """
[model]
layers = 1
hidden_size = 16
ffn_hidden_size = 16
heads = 2
kv_heads = 1
head_dim = 8
[recipe]
seq_len = 16
tokens_per_step = 32
[measure]
warmup = 1
steps = 4
repeats = 1
profiled = 1
[checkpoint]
interval = 2
"""


@pytest.mark.torch
def test_killed_rank_resumes_at_its_step(tmp_path, monkeypatch):
    """The second attempt of a run whose first left a truncated line."""
    pytest.importorskip("torch")
    from trainyard.run.local import worker
    from trainyard.store.run_folder import read_samples
    from trainyard.train.step import trainer

    (tmp_path / "job.toml").write_text(TOML)
    monkeypatch.chdir(tmp_path)
    real = trainer.Trainer.__call__

    def dies(self, step):
        if step == 3:
            raise KeyboardInterrupt
        return real(self, step)

    monkeypatch.setattr(trainer.Trainer, "__call__", dies)
    with pytest.raises(KeyboardInterrupt):
        worker.main(tmp_path)
    with (tmp_path / "samples" / "rank0.jsonl").open("ab") as log:
        log.write(b'{"step":3,"ra')
    monkeypatch.setattr(trainer.Trainer, "__call__", real)
    worker.main(tmp_path)
    samples = read_samples(tmp_path)
    assert [(sample.step, sample.attempt) for sample in samples] == [
        (0, 0), (1, 0), (2, 0), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1),
    ]  # fmt: skip
    losses = {sample.step: sample.loss for sample in samples if sample.attempt == 0}
    assert [s.loss for s in samples if (s.step, s.attempt) == (2, 1)] == [losses[2]]
    assert steps_of(tmp_path) == [6, 5], "the last is saved, whatever every says"


@pytest.mark.torch
def test_restart_draws_no_weights_and_keeps_their_digest(tmp_path, monkeypatch):
    """The digest of the initial weights is that of the first attempt; without it in the checkpoint, it is unknown."""
    pytest.importorskip("torch")
    from trainyard.run.local import worker
    from trainyard.run.local.rank_facts import read_facts
    from trainyard.train.model import initial_weights

    (tmp_path / "job.toml").write_text(TOML)
    monkeypatch.chdir(tmp_path)
    worker.main(tmp_path)
    (first,) = read_facts(tmp_path)
    shutil.rmtree(folder_of(tmp_path, 6))
    monkeypatch.setattr(initial_weights, "draw", lambda *_: pytest.fail("a weight was drawn"))
    worker.main(tmp_path)
    (second,) = read_facts(tmp_path)
    assert second.digests == first.digests
    store = CheckpointStore(tmp_path)
    shutil.rmtree(folder_of(tmp_path, 6))
    older = msgspec.structs.replace(store.read(5), digests={})
    (folder_of(tmp_path, 5) / manifests.NAME).write_bytes(manifests.seal(older))
    worker.main(tmp_path)
    (third,) = read_facts(tmp_path)
    assert third.digests == {name: value for name, value in first.digests.items() if name != "weights_initial"}


@pytest.mark.parametrize(
    ("begin", "rest"),
    [
        (0, [(0, 1, 0), (1, 0, 0), (2, 0, 0), (3, 1, 1), (4, 0, 1), (5, 0, 1)]),
        (2, [(2, 1, 0), (3, 1, 1), (4, 0, 1), (5, 0, 1)]),
        (4, [(4, 1, 1), (5, 0, 1)]),
        (5, [(5, 1, 0)]),
        (6, []),
    ],
)
def test_remaining_steps_of_a_run(begin, rest):
    """(step, warm-up, profiled) of the steps that remain."""
    pytest.importorskip("torch")
    from trainyard.run.local.planned_steps import plan_steps, remaining_steps

    every = list(remaining_steps(plan_steps(Measure(warmup=1, steps=2, repeats=1, profiled=2), begin), 1))
    assert [(turn.step, turn.warmup, turn.profiled) for turn in every] == rest
    assert not every or every[0].starts_repeat


@pytest.mark.torch
@given(st.integers(0, 3), st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.data())
def test_resumed_run_warms_up_again(warmup, steps, repeats, profiled, data):
    """The first steps of a new process are not measured, and ranks synchronize before those that are."""
    pytest.importorskip("torch")
    from trainyard.run.local.planned_steps import plan_steps, remaining_steps

    measure = Measure(warmup=warmup, steps=steps, repeats=repeats, profiled=profiled)
    whole = list(plan_steps(measure))
    begin = data.draw(st.integers(0, measure.in_all))
    rest = list(remaining_steps(plan_steps(measure, begin), measure.warmup))
    assert [(turn.step, turn.repeat) for turn in rest] == [(turn.step, turn.repeat) for turn in whole[begin:]]
    bare = [turn for turn in rest if not turn.profiled]
    assert all(turn.warmup for turn in bare[: measure.warmup])
    assert all(turn.starts_repeat for turn in bare[measure.warmup : measure.warmup + 1])
    window = [turn for turn in rest if turn.profiled]
    assert [turn.warmup for turn in window] == [True] * bool(window) + [False] * (len(window) - 1)
    assert len(window) != 1
    if begin == 0:
        unmarked = [[turn._replace(starts_repeat=False) for turn in turns] for turns in (rest, whole)]
        assert unmarked[0] == unmarked[1]


CORES = (DeviceSeen(index=0, name="some cores", vendor="cpu", facts={"cores": "2"}),)


@pytest.fixture
def killed(tmp_path, monkeypatch):
    """A stored run that was killed in step 3."""
    pytest.importorskip("torch")
    from trainyard.run.local import worker
    from trainyard.train.step import trainer

    store = Store(tmp_path / "store")
    folder = store.begin(Run(id="0badcafe", job=jobs.parse(TOML, "here"), started=now()), TOML)
    real = trainer.Trainer.__call__

    def dies(self, step):
        if step == 3:
            raise KeyboardInterrupt
        return real(self, step)

    monkeypatch.setattr(trainer.Trainer, "__call__", dies)
    with pytest.raises(KeyboardInterrupt):
        worker.main(folder)
    return store


@pytest.mark.torch
@pytest.mark.slow
def test_killed_run_resumes_under_its_own_id(killed):
    results = []
    run = harness.resume("0bad", Session(killed, lambda traces: (), progress=results.append, devices=CORES))
    assert (run.id, run.state, run.failure) == ("0badcafe", "complete", "")
    assert [(s.step, s.attempt) for s in killed.load("0bad").samples] == [(n, 0) for n in (0, 1, 2)] + [
        (n, 1) for n in (2, 3, 4, 5, 6)
    ]
    assert [at.step for at in results] == [3, 4, 5, 6, 7], "steps before the resume are not reported again"
    assert run.trace == ("traces/rank0.json.gz",)
    with refused(WrongRunState, "0badcafe", "complete"):
        harness.resume("0bad", Session(killed, lambda traces: (), devices=CORES))


@pytest.mark.torch
def test_running_run_is_not_resumed(killed):
    with lock_folder(killed.find("0bad")), refused(RunInUse, "0badcafe"):
        harness.resume("0bad", Session(killed, lambda traces: (), devices=CORES))


@pytest.mark.torch
def test_export_command_writes_weights(killed, tmp_path, monkeypatch):
    pytest.importorskip("safetensors")
    monkeypatch.setenv("TRAINYARD_STORE", str(killed.root))
    out = tmp_path / "weights.safetensors"
    done = CliRunner().invoke(runs_command, ["export-weights", "0bad", "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    message = msgspec.json.decode(done.stdout)
    assert (message["run"], message["step"], message["rejected"]) == ("0badcafe", 1, [])
    assert out.stat().st_size > message["bytes"] > 0
