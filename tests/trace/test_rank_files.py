"""Damaged files among readable ones, and pipes: the others are analysed, missing ranks are named, nothing hangs."""

import errno
import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.refused import code_of, missing_values, refused
from tests.trace.readers.test_device_shares import several_devices
from tests.trace_maker import trace, write
from trainyard.cli.main import answer
from trainyard.errors import BadFile, BadInput, DamagedFile, MissingFile
from trainyard.trace.measure import measure_files
from trainyard.trace.rank_files import Unread, left_out, rank_files

DEMO = Path(__file__).parents[2] / "src" / "trainyard" / "data" / "demo"
RANKS = 5
HURT = 2


def document(rank: int, world: int = RANKS, stated: bool = True) -> bytes:
    events = trace(device=[("gemm", 7, 0, 100, 0), ("gemm", 7, 120, 200 + rank, 90)], marks=[("1", 0, 300)])
    if stated:
        events["distributedInfo"] = {"rank": rank, "world_size": world, "backend": "nccl"}
    return gzip.compress(json.dumps(events).encode())


def folder_of(tmp_path: Path, stated: bool = True) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(RANKS):
        (folder / f"rank{rank}.json.gz").write_bytes(document(rank, stated=stated))
    return folder


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing")


def _link_to_a_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "empty gzip": lambda path: path.write_bytes(gzip.compress(b"")),
    "cut in the header": lambda path: path.write_bytes(path.read_bytes()[:30]),
    "random": lambda path: path.write_bytes(bytes(range(1, 256)) * 20),
    "random in a gzip": lambda path: path.write_bytes(gzip.compress(bytes(range(128, 256)) * 20)),
    "gzip of random": lambda path: path.write_bytes(b"\x1f\x8b\x08\x00" + bytes(range(255, 1, -1)) * 20),
    "no gzip at all": lambda path: path.write_bytes(b"not a gzip file"),
    "zip without members": lambda path: path.write_bytes(b"PK\x03\x04" + bytes(40)),
    "no traceEvents": lambda path: path.write_bytes(gzip.compress(b'{"schemaVersion": 1}')),
    "no events": lambda path: path.write_bytes(gzip.compress(b'{"traceEvents": []}')),
    "a list": lambda path: path.write_bytes(gzip.compress(b"[1, 2]")),
    "a number": lambda path: path.write_bytes(b"12"),
    "a pipe": _fifo,
    "a socket": _socket,
    "a loop of links": _loop,
    "a link to nothing": _link_to_nothing,
    "a link to a device": _link_to_a_device,
}
INCOMPLETE = ("empty", "empty gzip", "cut in the header", "gzip of random", "zip without members")
"""Damages that leave a recognisable but incomplete trace; the others are not recognised as traces."""


@pytest.fixture(params=DAMAGES)
def hurt(request, tmp_path) -> Path:
    """A folder of five ranks, the third of which is damaged."""
    folder = folder_of(tmp_path)
    DAMAGES[request.param](folder / f"rank{HURT}.json.gz")
    return folder


def ledgers(out: str) -> list[list[int]]:
    return [ledger["scope"]["ranks"] for ledger in json.loads(out)["ledgers"][:-1]]


def test_a_damaged_rank_is_left_out_and_named(hurt, capsys):
    assert answer(["trace", str(hurt), "--json"]) == 0
    printed = capsys.readouterr()
    assert ledgers(printed.out) == [[0], [1], [3], [4]]
    assert "1 of 5 files" in printed.err
    assert "rank2.json.gz" in printed.err
    assert "rank 2 is missing" in printed.err


