"""Damaged and hostile checkpoints: never used, never executed, always named, on the same layout or another."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ranks import on_ranks
from tests.refused import refused
from tests.train.checkpoint.test_checkpoint import (
    LATEST,
    MANIFEST,
    SAVED,
    TOML,
    UNTIL,
    a_job,
    flipped,
    folder_of,
    here,
    train,
)
from trainyard import job_file as jobs
from trainyard.errors import BadFile, BadJob
from trainyard.layout import Layout
from trainyard.record import Run
from trainyard.store.store import Store, now
from trainyard.train.checkpoint import manifest as manifests
from trainyard.train.checkpoint.checkpoint_store import CheckpointStore
from trainyard.train.checkpoint.manifest import Piece, Stored

# Damage, and another layout


def last_shard(folder: Path) -> Path:
    return sorted(folder.glob("rank*.bin"))[-1]


def bytes_flipped(folder: Path) -> None:
    flipped(folder, last_shard(folder).name)


def cut_short(folder: Path) -> None:
    os.truncate(last_shard(folder), last_shard(folder).stat().st_size - 1)


def lengthened(folder: Path) -> None:
    os.truncate(last_shard(folder), last_shard(folder).stat().st_size + 64)


def shard_missing(folder: Path) -> None:
    last_shard(folder).unlink()


def shard_of_another_step(folder: Path) -> None:
    shard = last_shard(folder)
    shutil.copy(folder.with_name("step-000003") / shard.name, shard)


def extra_shard(folder: Path) -> None:
    shutil.copy(last_shard(folder), folder / "rank9.bin")


def manifest_missing(folder: Path) -> None:
    (folder / manifests.NAME).unlink()


def manifest_flipped(folder: Path) -> None:
    flipped(folder, manifests.NAME, 500)


def manifest_cut_short(folder: Path) -> None:
    os.truncate(folder / manifests.NAME, 1000)


def manifest_of_another_step(folder: Path) -> None:
    shutil.copy(folder.with_name("step-000003") / manifests.NAME, folder)


def digest_removed(folder: Path) -> None:
    path = folder / manifests.NAME
    path.write_bytes(msgspec.json.encode({"body": msgspec.json.decode(path.read_bytes())["body"]}))


DAMAGE = [
    bytes_flipped, cut_short, lengthened, shard_missing, shard_of_another_step, extra_shard, manifest_missing,
    manifest_flipped, manifest_cut_short, manifest_of_another_step, digest_removed,
]  # fmt: skip
LAYOUTS = {
    "alone": Layout(),
    "ddp": Layout(dp_replicate=2),
    "fsdp": Layout(dp_shard=2),
    "tp": Layout(tp=2),
}
CHANGES = [("alone", "fsdp"), ("ddp", "fsdp"), ("fsdp", "alone"), ("fsdp", "tp")]


def trained(ranks: Any, work: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    return {name: train(ranks, *given) for name, given in work.items()}


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of each resume by "FROM to TO: DAMAGE", and of undisturbed training by layout name."""
    pytest.importorskip("torch")
    top = tmp_path_factory.mktemp("damaged")
    saving = {name: (a_job(layout, every=3), str(top / name)) for name, layout in LAYOUTS.items()}
    results = _by_ranks(saving)
    work: dict[str, tuple[Any, ...]] = {}
    for before, after in CHANGES:
        for harm in (None, *DAMAGE):
            name = f"{before} to {after}: {harm.__name__ if harm else 'none'}"
            shutil.copytree(top / before / "checkpoints", top / name / "checkpoints")
            newest = folder_of(top / name, LATEST)
            if harm is None:
                shutil.rmtree(newest)
            else:
                harm(newest)
            work[name] = (a_job(LAYOUTS[after]), str(top / name))
    return results | _by_ranks(work)


def _by_ranks(work: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for world in (1, 2):
        mine = {name: given for name, given in work.items() if given[0].layout.ranks == world}
        each = on_ranks(world, trained, mine)
        assert all(rank == each[0] for rank in each), "every rank reports the same"
        results |= each[0]
    return results


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), CHANGES)
@pytest.mark.parametrize("harm", DAMAGE)
def test_damage_before_a_layout_change_falls_back(
    resumed: dict[str, Any], before: str, after: str, harm: Callable[[Path], None]
) -> None:
    first, outcomes, notices, digest = resumed[f"{before} to {after}: {harm.__name__}"]
    _, healthy, none, same = resumed[f"{before} to {after}: none"]
    assert (first, none) == (SAVED + 1, [])
    assert [(kind, step) for kind, step, _ in notices] == [("bad_checkpoint", LATEST)]
    assert "manifest.json" in notices[0][2] or "rank" in notices[0][2], "the file is named"
    assert (outcomes, digest) == (healthy, same), "bit for bit as from the checkpoint before, undamaged"
    assert np.allclose(outcomes, resumed[before][1][first:], rtol=1e-5, atol=0)


