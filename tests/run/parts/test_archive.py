"""Archives of parts: what is packed comes out unchanged, and a hostile archive leaves nothing."""

import gzip
import io
import tarfile

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadFile, BadInput, DamagedFile, FileTooLarge
from trainyard.run.parts import archive
from trainyard.run.parts.part import ClockStamp, Part, decode, encode, read_part, write_part

PART = Part(job_id="job-1", node="node-a", ranks=(0, 1), world_size=4)
NAMES = ["samples/rank0.jsonl", "samples/rank1.jsonl", "traces/rank0.json.gz", "facts/rank1.json", "profiles/rank1.bin"]


def part_folder(path, part=PART, files=()):
    """A folder with `part.json` and files (name -> contents)."""
    path.mkdir(parents=True, exist_ok=True)
    write_part(path, part)
    for name, data in dict(files).items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(data)
    return path


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@given(
    files=st.dictionaries(st.sampled_from([name for name in NAMES if "facts" not in name]), st.binary(max_size=2000))
)
def test_unpacked_files_equal_the_packed_ones(tmp_path_factory, files):
    tmp_path = tmp_path_factory.mktemp("pack")
    folder = part_folder(tmp_path / "run", files=files)
    part = archive.unpack(archive.pack(folder, PART.ranks), tmp_path / "out")
    assert part == PART
    assert contents(tmp_path / "out") == contents(folder)


def test_only_files_of_the_given_ranks_travel(tmp_path):
    files = {"samples/rank0.jsonl": b"0", "samples/rank1.jsonl": b"1", "logs/rank0.out": b"x\n", "tags.json": b"{}"}
    files |= {
        "checkpoints/rank0.bin": b"weights",
        "lock": b"",
        "profiles/rank0.npz": b"p",
        "traces/rank0.json.gz": b"t",
    }
    folder = part_folder(tmp_path / "run", files=files)
    (folder / "samples" / "rank5.jsonl").symlink_to(tmp_path / "run" / "lock")
    part = msgspec.structs.replace(PART, ranks=(0,))
    write_part(folder, part)
    archive.unpack(archive.pack(folder, [0]), tmp_path / "out")
    assert sorted(contents(tmp_path / "out")) == [
        "logs/rank0.out",
        "part.json",
        "profiles/rank0.npz",
        "samples/rank0.jsonl",
    ]


def test_secrets_are_not_packed(tmp_path):
    token = "hf_" + "Ab3dEf6hIj9lMn2pQr5tUv8xYz1bCd4e"
    files = {
        "logs/rank0.err": f"HF_TOKEN={token}\n".encode(),
        "facts/rank0.json": b'{"HF_TOKEN": "%b"}' % token.encode(),
    }
    folder = part_folder(tmp_path / "run", files=files)
    packed = gzip.decompress(archive.pack(folder, [0, 1]))
    assert token.encode() not in packed


