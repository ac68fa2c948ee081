"""Damaged, hostile and odd trace files: an answer or one clear error, nothing lost without a word, never a crash."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.refused import refused
from tests.trace_maker import trace, write
from trainyard.cli.main import answer
from trainyard.errors import BadFile
from trainyard.trace.measure import measure, read

DEVICE = [("gemm", 7, 0, 100, 0), ("elementwise_kernel", 7, 120, 200, 90), ("ncclDevKernel_AllReduce", 8, 150, 260, 95)]
WALL = 260
GOOD = trace(device=DEVICE, marks=[("1", 0, 300)])


class Answer(NamedTuple):
    code: int
    out: str
    err: str


def ask(*args: object) -> Answer:
    """What `trainyard trace` prints and its exit code, which is 0 or 2 whatever it was given."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = answer(["trace", *map(str, args)])
    result = Answer(code, *(text(stream) for stream in (out, err)))
    assert code in (0, 2), result
    assert "Traceback" not in result.err
    return result


def text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def wall(result: Answer) -> int:
    assert result.code == 0, result.err
    return json.loads(result.out)["ledgers"][-1]["wall_ns"]


def rows(path: Path) -> int:
    return sum(len(events.work) + len(events.host) for events in read([path]))


def notes(*paths: Path) -> str:
    return " ".join(measure(read(paths)).notes)


@pytest.fixture(params=["compiled", "pure"])
def scanner(request, monkeypatch):
    """Both ways to read a file."""
    monkeypatch.delenv("TRAINYARD_PURE", raising=False)
    if request.param == "pure":
        monkeypatch.setenv("TRAINYARD_PURE", "1")
    return request.param


@pytest.fixture
def kept(tmp_path):
    """`kept(document)` -> the wall time booked of it; `kept(text)` of a file with that text."""

    def of(document) -> int:
        path = tmp_path / "t.json"
        path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
        return wall(ask(path, "--json", "--window", "all"))

    return of


# --- cut short -------------------------------------------------------------------------------------------------------


def ends_of_events(text: str) -> list[int]:
    """Where each event of a file of ours ends."""
    decoder, position, ends = json.JSONDecoder(), text.index("["), []
    while text[position] != "]":
        begin = text.index("{", position)
        position = decoder.raw_decode(text, begin)[1]
        ends.append(position)
        position += len(text[position:]) - len(text[position:].lstrip())
    return ends


@pytest.mark.parametrize("indent", [None, 1])
def test_json_cut_anywhere_keeps_every_whole_event_and_says_so(scanner, indent, tmp_path):
    text = json.dumps(GOOD, indent=indent)
    ends, path = ends_of_events(text), tmp_path / "t.json"
    for cut in [*range(1, len(text), 7), *ends, *(end - 1 for end in ends)]:
        path.write_text(text[:cut])
        whole = sum(end <= cut for end in ends)
        if not whole:
            with refused(BadFile, path):
                read([path])
            continue
        assert rows(path) == whole
        assert "The complete events are analysed" in notes(path), cut


def many(kernels: int = 3000) -> dict:
    names = [f"kernel_{hashlib.sha256(bytes([number % 256, number // 256])).hexdigest()}" for number in range(kernels)]
    return trace(device=[(name, 7, 100 * number, 100 * number + 60, 100 * number) for number, name in enumerate(names)])


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.9, 0.999])
def test_gzip_cut_short_keeps_what_was_whole_and_says_so(scanner, share, tmp_path):
    packed = gzip.compress(json.dumps(many()).encode())
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed[: int(len(packed) * share)])
    result = ask(path, "--json", "--window", "all")
    if result.code == 2:
        assert share < 0.1
        assert "gzip stream ends early" in result.err
        return
    assert "gzip stream ends early" in notes(path)
    assert rows(path) > 0.8 * share * 6000


@pytest.mark.parametrize("damage", ["checksum", "middle", "trailing garbage"])
def test_a_damaged_gzip_is_not_passed_over(scanner, damage, tmp_path):
    packed = bytearray(gzip.compress(json.dumps(many()).encode()))
    if damage == "checksum":
        packed[-6] ^= 0xFF
    elif damage == "middle":
        packed[len(packed) // 2 : len(packed) // 2 + 64] = bytes(64)
    else:
        packed += b"no gzip at all"
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed)
    if ask(path, "--json").code == 0:
        assert "gzip" in notes(path)


def test_the_loss_is_printed_to_the_user(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(GOOD)[:-100])
    result = ask(path)
    assert result.code == 0
    assert "The complete events are analysed" in " ".join(result.out.split())


