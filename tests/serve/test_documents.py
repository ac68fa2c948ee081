"""The JSON documents: those that the commands print, found by id only."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx2")  # of Starlette's test client

from starlette.testclient import TestClient

from tests.cli.schema_check import conforming, valid
from tests.serve.clients import client_of
from tests.serve.conftest import Filled
from tests.stored import stored
from trainyard.cli.main import cli
from trainyard.errors import UnknownName
from trainyard.serve import served_store
from trainyard.serve.result_cache import ResultCache
from trainyard.serve.run_filter import RunFilter, apply, read_filter
from trainyard.store.index.run_index import RunRow
from trainyard.store.store import Store

PLAN = {"model": "llama3-8b", "machine": "h100", "devices": "64", "batch": "512", "seq_len": "8192"}


def printed(root: Path, *args: str) -> str:
    """What the command prints."""
    return CliRunner().invoke(cli, args, env={"TRAINYARD_STORE": str(root)}).stdout


def test_documents_are_those_that_the_commands_print(client: TestClient, filled: Filled) -> None:
    before, after = filled.ids["before"], filled.ids["after"]
    for name, target, args in (
        ("runs", "/api/runs?per_page=1000", ["runs"]),
        ("run", f"/api/runs/{before}", ["runs", "show", before]),
        ("run", f"/api/runs/{filled.ids['damaged']}", ["runs", "show", filled.ids["damaged"]]),
        ("comparison", f"/api/compare?base={before}&new={after}", ["diff", before, after]),
        ("history", "/api/history/llama3-8b-pretrain", ["history", "llama3-8b-pretrain"]),
        ("history", "/api/history/llama3-8b-pretrain?metric=memory",
         ["history", "llama3-8b-pretrain", "--metric", "memory"]),
    ):  # fmt: skip
        answer = client.get(target)
        assert answer.status_code == 200, target
        assert answer.headers["content-type"] == "application/json"
        assert conforming(name, answer.text) == json.loads(printed(filled.root, *args, "--json")), target


def test_ledgers_are_those_of_the_run(client: TestClient, filled: Filled) -> None:
    document = valid("ledgers", client.get(f"/api/runs/{filled.ids['before']}/ledgers").text)
    assert [ledger["wall_ns"] for ledger in document["ledgers"]]


@pytest.mark.parametrize(
    "id",
    ["..%2f..%2fetc%2fpasswd", "%2e%2e", "/etc/passwd", "%2fetc%2fpasswd", "baseline", "00000000", "0000000",
     "00000000%00", "00000000%0a", "ABCDEF01", "a" * 150, "%ff", "${jndi}", "\u0662" * 8],
)  # fmt: skip
def test_runs_are_found_by_id_only(client: TestClient, filled: Filled, id: str) -> None:
    other = filled.ids["before"]
    for target in (
        f"/api/runs/{id}",
        f"/api/runs/{id}/ledgers",
        f"/api/runs/{id}/events",
        f"/api/compare?base={other}&new={id}",
    ):
        answer = client.get(target)
        assert answer.status_code == 404, target
        assert valid("error", answer.text)["code"] in ("unknown-name", "bad-input")


def test_a_link_in_the_store_is_not_followed(tmp_path: Path) -> None:
    store, other = Store(tmp_path / "store"), Store(tmp_path / "other")
    stored(store)
    outside = stored(other)
    (store.runs / outside.id).symlink_to(other.runs / outside.id)
    with client_of(store.root) as client:
        assert client.get(f"/api/runs/{outside.id}").status_code == 404
        assert outside.id not in client.get("/api/runs").text


def test_damaged_runs_are_shown_but_not_compared(client: TestClient, filled: Filled) -> None:
    damaged = filled.ids["damaged"]
    assert valid("run", client.get(f"/api/runs/{damaged}").text)["state"] == "damaged"
    answer = client.get(f"/api/compare?base={damaged}&new={filled.ids['before']}")
    assert (answer.status_code, valid("error", answer.text)["code"]) == (409, "wrong-run-state")
    assert client.get(f"/runs/{damaged}").status_code == 200
    assert client.get(f"/api/runs/{damaged}/ledgers").status_code == 409


def test_a_run_without_a_readable_record_is_an_error(tmp_path: Path) -> None:
    store = Store(tmp_path, say=lambda _: None)
    run, fine = stored(store), stored(store)
    (store.runs / run.id / "run.json").write_bytes(b"{")
    with client_of(tmp_path) as client:
        assert client.get(f"/api/runs/{run.id}").status_code == 409
        assert [row["id"] for row in client.get("/api/runs").json()["runs"]] == [fine.id]


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/api/compare", 400, "bad-input"),
        ("/api/compare?base=1&base=2&new=3", 400, "bad-input"),
        ("/api/runs?page=0", 400, "bad-input"),
        ("/api/runs?page=99999999999999999999", 400, "bad-input"),
        ("/api/runs?per_page=100000", 400, "bad-input"),
        ("/api/runs?page=%d9%a1", 400, "bad-input"),
        (f"/api/runs?q={'a' * 201}", 400, "bad-input"),
        (f"/api/runs?q={'a' * 5000}", 414, "bad-input"),
        ("/api/history/nothing", 404, "unknown-name"),
        ("/api/history/..%2f..%2fetc%2fpasswd", 404, "unknown-name"),
        ("/api/history/moe-finetune?metric=nothing", 404, "unknown-name"),
        ("/api/history/" + quote("</script>"), 404, "unknown-name"),
        ("/api/nothing", 404, "bad-input"),
        ("/api/plan", 400, "bad-input"),
        ("/api/plan?model=/etc/passwd&machine=h100", 404, "unknown-name"),
        ("/api/plan?model=llama3-8b&machine=../h100.toml", 404, "unknown-name"),
        ("/api/plan?model=llama3-8b&machine=h100&devices=-1", 400, "bad-input"),
        ("/api/plan?model=llama3-8b&machine=h100&devices=1e9", 400, "bad-input"),
    ],
)
def test_bad_requests_get_an_error_document(client: TestClient, target: str, status: int, code: str) -> None:
    answer = client.get(target)
    assert (answer.status_code, valid("error", answer.text)["code"]) == (status, code)


def test_too_few_runs_are_not_a_history(client: TestClient, filled: Filled) -> None:
    (row,) = client.get(f"/api/runs?q={filled.ids['hostile']}").json()["runs"]
    answer = client.get(f"/api/history/{quote(row['job'], safe='')}")
    assert (answer.status_code, answer.json()["code"]) == (409, "not-enough-evidence")


def test_plans_are_those_of_the_command(client: TestClient, tmp_path: Path) -> None:
    query = "&".join(f"{name}={value}" for name, value in PLAN.items())
    plans = valid("plans", client.get(f"/api/plan?{query}").text)
    options = ["--machine", "h100", "--devices", "64", "--batch", "512", "--seq-len", "8192", "--json"]
    assert plans == json.loads(printed(tmp_path, "plan", "llama3-8b", *options))
    impossible = client.get("/api/plan?model=llama3-70b&machine=h100&devices=1&batch=1&seq_len=8192")
    assert (impossible.status_code, valid("error", impossible.text)["code"]) == (400, "bad-job")


TEXTS = st.sampled_from(["", "tiny", "TINY", "a b", "\u00e9", "main", "c0ffee", "complete"])
ROWS = st.lists(
    st.builds(
        RunRow, id=st.text("0123456789abcdef", min_size=8, max_size=8), started=st.just(""), job=TEXTS, layout=TEXTS,
        state=st.sampled_from(["complete", "failed"]), step_ns=st.just(1), tokens_per_s=st.just(1.0),
        revision=TEXTS, host=TEXTS, tags=st.lists(TEXTS, max_size=2).map(tuple),
    ),
    max_size=12,
)  # fmt: skip
FILTERS = st.builds(
    RunFilter, q=TEXTS, job=TEXTS, state=TEXTS, tag=TEXTS, revision=TEXTS, host=TEXTS, page=st.integers(1, 3),
    per_page=st.integers(1, 4),
)  # fmt: skip


@given(FILTERS, ROWS)
def test_pages_of_a_filter_divide_the_rows_that_match(filter: RunFilter, rows: list[RunRow]) -> None:
    shown = apply(filter, rows)
    matching = [row for row in rows if apply(RunFilter(**{**_fields(filter), "page": 1, "per_page": 1}), [row]).rows]
    start = (filter.page - 1) * filter.per_page
    assert list(shown.rows) == matching[start : start + filter.per_page]
    assert (shown.total, shown.stored) == (len(matching), len(rows))
    for row in matching:
        assert filter.job in ("", row.job)
        assert filter.state in ("", row.state)
        assert filter.host in ("", row.host)
        assert not filter.tag or filter.tag in row.tags
        assert row.revision.startswith(filter.revision.lower())
    if not filter.is_active:
        assert matching == rows


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FILTERS)
def test_an_address_of_a_list_reads_as_its_filter(filter: RunFilter) -> None:
    from urllib.parse import parse_qsl, urlsplit

    query = dict(parse_qsl(urlsplit(filter.url()).query))
    assert read_filter(query) == RunFilter(**{**_fields(filter), "q": filter.q.strip()})


def _fields(filter: RunFilter) -> dict:
    return {name: getattr(filter, name) for name in RunFilter.__struct_fields__}


def test_large_traces_are_not_read_for_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stored(Store(tmp_path), trace=b"not a trace")
    monkeypatch.setattr(served_store, "MOST_TRACE_BYTES", 5)
    messages: list[str] = []
    served = served_store.ServedStore(tmp_path, messages.append)
    assert valid("run", served.run_document(run.id).decode())["kernels"] == []
    assert messages == []
    monkeypatch.setattr(served_store, "MOST_TRACE_BYTES", 50)
    assert served_store.ServedStore(tmp_path, messages.append).run_document(run.id)
    assert len(messages) == 1


def test_concurrent_requests_compute_a_result_once() -> None:
    cache, started, calls = ResultCache(100), threading.Event(), []

    def compute() -> bytes:
        calls.append(1)
        started.wait(10)
        return b"x" * 10

    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(cache.get("key", compute))) for _ in range(5)]
    for thread in threads:
        thread.start()
    started.set()
    for thread in threads:
        thread.join()
    assert (results, len(calls)) == ([b"x" * 10] * 5, 1)


def test_a_cache_keeps_what_was_used_last() -> None:
    cache, computed = ResultCache(25), []

    def get(key: str) -> None:
        cache.get(key, lambda: computed.append(key) or b"x" * 10)

    for key in ("a", "b", "a", "c", "a", "b"):
        get(key)
    assert computed == ["a", "b", "c", "b"]
    with pytest.raises(UnknownName):
        cache.get("failing", lambda: (_ for _ in ()).throw(UnknownName("no")))
    assert cache.get("failing", lambda: b"now") == b"now"
    assert cache.get("huge", lambda: b"y" * 100) == b"y" * 100
    get("b")
    assert cache.known("b") == b"x" * 10
    assert cache.known("c") is None
    assert computed[-1:] == ["b"]
    assert len(computed) == 4