def hostile(*entries, end=True, part=PART):
    """An archive with `part.json` and entries: (TarInfo, contents)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry, data in [(tarfile.TarInfo("part.json"), encode(part)), *entries]:
            entry.size = len(data) if entry.isreg() else 0
            tar.addfile(entry, io.BytesIO(data))
    data = buffer.getvalue()
    return gzip.compress(data if end else data.rstrip(b"\0"))


def entry(name, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info, b"data"


HOSTILE = {
    "absolute": hostile(entry("/etc/passwd")),
    "parent": hostile(entry("../outside")),
    "parent inside": hostile(entry("samples/../../outside")),
    "unknown folder": hostile(entry("checkpoints/rank0.bin")),
    "hidden": hostile(entry("logs/.profile")),
    "backslash": hostile(entry("logs\\x")),
    "deep": hostile(entry("logs/a/b")),
    "symlink": hostile(entry("logs/link", tarfile.SYMTYPE, "/etc")),
    "hard link": hostile(entry("logs/link", tarfile.LNKTYPE, "part.json")),
    "device": hostile(entry("logs/device", tarfile.CHRTYPE)),
    "pipe": hostile(entry("logs/pipe", tarfile.FIFOTYPE)),
    "folder": hostile(entry("logs", tarfile.DIRTYPE)),
    "sparse": hostile(entry("logs/sparse", tarfile.GNUTYPE_SPARSE)),
    "long name": hostile(entry("logs/" + "x" * 300)),
    "twice": hostile(entry("logs/a"), entry("logs/a")),
    "second part.json": hostile(entry("part.json")),
    "foreign rank": hostile(entry("samples/rank3.jsonl")),
    "no part": gzip.compress(b"\0" * 10240),
    "more behind the end": gzip.compress(gzip.decompress(hostile()) + b"x" * 100_000),
}
DAMAGED = {
    "not gzip": b"PK\x03\x04 not an archive",
    "empty": b"",
    "cut gzip": hostile(entry("logs/a"))[:-20],
    "cut tar": hostile(entry("logs/a"), end=False),
    "noise": gzip.compress(b"\x01" * 4096),
}


@pytest.mark.parametrize("name", [*HOSTILE, *DAMAGED])
def test_hostile_archive_is_refused_and_leaves_nothing(tmp_path, name):
    inside = tmp_path / "inside"
    inside.mkdir()
    with pytest.raises(DamagedFile if name in DAMAGED else BadFile):
        archive.unpack({**HOSTILE, **DAMAGED}[name], inside / "out")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["inside"]


def test_archive_of_another_program_has_a_next_step(tmp_path):
    folder = part_folder(tmp_path / "0badcafe")
    with tarfile.open(tmp_path / "part.tgz", "w:gz") as tar:
        tar.add(folder, "0badcafe")
    with pytest.raises(BadFile) as raised:
        archive.unpack((tmp_path / "part.tgz").read_bytes(), tmp_path / "out")
    assert raised.value.next_step


def test_sizes_and_numbers_of_files_are_limited(tmp_path, monkeypatch):
    many = hostile(*[entry(f"logs/{number}") for number in range(12)])
    monkeypatch.setattr(archive, "MAX_FILES", 10)
    with pytest.raises(FileTooLarge):
        archive.unpack(many, tmp_path / "out")
    monkeypatch.setattr(archive, "MAX_FILES", 100)
    monkeypatch.setattr(archive, "MAX_TOTAL_BYTES", len(encode(PART)) + 40)
    with pytest.raises(FileTooLarge):
        archive.unpack(many, tmp_path / "out")
    info, _ = entry("logs/bomb")
    info.size = 1 << 40  # a header that promises a terabyte
    bomb = gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 4096)
    with pytest.raises(FileTooLarge):
        archive.unpack(bomb, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_existing_folder_is_not_overwritten(tmp_path):
    folder = part_folder(tmp_path / "run")
    with pytest.raises(BadInput):
        archive.unpack(archive.pack(folder, [0, 1]), folder)


@given(data=st.binary(max_size=300))
def test_random_bytes_are_refused(tmp_path_factory, data):
    target = tmp_path_factory.mktemp("noise") / "out"
    with pytest.raises(BadFile):
        archive.unpack(gzip.compress(data), target)
    assert not target.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"job_id": ""}, {"job_id": "a/b"}, {"job_id": "x" * 200}, {"run": "../../x"}, {"node": ""}, {"node": "a\nb"},
        {"ranks": ()}, {"ranks": (1, 0)}, {"ranks": (0, 0)}, {"ranks": (0, 4)}, {"ranks": (-1,)}, {"world_size": 0},
        {"world_size": 1 << 60}, {"hosts": {9: "node"}},
    ],
)  # fmt: skip
def test_impossible_parts_are_refused(change):
    with pytest.raises(BadInput):
        msgspec.structs.replace(PART, **change)
    document = {**msgspec.to_builtins(PART, str_keys=True), "schema": "trainyard/part/1"}
    changed = {key: {str(k): v for k, v in value.items()} if key == "hosts" else value for key, value in change.items()}
    with pytest.raises(BadFile):
        decode(msgspec.json.encode({**document, **changed}), "part.json")


def test_part_is_read_as_written(tmp_path):
    part = msgspec.structs.replace(
        PART,
        hosts={0: "a", 3: "b"},
        clocks={0: ClockStamp(wall_ns=2**60, monotonic_ns=5)},
        run="0123abcd",
        code={"sha": "1"},
    )
    write_part(tmp_path, part)
    assert read_part(tmp_path) == part