def test_joined_gzip_members_are_one_file(scanner, tmp_path):
    text = json.dumps(GOOD).encode()
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(text[:333]) + gzip.compress(text[333:]) + bytes(512))
    assert wall(ask(path, "--json", "--window", "all")) == WALL


# --- odd numbers -----------------------------------------------------------------------------------------------------

NO_NUMBERS = ["NaN", "Infinity", "-Infinity", "nan", "1e999999", "--1", "0x10"]


@pytest.mark.parametrize("number", NO_NUMBERS)
@pytest.mark.parametrize("field", ["ts", "dur", "tid", "est. achieved occupancy %", "bytes", "correlation"])
def test_a_number_that_is_none_costs_its_event_at_most(scanner, number, field, kept):
    document = trace(device=DEVICE)
    document["traceEvents"][0]["args"] |= {"est. achieved occupancy %": 5, "bytes": 5}
    event = document["traceEvents"][0]
    (event if field in event else event["args"])[field] = "HERE"
    assert kept(json.dumps(document).replace('"HERE"', number).encode()) in (WALL, WALL - 120)


@pytest.mark.parametrize("number", ["NaN", "Infinity"])
def test_no_number_in_the_header_costs_that_field(scanner, number, kept):
    head = f'{{"baseTimeNanoseconds": {number}, "trainyard": {number}, '
    assert kept((head + json.dumps(GOOD)[1:]).encode()) == WALL


LENGTHS = [-0.001, -5, -1e300, 1e300, 2**63, 2**80, 9.3e15, "1e400", "", "a", None, [], {}, True]


@pytest.mark.parametrize("length", LENGTHS, ids=str)
@pytest.mark.parametrize("field", ["dur", "ts"])
def test_invalid_times_drop_the_event_and_are_counted(scanner, field, length, tmp_path):
    document = trace(device=DEVICE)
    document["traceEvents"][0][field] = length
    path = write(tmp_path, document)
    assert wall(ask(path, "--json", "--window", "all")) >= 140
    events = read([path])
    if sum(len(rank.work) for rank in events) < 3:
        assert "1 events with an unreadable or negative time were left out" in notes(path)


@pytest.mark.parametrize("mark", [[], [("1", 5, 5)], [("1", 0, 9)]], ids=["no mark", "empty mark", "mark"])
@pytest.mark.parametrize(
    "device", [[("gemm", 7, 5, 5, 0)], [("gemm", 7, 5, 5, None)], []], ids=["launched", "bare", "none"]
)
def test_a_trace_without_any_length_is_no_trouble(scanner, device, mark, tmp_path):
    path = write(tmp_path, trace(device=device, host=[("aten::mm", 100, 5, 5, "cpu_op")], marks=mark))
    for window in ("steps", "all"):
        ask(path, "--window", window)


def test_a_base_that_overflows_is_left_out(scanner, kept):
    for base in (2**62, -(2**62), 2**63, 2**200, "9" * 50):
        assert kept(GOOD | {"baseTimeNanoseconds": base}) == WALL


# --- odd text --------------------------------------------------------------------------------------------------------

TEXTS = {
    "control characters": b"ge\x00\x01\x1b[31m\x07mm",
    "a line break": b"ge\nmm\r\t",
    "invalid utf-8": b"ge\xff\xfe\xc3(mm",
    "a surrogate in utf-8": b"ge\xed\xa0\x80mm",
    "a lone surrogate": rb"ge\ud800mm",
    "a swapped pair": rb"ge\udc00\ud800mm",
    "an escape that is none": rb"ge\qmm",
    "a short escape": rb"ge\u12mm",
}


