"""Invariants of the store: whatever a folder, database or remote contains, valid runs stay available and altered runs
are rejected."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stored import stored
from trainyard.errors import BadFile, BadInput
from trainyard.store import digests, tags
from trainyard.store.exchange.push_pull import pull, push
from trainyard.store.exchange.remote_store import Remote
from trainyard.store.index.index_tables import TABLE
from trainyard.store.index.run_index import Indexed, RunRow
from trainyard.store.index.sqlite_index import LocalBase
from trainyard.store.store import Store, check_tag

TEXT = st.text() | st.text(st.characters(categories=["Cc", "Cs", "Cf"]))
ROWS = st.builds(
    RunRow,
    id=TEXT,
    started=TEXT,
    job=TEXT,
    layout=TEXT,
    state=st.just("complete"),
    step_ns=st.integers() | st.integers(2**63 - 1, 2**70),
    tokens_per_s=st.floats(),
)


@given(st.lists(ROWS, unique_by=lambda row: row.id, max_size=6))
@settings(max_examples=60, deadline=None)
def test_index_keeps_every_row_it_does_not_refuse(tmp_path_factory: pytest.TempPathFactory, rows: list[RunRow]) -> None:
    path = tmp_path_factory.mktemp("index") / "index.sqlite3"
    base = LocalBase(path)
    good = RunRow(id="good", started="", job="tiny", layout="", state="complete", step_ns=1, tokens_per_s=1.0)
    read = {row.id: Indexed(stamp="1", row=row, tag_times={}) for row in (*rows, good)}
    refused = base.keep(read, ())
    with sqlite3.connect(path) as raw:
        kept = {cells[0] for cells in raw.execute(f"SELECT id FROM {TABLE}")}  # noqa: S608
    assert kept | refused.keys() == read.keys()
    assert not kept & refused.keys()
    assert base.indexed()["good"].row == good


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["run.json", "ledgers.json", "tags.json", "samples/rank0.jsonl", "SHA256SUMS"])


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_damaged_run_does_not_hide_other_runs(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    store = Store(tmp_path_factory.mktemp("store"), say=lambda _: None)
    bad, good = stored(store), stored(store)
    if data.draw(st.booleans()):
        (store.runs / bad.id / "SHA256SUMS").unlink()
    if data.draw(st.booleans()):  # a value somewhere inside run.json
        path = store.runs / bad.id / "run.json"
        document = msgspec.json.decode(path.read_bytes())
        inside = document
        while True:
            key = data.draw(st.sampled_from(sorted(inside)))
            if not isinstance(inside[key], dict) or not inside[key] or data.draw(st.booleans()):
                break
            inside = inside[key]
        inside[key] = data.draw(JSON | st.just(10**400) | st.just(-(2**63)) | st.just("a\0b"))
        path.write_bytes(msgspec.json.encode(document))
    else:
        (store.runs / bad.id / data.draw(NAMES)).write_bytes(data.draw(st.binary() | JSON.map(msgspec.json.encode)))
    rows = {row.id: row for row in store.rows()}
    assert rows[good.id].state == "complete"
    try:
        loaded = store.load(str(store.runs / bad.id))
    except BadFile:
        assert bad.id not in rows or rows[bad.id].state == "damaged"
    else:
        assert rows[bad.id].state == loaded.state


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_pull_rejects_altered_files(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    pytest.importorskip("fsspec")
    root = tmp_path_factory.mktemp("pull")
    here, there = (Store(root / name, say=lambda _: None) for name in ("here", "there"))
    run, bucket = stored(here), root / "bucket"
    push(here.runs / run.id, Remote(str(bucket)))
    folder = bucket / "runs" / run.id
    name = data.draw(st.sampled_from(sorted(path.relative_to(folder).as_posix() for path in _files(folder))))
    path, contents = folder / name, (folder / name).read_bytes()
    at = data.draw(st.integers(0, len(contents) - 1))
    if data.draw(st.booleans()):
        path.write_bytes(contents[:at])
    else:
        path.write_bytes(contents[:at] + bytes([contents[at] ^ data.draw(st.integers(1, 255))]) + contents[at + 1 :])
    before = _contents(here.runs / run.id)
    try:
        pull(there, Remote(str(bucket)), run.id)
    except BadInput:
        assert not there.runs.exists() or [*there.runs.iterdir()] == []
    else:  # harmless changes, such as a digest list without its last newline
        arrived = _contents(there.runs / run.id)
        assert {name: arrived[name] for name in arrived if name != "SHA256SUMS"} == {
            name: before[name] for name in before if name != "SHA256SUMS"
        }


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in _files(folder)}


PATHS = st.lists(st.sampled_from(["run.json", "..", ".", "", "a", "b.c", "/", "\\", "\n", "\u202e"])).map("/".join)
LISTS = st.lists(PATHS | st.text(st.characters(exclude_categories=["Cs"]))).map(
    lambda names: b"".join(f"{'0' * 64}  {name}\n".encode() for name in ["run.json", *names])
)


@given(st.binary() | LISTS)
def test_digest_lists_name_only_files_inside_the_folder(data: bytes) -> None:
    try:
        listed = digests.parse(data, "SHA256SUMS")
    except BadFile:
        return
    assert "run.json" in listed
    for name in listed:
        inside = (Path("/run") / name).resolve()
        assert inside.is_relative_to("/run")
        assert inside != Path("/run")
        assert name.isprintable()


FILES = st.dictionaries(st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20), st.binary(), max_size=5)


@given(FILES)
def test_digest_list_round_trip(files: dict[str, bytes]) -> None:
    listed = digests.compute(Path("/nowhere"), {**files, "run.json": b"{}"})
    assert digests.parse(digests.render(listed), "SHA256SUMS") == listed


@given(st.dictionaries(TEXT, TEXT, max_size=3))
def test_remote_tags_are_valid_tags(table: dict[str, str]) -> None:
    try:
        data = msgspec.json.encode(table)
        taken = tags.decode_remote(data, "tags.json")
    except (BadFile, UnicodeEncodeError):
        return
    for tag in taken:
        check_tag(tag)
