"""Reading flight records: forms, versions, missing fields, hostile and damaged files."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hangs.nccl_job import STACKS, Job, Slot, dumps_of, encode
from trainyard.errors import BadFile, BadInput, DamagedFile, FileTooLarge, MissingFile
from trainyard.hangs.decode_record import SCHEMA, decode_record
from trainyard.hangs.find_culprit import find_culprit
from trainyard.hangs.flight_record import COMPLETED, SCHEDULED, STARTED
from trainyard.hangs.load_records import load_records, rank_of_name
from trainyard.hangs.stack_text import parse_stack

JOB = Job(3, [(0, 1, 2)], [Slot("all_reduce", 0, 64)], "host_stuck", 1, 2, 0)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
KEYS = (
    "record_id pg_id process_group collective_seq_id p2p_seq_id profiling_name state frames input_sizes output_sizes "
    "input_dtypes time_created_ns retired is_p2p"
)
ENTRY = st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS.split(), PLAIN))


def write(folder: Path, form: str = "pickle") -> None:
    for rank, document in dumps_of(JOB).items():
        (folder / f"nccl_trace_rank_{rank}").write_bytes(encode(document, form))


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_both_forms_hold_the_same_record(form: str) -> None:
    document = dumps_of(JOB)[0]
    record = decode_record(encode(document, form), "x", 0)
    assert [operation.sequence for operation in record.operations] == [1, 2, 3]
    assert [operation.state for operation in record.operations] == [COMPLETED, COMPLETED, STARTED]
    assert record.groups["0"].ranks == (0, 1, 2)
    assert record.status["0"] == (3, 3, 2)
    location = record.operations[0].location
    assert location is not None
    assert (location.file, location.line) == ("/job/train.py", 10)


@given(st.lists(ENTRY | PLAIN, max_size=6), PLAIN, PLAIN)
def test_any_plain_document_is_read_or_refused(entries: list[Any], config: Any, status: Any) -> None:
    document = {"version": "2.5", "entries": entries, "pg_config": config, "pg_status": status}
    record = decode_record(json.dumps(document).encode(), "x", 0)
    assert len(record.operations) + record.skipped == len(entries)
    find_culprit([record, record._replace(rank=1)])


@given(st.binary(max_size=60), st.integers(0, 2000))
def test_damaged_pickles_raise_bad_file(noise: bytes, cut: int) -> None:
    data = encode(dumps_of(JOB)[0], "pickle")
    for damaged in (data[: cut % len(data)] + noise, b"\x80\x02" + noise):
        try:
            decode_record(damaged, "x", 0)
        except BadFile:
            continue


def test_hostile_pickle_is_not_executed(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "executed"),)

    with pytest.raises(BadFile):
        decode_record(pickle.dumps({"version": "2.4", "entries": [Hostile()]}), "x", 0)
    assert not (tmp_path / "executed").exists()


def test_shared_lists_are_decoded_once() -> None:
    frames = [{"name": "f", "filename": "a.py", "line": 1}] * 64
    sizes = [[1]] * 4096
    entries = [{"frames": frames, "input_sizes": sizes, "record_id": number} for number in range(5000)]
    record = decode_record(pickle.dumps({"version": "2.4", "entries": entries}, 2), "x", 0)
    assert len({id(operation.stack) for operation in record.operations}) == 1


def test_gloo_entries_are_ended_when_retired() -> None:
    entries = [
        {"record_id": 0, "profiling_name": "gloo:all_reduce", "state": "scheduled", "retired": True},
        {"record_id": 1, "profiling_name": "gloo:all_reduce", "state": "scheduled", "retired": False},
    ]
    record = decode_record(json.dumps({"version": "2.10", "entries": entries}).encode(), "x", 0)
    assert [operation.state for operation in record.operations] == [COMPLETED, SCHEDULED]


def test_early_version_with_one_sequence_number() -> None:
    entry = {"record_id": 0, "pg_id": 3, "seq_id": 7, "profiling_name": "nccl:recv 1<-0", "state": "started"}
    (operation,) = decode_record(json.dumps({"version": "1.5", "entries": [entry]}).encode(), "x", 0).operations
    assert (operation.group, operation.sequence, operation.is_p2p) == ("3", 7, True)
    assert (operation.name, operation.source, operation.target) == ("recv", 0, 1)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", DamagedFile),
        (b"# text", BadFile),
        (b'{"entries": [', DamagedFile),
        (b'{"traceEvents": []}', BadFile),
        (b"[1, 2]", BadFile),
        (pickle.dumps([1]), BadFile),
        (pickle.dumps({"version": "2.4", "entries": {"a": 1}}), BadFile),
    ],
)
def test_other_files_are_refused(data: bytes, error: type[BadFile]) -> None:
    with pytest.raises(error):
        decode_record(data, "x", 0)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3),
        ("rank12.flight", 12),
        ("host7_rank_5.pkl", 5),
        ("dump-0.json", 0),
        ("9", 9),
        ("README", -1),
    ],
)
def test_rank_of_a_file_name(name: str, rank: int) -> None:
    assert rank_of_name(name) == rank


def test_folder_with_records_and_stacks(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "rank1.stacks").write_text(f"Current thread 0x1 (most recent call first):\n{STACKS['host_stuck']}")
    (tmp_path / "notes.md").write_text("unrelated")
    loaded = load_records([tmp_path])
    assert loaded.warnings == ()
    result = find_culprit(loaded.records)
    assert (result.kind, result.ranks) == ("host_stuck", (1,))
    assert result.activities[1].location is not None
    assert result.activities[1].location.file == "/job/io.py"


def test_damaged_file_among_others_is_a_warning(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "nccl_trace_rank_2"
    path.write_bytes(path.read_bytes()[:50])
    loaded = load_records([tmp_path])
    assert [record.rank for record in loaded.records] == [0, 1]
    assert (len(loaded.warnings), loaded.unreadable) == (1, (2,))


def test_two_records_of_one_rank_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "rank0.json").write_bytes(encode(dumps_of(JOB)[0], "json"))
    with pytest.raises(BadInput):
        load_records([tmp_path])


def test_records_of_two_jobs_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    other = Job(5, [tuple(range(5))], JOB.slots, "none", 0, 0, 0)
    (tmp_path / "nccl_trace_rank_4").write_bytes(encode(dumps_of(other)[4], "json"))
    with pytest.raises(BadInput):
        load_records([tmp_path])


def test_own_documents_of_two_jobs_are_refused(tmp_path: Path) -> None:
    for rank in (0, 1):
        document = {"schema": SCHEMA, "rank": rank, "world": 2, "job": f"job{rank}", "dump": dumps_of(JOB)[rank]}
        (tmp_path / f"rank{rank}.flight").write_bytes(msgspec.json.encode(document))
    with pytest.raises(BadInput):
        load_records([tmp_path])


def test_large_and_missing_files_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(FileTooLarge):
        load_records([tmp_path / "nccl_trace_rank_0"], limit=10)
    with pytest.raises(MissingFile):
        load_records([tmp_path / "none"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingFile):
        load_records([tmp_path / "empty"])


def test_stacks_of_py_spy_and_faulthandler() -> None:
    py_spy = 'Thread 1: "MainThread"\n    read (io.py:7)\n    main (train.py:3)\nThread 2: "other"\n    x (y.py:1)\n'
    faulthandler = 'Thread 0x1:\n  File "z.py", line 1 in z\n\nCurrent thread 0x2:\n  File "io.py", line 7 in read\n'
    assert [(call.file, call.line) for call in parse_stack(py_spy)] == [("io.py", 7), ("train.py", 3)]
    assert [(call.file, call.line) for call in parse_stack(faulthandler)] == [("io.py", 7)]