@pytest.mark.parametrize("kind", TEXTS)
def test_odd_text_in_a_name_costs_the_event_at_most(scanner, kind, tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(json.dumps(trace(device=DEVICE)).encode().replace(b'"gemm"', b'"' + TEXTS[kind] + b'"'))
    result = ask(path, "--json", "--window", "all")
    if wall(result) != WALL:
        assert "1 entries of t.json are not readable events" in notes(path)


@pytest.mark.parametrize("kind", TEXTS)
def test_odd_text_is_no_trouble_where_nobody_reads_it(scanner, kind, kept):
    text = json.dumps(GOOD | {"traceName": "HERE"}).encode()
    assert kept(text.replace(b"HERE", TEXTS[kind])) == WALL


def test_last_value_of_duplicate_key_wins(scanner, kept):
    text = json.dumps(GOOD).encode()
    assert kept(text.replace(b'"name": "gemm"', b'"name": 5, "name": "gemm"')) == WALL
    assert kept(text.replace(b'"dur": 0.1,', b'"dur": 77.0, "dur": 0.1,')) == WALL
    assert kept(text.replace(b'"correlation": 1', b'"correlation": 9, "correlation": 1')) == WALL


def test_the_list_of_events_may_stand_twice(scanner, kept):
    text = json.dumps(trace(device=DEVICE[:1]))[:-1] + ", " + json.dumps(trace(device=DEVICE[1:]))[1:]
    assert kept(text.encode()) == WALL


NO_EVENTS = {
    "an empty list": b"[]",
    "an empty object": b"{}",
    "null": b'{"traceEvents": null}',
    "an object": b'{"traceEvents": {"a": 1}}',
    "a text": b'{"traceEvents": "x"}',
    "rubbish": b'[1, null, "x", [], {}, [[[{}]]], true, -0.0]',
    "names only": b'[{"ph": "X"}, {"cat": "kernel"}, {"ph": "X", "cat": "kernel"}]',
    "no json": b"\x89PNG\r\n\x1a\n",
    "a number": b"12",
    "a byte order mark": b"\xef\xbb\xbf",
    "utf-16": json.dumps(GOOD).encode("utf-16"),
    "brackets": b"[" * 100_000,
    "braces": b'{"a":' * 100_000,
}


@pytest.mark.parametrize("kind", NO_EVENTS)
def test_a_file_without_events_is_one_clear_error(scanner, kind, tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(NO_EVENTS[kind])
    result = ask(path)
    assert result.code == 2
    assert "t.json" in result.err
    assert len(result.err) < 1000


def test_rubbish_between_events_is_counted_and_costs_nothing_else(scanner, tmp_path):
    path = tmp_path / "t.json"
    rubbish = [1, None, "x", [], [[{}]], True, "]", "}", '"', {"ph": 5, "cat": []}]
    document = trace(device=DEVICE)
    events = document["traceEvents"]
    document["traceEvents"] = [event for pair in zip(events * 2, rubbish) for event in reversed(pair)][
        : 2 * len(events)
    ]
    path.write_text(json.dumps(document))
    assert wall(ask(path, "--json", "--window", "all")) == WALL
    assert "are not readable events" in notes(path)


# --- odd fields ------------------------------------------------------------------------------------------------------

ODD = ["x", "", 5, 1.5, -1, 2**70, True, None, [], {}, [1, 2], ["a"], [{}], [{"id": "a"}], {"a": {"b": [1]}}]


@pytest.mark.parametrize("value", ODD, ids=str)
@pytest.mark.parametrize(
    "field", ["deviceProperties", "distributedInfo", "baseTimeNanoseconds", "host_name", "displayTimeUnit", "INFO"]
)
def test_a_header_field_of_another_kind_is_left_out(scanner, field, value, kept):
    assert kept(GOOD | {field: value}) == WALL


@pytest.mark.parametrize(("field", "value"), [("deviceProperties", "x"), ("distributedInfo", [1]), ("host_name", 5)])
def test_a_field_left_out_is_named(scanner, field, value, tmp_path):
    assert f"{field} is not in Kineto's format" in notes(write(tmp_path, GOOD | {field: value}))


@pytest.mark.parametrize("value", ODD, ids=str)
@pytest.mark.parametrize("field", ["rank", "world_size", "backend", "pg_config", "pg_count"])
def test_a_job_described_oddly_is_still_read(scanner, field, value, kept):
    known = {"backend": "nccl", "rank": 0, "world_size": 2, "pg_config": []}
    assert kept(GOOD | {"distributedInfo": known | {field: value}}) == WALL


@pytest.mark.parametrize("value", ODD, ids=str)
@pytest.mark.parametrize("field", ["pg_name", "pg_desc", "pg_size", "ranks", "backend_config"])
def test_a_group_described_oddly_is_still_read(scanner, field, value, kept):
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]} | {field: value}
    document = trace(device=[*DEVICE[:2], (*DEVICE[2], {"Collective name": "allreduce", "Process Group Name": "0"})])
    info = {"backend": "nccl", "rank": 0, "world_size": 2, "pg_config": [group]}
    assert kept(document | {"distributedInfo": info}) == WALL


