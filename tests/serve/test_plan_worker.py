"""The process that searches for plans: its start, its end and its errors."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.refused import refused
from trainyard.errors import BadInput, BadJob, EnvironmentFailed, TrainyardError
from trainyard.serve.plan_worker import PlanQuery, PlanWorker

QUERY = PlanQuery(model="llama3-8b", machine="h100", devices=64, batch=512, seq_len=8192)
IMPOSSIBLE = PlanQuery(model="llama3-70b", machine="h100", devices=1, batch=1, seq_len=8192)


def test_a_search_that_takes_too_long_is_ended() -> None:
    worker = PlanWorker(print, limit_s=0.001)
    for _ in range(2):  # the second time, a process is started again
        with refused(BadInput, "0.001"):
            worker.plan(QUERY)
    worker.close()


def test_modules_of_the_working_folder_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    worker = PlanWorker(print)
    with pytest.raises(BadJob):
        worker.plan(IMPOSSIBLE)
    worker.close()


def test_the_text_of_a_bug_is_printed_and_not_answered() -> None:
    messages: list[str] = []
    worker = PlanWorker(messages.append)
    with pytest.raises(TrainyardError) as error:
        worker.plan(msgspec.structs.replace(IMPOSSIBLE, batch="secret"))  # not a number: the process cannot decode it
    worker.close()
    assert error.value.code == TrainyardError.code
    assert "ValidationError" in messages[0]
    assert "ValidationError" not in str(error.value)


def test_closing_ends_a_search_and_refuses_further_ones() -> None:
    """A search that would take longer than the test's limit ends when the worker is closed."""
    worker, errors = PlanWorker(print, limit_s=600), []
    slow = msgspec.structs.replace(QUERY, devices=65536, batch=1 << 20)

    def plan() -> None:
        try:
            worker.plan(slow)
        except EnvironmentFailed as error:
            errors.append(error)

    threads = [threading.Thread(target=plan) for _ in range(2)]
    for thread in threads:
        thread.start()
    worker.close()
    for thread in threads:
        thread.join()
    assert len(errors) == 2
    with pytest.raises(EnvironmentFailed):
        worker.plan(IMPOSSIBLE)


@pytest.mark.parametrize(("message", "searches"), [("http.request", 1), ("http.disconnect", 0)])
def test_a_query_whose_client_has_gone_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, searches: int
) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from trainyard.serve.app import build_app
    from trainyard.serve.served_store import ServedStore
    from trainyard.serve.server import access_rules

    calls, messages, statuses = [], list[str](), list[int]()
    monkeypatch.setattr(PlanWorker, "plan", lambda _, query: calls.append(query) or b"{}")
    app = build_app(ServedStore(tmp_path, messages.append), access_rules("127.0.0.1", ""), messages.append)
    scope = {
        "type": "http", "method": "GET", "path": "/api/plan", "raw_path": b"/api/plan", "root_path": "",
        "query_string": b"model=llama3-8b&machine=h100", "headers": [(b"host", b"localhost")],
    }  # fmt: skip

    async def receive() -> dict[str, object]:
        return {"type": message}

    async def send(sent: MutableMapping[str, Any]) -> None:
        if sent["type"] == "http.response.start":
            statuses.append(sent["status"])

    asyncio.run(app(scope, receive, send))
    assert (len(calls), messages) == (searches, [])
    assert statuses == [200 if searches else 400]


def test_a_process_that_is_interrupted_prints_nothing() -> None:
    command = [sys.executable, "-P", "-m", "trainyard.serve.plan_worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(IMPOSSIBLE) + b"\n")
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == -signal.SIGINT
        assert process.communicate() == (b"", b"")