def test_the_headline_counts_the_ranks_that_were_read(hurt, capsys):
    assert answer(["trace", str(hurt)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "4 of 5 ranks" in out
    assert "5 of 5" not in out
    assert "rank2.json.gz" in out


def test_strict_refuses_a_damaged_rank(hurt, capsys):
    for command in (["trace", "--json"], ["report", "--json"]):
        assert answer([*command, str(hurt), "--strict"]) == 2
        assert "rank2.json.gz" in capsys.readouterr().err
    assert answer(["diff", str(hurt), str(DEMO), "--strict"]) == 2


def test_the_damaged_file_alone_is_an_error(hurt, monkeypatch, request):
    monkeypatch.setenv("TRAINYARD_PIPE_TIMEOUT_S", "0.1")
    if not (hurt / f"rank{HURT}.json.gz").is_char_device():  # /dev/zero never ends
        assert answer(["trace", str(hurt / f"rank{HURT}.json.gz")]) == 2
    kind = DamagedFile if request.node.callspec.params["hurt"] in INCOMPLETE else BadFile
    with refused(kind, f"rank{HURT}.json.gz"):
        measure_files([hurt / f"rank{HURT}.json.gz"])


@pytest.mark.parametrize("engine", ["auto", "serial", "processes"])
def test_every_engine_leaves_out_the_same_ranks(engine, tmp_path):
    folder = folder_of(tmp_path)
    (folder / "rank1.json.gz").write_bytes(b"")
    (folder / "rank4.json.gz").write_bytes(b"\x80\x81")
    measured = measure_files([folder], engine=engine)
    assert [ledger.scope.ranks for ledger in measured.by_rank] == [(0,), (2,), (3,)]
    assert [file.path.name for file in measured.unread] == ["rank1.json.gz", "rank4.json.gz"]
    assert measured.world == RANKS


@pytest.mark.parametrize("engine", ["auto", "serial"])
def test_ranks_without_a_number_keep_their_order(engine, tmp_path):
    folder = folder_of(tmp_path, stated=False)
    (folder / "rank1.json.gz").write_bytes(b"")
    measured = measure_files([folder], engine=engine)
    assert [ledger.scope.ranks for ledger in measured.by_rank] == [(0,), (2,), (3,), (4,)]
    assert "rank 1 is missing" in measured.left_out


def test_files_given_separately_follow_the_same_rule(tmp_path):
    folder = folder_of(tmp_path)
    (folder / "rank1.json.gz").write_bytes(b"")
    measured = measure_files(sorted(folder.iterdir()))
    assert [file.path.name for file in measured.unread] == ["rank1.json.gz"]
    with refused(MissingFile, folder / "rank9.json.gz"):
        measure_files([*sorted(folder.iterdir()), folder / "rank9.json.gz"])


def test_a_folder_of_damaged_files_is_an_error_with_reasons(tmp_path, capsys):
    folder = folder_of(tmp_path)
    for path in folder.iterdir():
        path.write_bytes(b"")
    assert answer(["trace", str(folder)]) == 2
    printed = capsys.readouterr().err
    assert code_of(printed) == "bad-file"
    assert missing_values(printed, 5, "rank0.json.gz", "(0 bytes)") == []


def test_a_file_without_permission_is_left_out(tmp_path, monkeypatch):
    folder = folder_of(tmp_path)
    opened = Path.open

    def refuse(path, *args, **options):
        if path.name == "rank2.json.gz":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *args, **options)

    monkeypatch.setattr(Path, "open", refuse)
    measured = measure_files([folder])
    assert [ledger.scope.ranks for ledger in measured.by_rank] == [(0,), (1,), (3,), (4,)]
    assert "Permission denied" in measured.left_out


def test_a_file_cut_short_is_analysed_unless_strict(tmp_path, capsys):
    folder = folder_of(tmp_path)
    path = folder / "rank1.json.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-120]))
    assert answer(["trace", str(folder), "--json"]) == 0
    assert len(ledgers(capsys.readouterr().out)) == RANKS
    assert answer(["trace", str(folder), "--strict"]) == 2
    assert "cut short: rank1.json.gz" in capsys.readouterr().err


def test_other_files_of_a_folder_are_not_ranks(tmp_path):
    folder = folder_of(tmp_path)
    (folder / "run.json").write_text('{"schema": "trainyard/run/3"}')
    (folder / "model.pb").write_bytes(b"\x00\x01")
    (folder / "rank7.json").mkdir()
    files = rank_files([folder])
    assert [file.name for file in files if isinstance(file, Path)] == [f"rank{rank}.json.gz" for rank in range(RANKS)]
    assert len(files) == RANKS


def test_a_comparison_reports_missing_ranks(hurt, tmp_path, capsys):
    whole = tmp_path / "whole"
    shutil.copytree(hurt, whole, ignore=lambda *_: [f"rank{HURT}.json.gz"])
    (whole / f"rank{HURT}.json.gz").write_bytes(document(HURT))
    assert answer(["diff", str(hurt), str(whole)]) == 0
    assert "rank 2 is missing" in " ".join(capsys.readouterr().out.split())


def test_a_file_named_twice_is_refused(tmp_path):
    folder = folder_of(tmp_path)
    (folder / "again.json.gz").symlink_to("rank0.json.gz")
    with refused(BadInput, folder / "rank0.json.gz"):
        rank_files([folder])


# --- pipes ------------------------------------------------------------------------------------------------------------

SILENT = [
    ["trace", "PIPE"],
    ["trace", "PIPE", "--json", "--engine", "serial"],
    ["diff", "PIPE", str(DEMO)],
    ["diff", str(DEMO), "PIPE"],
    ["report", "PIPE"],
    ["plan", "PIPE", "--machine", "a100", "--devices", "8"],
    ["plan", "gpt2-xl", "--machine", "PIPE", "--devices", "8"],
    ["plan", "check", "PIPE", "--machine", "a100"],
    ["run", "PIPE"],
    ["numerics", "parity", "PIPE"],
    ["history", "--series", "PIPE"],
    ["history", "job", "--accepted", "PIPE"],
    ["gate", "run", "PIPE", "--base", "HEAD"],
    ["gate", "convergence", "PIPE", "--base", "x"],
    ["gate", "convergence", "x", "--golden", "PIPE"],
    ["probe", "fit", "x", "--machine", "PIPE"],
]


@pytest.mark.parametrize("args", SILENT, ids=" ".join)
def test_a_silent_pipe_ends_in_an_error(args, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRAINYARD_PIPE_TIMEOUT_S", "0.1")
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    assert answer([str(pipe) if arg == "PIPE" else arg for arg in args]) == 2
    printed = capsys.readouterr().err
    assert "0.1 s" in printed
    assert str(pipe) in printed


def test_the_time_limit_must_be_a_number(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    for text in ("soon", "-1", "0", "nan", "inf"):
        monkeypatch.setenv("TRAINYARD_PIPE_TIMEOUT_S", text)
        assert answer(["trace", str(tmp_path / "pipe")]) == 2


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess:
    env = {**os.environ, "T": f"{sys.executable} -m trainyard.cli.main", "TRAINYARD_PIPE_TIMEOUT_S": "30"}
    return subprocess.run(
        ["bash", "-c", command], cwd=cwd, env=env, timeout=120, check=False, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "command",
    [
        "$T trace <(gzip -dc {path}) --json",
        "$T trace <(cat {path}) --json",
        "$T trace --json /dev/stdin < {path}",
        "gzip -dc {path} | $T trace /dev/stdin --json",
        "(gzip -dc {path} | head -c 100000; sleep 1; gzip -dc {path} | tail -c +100001) | $T trace /dev/stdin --json",
    ],
)
def test_a_pipe_gives_the_figures_of_its_file(command, tmp_path, capsys):
    path = DEMO / "rank0.json.gz"
    done = shell(command.format(path=path), tmp_path)
    assert done.returncode == 0, done.stderr
    assert answer(["trace", str(path), "--json"]) == 0
    walls = [
        [ledger["wall_ns"] for ledger in json.loads(text)["ledgers"]] for text in (done.stdout, capsys.readouterr().out)
    ]
    assert walls[0] == walls[1]


def test_a_configuration_may_be_a_pipe(tmp_path):
    done = shell("$T plan <(echo '{}') --machine a100 --devices 1", tmp_path)
    assert done.returncode == 2
    assert "/dev/fd/" in done.stderr
    assert "trainyard-pipe" not in done.stderr


def test_a_damaged_pipe_is_named_as_it_was_given(tmp_path):
    done = shell("$T trace <(true)", tmp_path)
    assert done.returncode == 2
    assert "/dev/fd/" in done.stderr
    assert "trainyard-pipe" not in done.stderr


def test_an_absurd_world_size_lists_only_the_first_missing_ranks():
    message = left_out([Unread(Path("rank1.json"), "empty")], 2, [0, 5], 2**31)
    assert missing_values(message, "ranks 1, 2, 3, 4 and 2,147,483,642 more", f"{2**31:,}") == []


@pytest.mark.parametrize("engine", ["auto", "serial"])
def test_files_are_counted_as_files_and_ranks_as_ranks(tmp_path, engine):
    """Two files with two ranks each, and one that cannot be read."""
    paths = [write(tmp_path, several_devices([2 * rank, 2 * rank + 1]), f"part{rank}.json") for rank in range(2)]
    paths.append(tmp_path / "part2.json")
    paths[2].write_bytes(b"")
    measured = measure_files(paths, "all", engine=engine)
    assert missing_values(measured.left_out, "1 of 3 files", "4 of 5 ranks") == []
    with refused(BadFile, "1 of 3 files"):
        measure_files(paths, "all", engine=engine, strict=True)


@pytest.mark.parametrize("engine", ["auto", "serial"])
def test_a_cut_file_with_two_ranks_counts_once(tmp_path, engine):
    paths = [write(tmp_path, several_devices([2 * rank, 2 * rank + 1]), f"part{rank}.json") for rank in range(2)]
    document = json.dumps(several_devices([2, 3]))
    paths[1].write_text(document[: document.index(', "displayTimeUnit"')][:-3])
    with refused(DamagedFile, "1 of 2 files", "part1.json"):
        measure_files(paths, "all", engine=engine, strict=True)


def test_a_file_read_in_part_is_named_by_diff_and_json(tmp_path, capsys):
    whole = folder_of(tmp_path)
    folder = shutil.copytree(whole, tmp_path / "cut")
    path = folder / "rank1.json.gz"
    path.write_bytes(path.read_bytes()[:-60])
    assert answer(["trace", str(folder), "--json"]) == 0
    assert "rank1.json.gz" in capsys.readouterr().err
    assert answer(["diff", str(whole), str(folder), "--json"]) == 0
    caveats = json.loads(capsys.readouterr().out)["caveats"]
    assert any("rank1.json.gz" in caveat for caveat in caveats)