@pytest.mark.parametrize("value", [*ODD, "[0, 1", "[0, 1, ..., 7]", 2**63 - 1, -(2**63)], ids=str)
@pytest.mark.parametrize(
    "field",
    [
        "device", "stream", "correlation", "External id", "bytes", "est. achieved occupancy %", "Collective name",
        "In msg nelems", "Out msg nelems", "dtype", "Group size", "Seq", "Process Group Name", "Process Group Ranks",
        "Process Group Description", "Src Rank", "Dst Rank",
    ],
)  # fmt: skip
def test_odd_args_of_a_kernel_cost_the_field_at_most(scanner, field, value, kept):
    document = trace(device=[*DEVICE[:2], (*DEVICE[2], {"Collective name": "allreduce"})], rank=0)
    document["traceEvents"][-2]["args"][field] = value
    # On device 5 the kernel is a rank of its own: the mean of 200 and 110 ns.
    is_on_second_device = field == "device" and value is not True and value == 5
    assert kept(document) == (155 if is_on_second_device else WALL)


@pytest.mark.parametrize("value", ODD, ids=str)
@pytest.mark.parametrize("field", ["ph", "cat", "name", "pid", "tid", "args", "ts", "dur", "id", "s"])
def test_odd_fields_of_an_event_cost_the_event_at_most(scanner, field, value, kept):
    document = trace(device=DEVICE, host=[("aten::mm", 100, 0, 20, "cpu_op")])
    for index in range(2):
        document["traceEvents"][index][field] = value
    assert kept(document) >= 140


@pytest.mark.parametrize("value", [*ODD, [[]], [[1, [2, [3]]]], ["x" * 10_000], [[2**80]]], ids=lambda v: str(v)[:20])
@pytest.mark.parametrize("field", ["Input Dims", "Input type", "Concrete Inputs", "Sequence number", "Fwd thread id"])
def test_odd_args_of_an_op_cost_the_field_at_most(scanner, field, value, kept):
    op = ("aten::mm", 100, 0, 20, "cpu_op", {"Input Dims": [[4, 4], [4, 4]], "Input type": ["float"] * 2, field: value})
    assert kept(trace(device=DEVICE, host=[op])) == WALL


def test_args_nested_without_end_cost_what_follows_at_most(scanner, tmp_path):
    deep = b'{"a":' * 50_000 + b"1" + b"}" * 50_000
    before, _, last = json.dumps(trace(device=DEVICE)).encode().rpartition(b'"args": {')
    path = tmp_path / "t.json"
    path.write_bytes(before + b'"deep": ' + deep + b', "args": {' + last)
    assert wall(ask(path, "--json", "--window", "all")) == WALL
    assert rows(path) == 6 or "left out" in notes(path)


# --- several files ---------------------------------------------------------------------------------------------------


def test_two_files_of_one_rank_are_refused_by_name(tmp_path):
    files = [write(tmp_path, trace(device=DEVICE, rank=0, world=2), f"{name}.json") for name in "ab"]
    result = ask(*files)
    assert result.code == 2
    assert "a.json and b.json are both from rank 0" in result.err


def test_files_of_differently_large_jobs_are_refused_or_remarked_on(tmp_path):
    files = [
        write(tmp_path, trace(device=DEVICE, rank=rank, world=world), f"{rank}.json")
        for rank, world in enumerate((2, 4, 8))
    ]
    result = ask(*files, "--json")
    assert "world" in (result.err if result.code else notes(*files)).lower()


def test_a_rank_beyond_its_world_is_refused_or_remarked_on(tmp_path):
    files = [write(tmp_path, trace(device=DEVICE, rank=rank, world=2), f"{rank}.json") for rank in (0, 7)]
    result = ask(*files, "--json")
    assert "rank 7" in (result.err if result.code else notes(*files))


def test_one_damaged_rank_is_named(tmp_path):
    files = [write(tmp_path, trace(device=DEVICE, rank=rank, world=3), f"rank{rank}.json") for rank in range(3)]
    files[1].write_bytes(b"")
    result = ask(tmp_path)
    assert result.code == 0
    assert "rank1.json (the file is empty (0 bytes))" in result.out
    strict = ask(tmp_path, "--strict")
    assert strict.code == 2
    assert "rank1.json" in strict.err