# Hostile manifests with a valid digest


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("good")
    train(here(), a_job(every=3), run)
    return run


@pytest.fixture
def run(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good / "checkpoints", tmp_path / "checkpoints")
    return tmp_path


def resealed(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / manifests.NAME
    body = json.loads(path.read_bytes())["body"]
    change(body)
    sealed(folder, json.dumps(body).encode())


def sealed(folder: Path, body: bytes) -> None:
    digest = hashlib.sha256(body).hexdigest().encode()
    (folder / manifests.NAME).write_bytes(b'{"body":' + body + b',"sha256":"' + digest + b'"}')


WEIGHT = "model/head.weight"


def overlapping(body: dict[str, Any]) -> None:
    stored = body["tensors"][WEIGHT]
    ((_, (rows, width), file, at),) = stored["pieces"]
    stored["pieces"] = [[[0, 0], [rows // 2, width], file, at]] * 2


def empty_and_huge(body: dict[str, Any]) -> None:
    body["tensors"]["model/x"] = {"dtype": "float32", "shape": [2**62, 2**62, 0], "pieces": []}


def negative(body: dict[str, Any]) -> None:
    body["tensors"]["model/x"] = {"dtype": "float32", "shape": [-1, 0], "pieces": []}


def of_many_dimensions(body: dict[str, Any]) -> None:
    body["tensors"]["model/x"] = {"dtype": "float32", "shape": [2**62] * 200_000, "pieces": []}


def outside(body: dict[str, Any]) -> None:
    body["tensors"][WEIGHT]["pieces"][0][2] = "../../../etc/passwd"


def negative_place(body: dict[str, Any]) -> None:
    body["tensors"][WEIGHT]["pieces"][0][3] = -64


def beyond_the_end(body: dict[str, Any]) -> None:
    body["tensors"][WEIGHT]["pieces"][0][3] = 2**62


def of_objects(body: dict[str, Any]) -> None:
    body["tensors"][WEIGHT]["dtype"] = "object"


def larger_than_its_file(body: dict[str, Any]) -> None:
    body["files"]["rank0.bin"]["bytes"] = 2**50


def deep(folder: Path) -> None:
    sealed(folder, b"[" * 10**6 + b"]" * 10**6)


def duplicate_keys(folder: Path) -> None:
    sealed(folder, b'{"step":5,' * 2 + b"}}")


def pieces_without_end(folder: Path) -> None:
    """100 MB of pieces."""
    pieces = b'[[],[],"",0],' * (10**8 // 13) + b'[[],[],"",0]'
    job = msgspec.json.encode(a_job())
    body = b'{"step":5,"ranks":1,"saved":"","job":' + job + b',"files":{},"tensors":{"x":{"dtype":"float32","shape":[],'
    sealed(folder, body + b'"pieces":[' + pieces + b"]}}}")


def pipe(folder: Path) -> None:
    (folder / manifests.NAME).unlink()
    os.mkfifo(folder / manifests.NAME)


def endless(folder: Path) -> None:
    (folder / manifests.NAME).unlink()
    (folder / manifests.NAME).symlink_to("/dev/zero")


def larger_than_read(folder: Path) -> None:
    os.truncate(folder / manifests.NAME, 2**40)


def resealing(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        resealed(folder, change)

    harm.__name__ = change.__name__
    return harm


HOSTILE: list[Callable[[Path], None]] = [
    *map(resealing, [
        overlapping, empty_and_huge, negative, of_many_dimensions, outside, negative_place, beyond_the_end, of_objects,
        larger_than_its_file,
    ]),
    deep, duplicate_keys, pipe, endless, larger_than_read,
]  # fmt: skip


@pytest.mark.torch
@pytest.mark.timeout(30)
@pytest.mark.parametrize("harm", HOSTILE)
def test_hostile_manifest_is_refused_in_time(run: Path, harm: Callable[[Path], None]) -> None:
    harm(folder_of(run, LATEST))
    first, _, notices, _ = train(here(), a_job(), run, UNTIL)
    assert (first, [(kind, step) for kind, step, _ in notices]) == (SAVED + 1, [("bad_checkpoint", LATEST)])
    assert len(notices[0][2]) < 1000


EXPORT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from trainyard.cli.main import answer
sys.exit(answer(["runs", "export-weights", sys.argv[1], "--step", "6", "--out", sys.argv[2]]))
"""


@pytest.mark.torch
@pytest.mark.timeout(60)
@pytest.mark.parametrize("harm", [deep, pieces_without_end, pipe, larger_than_read, resealing(overlapping)])
def test_export_command_refuses_a_hostile_checkpoint(good: Path, tmp_path: Path, harm: Callable[[Path], None]) -> None:
    pytest.importorskip("safetensors")
    store = Store(tmp_path / "store")
    folder = store.begin(Run(id="0badcafe", job=jobs.parse(TOML, "here"), started=now()), TOML)
    shutil.copytree(good / "checkpoints", folder / "checkpoints")
    harm(folder_of(folder, LATEST))
    done = subprocess.run(
        [sys.executable, "-c", EXPORT, str(folder), str(tmp_path / "out.safetensors")],
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert "step-000006" in done.stderr


@pytest.mark.torch
def test_values_of_another_dtype_are_refused(run: Path) -> None:
    resealed(folder_of(run, LATEST), lambda body: body["tensors"][WEIGHT].update(dtype="int32"))
    with refused(BadFile, "step 6", "head.weight", "float32", "int32"):
        train(here(), a_job(), run)


@pytest.mark.torch
def test_invalid_generator_state_is_refused(run: Path) -> None:
    def misplaced(body: dict[str, Any]) -> None:
        body["tensors"]["rng/rank0/cpu"]["pieces"][0][3] = 0

    def shorter(body: dict[str, Any]) -> None:
        state = body["tensors"]["rng/rank0/cpu"]
        state["shape"], state["pieces"][0][1] = [8], [8]

    resealed(folder_of(run, LATEST), misplaced)
    with refused(BadFile, "step 6"):
        train(here(), a_job(), run)
    resealed(folder_of(run, LATEST), shorter)
    with refused(BadJob, "rank0/cpu"):
        train(here(), a_job(), run)


@pytest.mark.torch
def test_checkpoint_of_another_training_is_refused(run: Path, tmp_path: Path) -> None:
    """The other checkpoint is undamaged, of the same shapes and step."""
    train(here(), a_job(every=3, seed=8), tmp_path / "other")
    shutil.rmtree(folder_of(run, LATEST))
    shutil.copytree(folder_of(tmp_path / "other", LATEST), folder_of(run, LATEST))
    with refused(BadJob, "step 6", "seed = 7", "$.recipe", 8):
        train(here(), a_job(), run)


@pytest.mark.torch
def test_reserved_name_is_not_exported(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    from trainyard.train.checkpoint.export_weights import export

    resealed(
        folder_of(run, LATEST), lambda body: body["tensors"].update({"model/__metadata__": body["tensors"][WEIGHT]})
    )
    with refused(BadFile, "__metadata__"):
        export(run, tmp_path / "out.safetensors")


@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.data())
def test_pieces_must_cover_each_value_once(shape: list[int], data: st.DataObject) -> None:
    """Compared with counting, for pieces of a random grid of which some are dropped, duplicated or moved."""
    cuts = [sorted(data.draw(st.sets(st.integers(0, size), max_size=2)) | {0, size}) for size in shape]
    boxes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ())]
    for axis in cuts:
        pairs = [(low, high - low) for low, high in pairwise(axis)]
        boxes = [((*o, low), (*s, size)) for o, s in boxes for low, size in pairs]
    picked = data.draw(st.lists(st.sampled_from(boxes), max_size=len(boxes) + 1)) if boxes else []
    pieces = boxes if data.draw(st.booleans()) else picked
    values = np.zeros(shape, int)
    for offsets, sizes in pieces:
        values[tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes))] += 1
    stored = Stored(
        dtype="bool", shape=tuple(shape), pieces=tuple(Piece(o, s, "rank0.bin", 0) for o, s in pieces)
    )  # fmt: skip
    sealed_bytes = manifests.seal(msgspec.structs.replace(MANIFEST, tensors={"x": stored}, files=_LARGE))
    if (values == 1).all():
        assert manifests.unseal(sealed_bytes).tensors["x"] == stored
    else:
        with pytest.raises(BadFile):
            manifests.unseal(sealed_bytes)


_LARGE = {"rank0.bin": manifests.File(bytes=64, sha256="0" * 64)}


# Hostile folders


@pytest.mark.torch
def test_set_aside_does_not_follow_links(run: Path, tmp_path: Path) -> None:
    """A why.txt that links elsewhere, and a file whose name is a command."""
    victim = tmp_path / "victim.sh"
    victim.write_text("# unchanged\n")
    (folder_of(run, LATEST) / "why.txt").symlink_to(victim)
    (folder_of(run, LATEST) / "\ntouch canary\n").touch()
    first, _, notices, _ = train(here(), a_job(), run)
    assert victim.read_text() == "# unchanged\n"
    assert first == SAVED + 1
    assert "\n" not in notices[0][2]


@pytest.mark.torch
@pytest.mark.parametrize("name", ["step-000006.1", "step-0000006", "step-٠٠٠٠٠٦"])
def test_copy_under_a_similar_name_is_ignored(run: Path, name: str) -> None:
    shutil.copytree(folder_of(run, LATEST), folder_of(run, LATEST).with_name(name))
    flipped(folder_of(run, LATEST))
    first, _, notices, _ = train(here(), a_job(), run)
    assert (first, len(notices)) == (SAVED + 1, 1)
    assert (run / "checkpoints" / name).is_dir()


def test_set_aside_reuses_no_existing_name(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(tmp_path, "token")
    for _ in range(2):
        checkpoints.folder(1).mkdir(parents=True)
        checkpoints.set_aside(1, "torn")
    shutil.rmtree(checkpoints.root / "bad-step-000002")
    checkpoints.folder(1).mkdir()
    checkpoints.set_aside(1, "torn")
    checkpoints.folder(1).mkdir()
    assert checkpoints.set_aside(1, "torn").name == "bad-step-000002.2"


def test_links_to_old_checkpoints_are_removed_not_followed(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(tmp_path / "run", "token")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    for step in (1, 2):
        checkpoints.folder(step).mkdir(parents=True)
    checkpoints.folder(0).symlink_to(tmp_path / "elsewhere")
    checkpoints.retain(1)
    assert checkpoints.steps() == [2]
    assert (tmp_path / "elsewhere" / "kept").exists()
    assert not os.path.lexists(checkpoints.folder(0))


def test_second_save_of_a_step_replaces_the_first(tmp_path: Path) -> None:
    from trainyard.train.checkpoint.checkpoint_store import write

    for attempt in ("first", "second"):
        checkpoints = CheckpointStore(tmp_path, attempt)
        checkpoints.unfinished_folder(1).mkdir(parents=True)
        file = write(checkpoints.unfinished_folder(1) / "rank0.bin", [attempt.encode() * 8])
        checkpoints.commit(msgspec.structs.replace(MANIFEST, files={"rank0.bin": file}, tensors={}))
    assert (checkpoints.folder(1) / "rank0.bin").read_bytes() == b"second" * 8
    assert [path.name for path in checkpoints.root.iterdir()] == ["step-000002"]


# Weight files passed to any command are not read as such, and never executed


class Canary:
    """Writes a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.write_text, (self.path, "it ran")


def zipped(pickled: bytes) -> bytes:
    """A zip file as written by torch.save."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3\n")
    return data.getvalue()


def tensors(data: bytes = bytes(8), length: int | None = None, **header: Any) -> bytes:
    """A safetensors file."""
    stored = {name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **more} for name, more in header.items()}
    text = json.dumps(stored).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def header(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


SAFETENSORS = {
    "longer than the file": tensors(length=10**6, w={}),
    "of a huge length": tensors(length=2**63, w={}),
    "100 MB": header(b'{"w":' + b" " * 10**8 + b"1}"),
    "deep": header(b"[" * 10**6),
    "overlapping": tensors(bytes(12), a={}, b={"data_offsets": [4, 12]}),
    "negative": tensors(w={"data_offsets": [-8, 0]}),
    "duplicate": header(b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"F32"}}'),
    "of objects": tensors(w={"dtype": "OBJECT"}),
}
COMMANDS = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from trainyard.cli.main import answer
ends = {}
for path in sys.argv[1:]:
    for words in (["trace", path], ["plan", path], ["run", path], ["run", "resume", path], ["report", path],
                  ["diff", path, path], ["runs", "export-weights", path, "--out", path + ".safetensors"]):
        ends[" ".join(words)] = answer(words)
print(json.dumps(ends))
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_no_command_executes_a_weight_file(tmp_path: Path) -> None:
    canary, folder = tmp_path / "canary", tmp_path / "files"
    folder.mkdir()
    pickles = {f"protocol {number}.pt": pickle.dumps(Canary(canary), number) for number in range(6)}
    pickles["torch.pt"] = zipped(pickles["protocol 2.pt"])
    pickles[".metadata"] = pickles["protocol 4.pt"]
    pickles["snapshot.pickle"] = pickle.dumps({"segments": [], "device_traces": [Canary(canary)]}, 4)
    files = pickles | {f"{name}.safetensors": data for name, data in SAFETENSORS.items()}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, *(str(folder / name) for name in files)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    ends = json.loads(done.stdout.splitlines()[-1])
    assert len(ends) == 7 * len(files)
    assert {words: code for words, code in ends.items() if code != 2} == {}
    assert not canary.exists()
    pickle.loads(pickles["protocol 4.pt"])  # noqa: S301 - the canary sings if it is read
    assert canary.exists()