def test_a_folder_a_pipe_and_a_file_without_permission_are_clear_errors(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder.json").mkdir()
    assert ask(tmp_path / "empty").code == 2
    assert ask(tmp_path / "folder.json").code == 2
    assert ask(tmp_path / "nowhere.json").code == 2
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    assert ask(tmp_path / "loop.json").code == 2


# --- archives and bombs ----------------------------------------------------------------------------------------------


def test_a_zip_is_read_like_what_it_holds(scanner, tmp_path):
    path = tmp_path / "t.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("readme.txt", "not this")
        archive.writestr("../../rank0.json", json.dumps(trace(device=DEVICE, rank=0, world=2)))
        archive.writestr("rank1.json.gz", gzip.compress(json.dumps(trace(device=DEVICE, rank=1, world=2)).encode()))
    ledgers = json.loads(ask(path, "--json", "--window", "all").out)["ledgers"]
    assert [ledger["wall_ns"] for ledger in ledgers] == [WALL] * 3
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("damage", ["cut", "no json", "locked", "bytes"])
def test_a_damaged_zip_is_one_clear_error_or_a_stated_loss(damage, tmp_path):
    path = tmp_path / "t.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("t.json", "no trace" if damage == "no json" else json.dumps(many(200)))
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[-40:]
    elif damage == "locked":  # the flag of a password, in both headers
        data[6] |= 1
        data[data.rindex(b"PK\x01\x02") + 8] |= 1
    elif damage == "bytes":
        data[400:500] = bytes(100)
    path.write_bytes(data)
    if ask(path, "--json").code == 0:
        assert "damaged" in notes(path)


def bomb(folder: Path, inside: bytes, times: int) -> Path:
    path = folder / "bomb.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"traceEvents": [')
        for _ in range(times):
            file.write(inside)
    return path


BOUNDED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (90, 90))
from trainyard.cli.main import main
try:
    main()
finally:
    # Not the kernel's account of children: that begins at the size of the process that started them.
    with open("/proc/self/status") as status:
        print(next(line for line in status if line.startswith("VmHWM")), file=sys.stderr)
"""
INSIDE = [b" ", b"1,", b"1 ", b"[", b"]{", b"}", b"{},", b'{"a":', b'{"ph": "X"},', b'"', b'{"name": "', b'\\"']


BOMBS = [*((inside, []) for inside in INSIDE), *((inside, ["--limit", "8MiB"]) for inside in (b" ", b"1,", b"{},"))]
"""What the text repeats, and options."""


@pytest.mark.parametrize(("inside", "limit"), BOMBS, ids=repr)
@pytest.mark.parametrize("pure", ["", "1"], ids=["compiled", "pure"])
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is asked of Linux")
def test_zip_bomb_is_rejected_in_seconds_with_little_memory(inside, pure, limit, tmp_path):
    """80 MB of text in a hundredth of it: nothing may be looked at again with each piece (hours), or be held whole."""
    path = bomb(tmp_path, inside * ((4 << 20) // len(inside)), 20)
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, "trace", str(path), *limit],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRAINYARD_PURE": pure},
    )
    messages = done.stderr
    assert done.returncode == 2, messages
    assert int(re.search(r"VmHWM:\s+(\d+) kB", messages)[1]) < 400_000
    if limit:
        assert "the limit of 8.0 MiB" in messages


# --- hostile names ---------------------------------------------------------------------------------------------------

HOSTILE = [
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred",
    "\u009b31mred",
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "[bold red]markup[/] [link=http://x]y[/link]",
    "{{7*7}} ${7*7} %s %n %(x)s",
    "=HYPERLINK(1)",
    "\u202egnp.exe",
    "a" * 1_000_000,
    "\ud800",
    "\x00",
    "a\r\nb",
    "",
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_reach_neither_the_terminal_nor_the_page(name, tmp_path):
    hostile = {"Process Group Description": f"mesh_{name}"[:5000], "Collective name": name[:5000]}
    document = trace(
        device=[(name, 7, 0, 100, 0), (*DEVICE[2][:5], hostile)],
        host=[(name, 100, 0, 20, "cpu_op"), (f"nn.Module: {name}", 100, 0, 30, "python_function")],
        marks=[(name[:50], 0, 300)],
        host_name=name[:5000],
    )
    document["deviceProperties"] = [{"id": 0, "name": name}]
    path, page = write(tmp_path, document), tmp_path / "page.html"
    result = ask(path, "--page", page)
    assert result.code == 0, result.err
    assert not {char for char in result.out + result.err if char != "\n" and not char.isprintable()}
    assert len(result.out) < 100_000
    text = page.read_text("utf-8")
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    json.loads(ask(path, "--json").out)


def test_a_hostile_file_name_does_not_steer_the_terminal(tmp_path):
    path = tmp_path / "\x1b[31mred\x07.json"
    path.write_bytes(b"{}")
    result = ask(path)
    assert result.code == 2
    assert "\x1b" not in result.err
    path.write_text(json.dumps(GOOD))
    assert "\x1b" not in ask(path).out
