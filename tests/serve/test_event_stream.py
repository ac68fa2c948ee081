"""Streams of events: their number, their end, and files that cannot be read."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx2")  # of Starlette's test client

from starlette.testclient import TestClient
from starlette.types import Message

from tests.serve.clients import HOST, client_of
from tests.serve.conftest import Filled
from tests.serve.served_runs import append_samples, begin_live, run_of
from trainyard.layout import Layout
from trainyard.run.live_run import LiveRun
from trainyard.serve import app as served_app
from trainyard.serve.event_stream import CountedStream, event_stream
from trainyard.serve.live_views import LiveView, LiveViews
from trainyard.serve.served_store import ServedStore
from trainyard.serve.server import access_rules
from trainyard.store.store import Store


def test_headers_of_a_stream_are_answered_alone(client: TestClient, filled: Filled) -> None:
    answer = client.head(f"/api/runs/{filled.ids['live']}/events")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_the_number_of_streams_is_limited_and_those_that_ended_are_not_counted(
    client: TestClient, filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_app, "_MOST_STREAMS", 1)
    for _ in range(3):  # a stream of a run that has ended ends at once
        assert client.get(f"/api/runs/{filled.ids['failed']}/events").status_code == 200
    monkeypatch.setattr(served_app, "_MOST_STREAMS", 0)
    assert client.get(f"/api/runs/{filled.ids['failed']}/events").status_code == 503


def test_a_stream_that_cannot_begin_ends() -> None:
    ended: list[bool] = []

    async def events():
        yield b""

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(_: Message) -> None:
        raise OSError

    async def answer() -> None:
        await CountedStream(events(), lambda: ended.append(True))({"type": "http", "asgi": {}}, receive, send)

    with pytest.raises(BaseException):  # noqa: B017, PT011  - Starlette raises a group or ClientDisconnect
        asyncio.run(answer())
    assert ended == [True]


def test_a_stream_of_a_run_that_is_deleted_ends(tmp_path: Path) -> None:
    _, folder = begin_live(Store(tmp_path))
    view = LiveView(folder, fresh_s=0)

    async def first() -> tuple[LiveRun, int]:
        return view.look()

    async def follow() -> list[bytes]:
        events = []
        async for event in event_stream(view, first, poll_s=0):
            events.append(event)
            shutil.rmtree(folder, ignore_errors=True)
        return events

    events = asyncio.run(follow())
    assert events[0].startswith(b"event: update")
    assert events[-1].startswith(b"event: ended")


def test_files_that_cannot_be_read_are_no_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, folder = begin_live(Store(tmp_path))
    messages: list[str] = []
    rules = access_rules("127.0.0.1", "")
    app = served_app.build_app(ServedStore(tmp_path, messages.append), rules, messages.append)

    def fail(*_: object) -> bytes:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(ServedStore, "run_document", fail)
    with TestClient(app, base_url=f"http://{HOST}") as client:
        answer = client.get(f"/api/runs/{run.id}")
        assert (answer.status_code, answer.json()["code"]) == (503, "environment-failed")
        assert len(messages) == 1
        assert "bug" not in messages[0]
        shutil.rmtree(folder)
        assert client.get(f"/api/runs/{run.id}").status_code == 404
        assert len(messages) == 1


def test_a_deleted_run_is_not_found(tmp_path: Path) -> None:
    run, folder = begin_live(Store(tmp_path))
    with client_of(tmp_path) as client:
        assert client.get(f"/runs/{run.id}").status_code == 200
        shutil.rmtree(folder)
        for target in (f"/runs/{run.id}", f"/api/runs/{run.id}", f"/api/runs/{run.id}/events"):
            assert client.get(target).status_code == 404


def test_readers_of_a_run_share_its_steps_and_each_gets_all_of_them_once(tmp_path: Path) -> None:
    _, folder = begin_live(Store(tmp_path), steps=3)
    view = LiveView(folder, fresh_s=0)
    early, seen = view.look()
    append_samples(folder, run_of(90, "followed", Layout(), True, "").samples[3:5])
    late, _ = view.look()
    further, total = view.look(seen)
    assert [step.step for step in early.new_steps] == [0, 1, 2]
    assert [step.step for step in late.new_steps] == [0, 1, 2, 3, 4]
    assert [step.step for step in further.new_steps] == [3, 4]
    assert view.look(total)[0].new_steps == ()


def test_an_update_is_shared_for_a_while(tmp_path: Path) -> None:
    _, folder = begin_live(Store(tmp_path), steps=3)
    view = LiveView(folder, fresh_s=3600)
    assert view.is_first
    first = view.look()
    append_samples(folder, run_of(90, "followed", Layout(), True, "").samples[3:5])
    assert view.look() == first
    assert not view.is_first


def test_views_are_shared_and_those_used_long_ago_are_dropped(tmp_path: Path) -> None:
    views = LiveViews()
    first = views.view(tmp_path / "0")
    for number in range(1, 100):
        views.view(tmp_path / str(number))
        assert views.view(tmp_path / str(number)) is views.view(tmp_path / str(number))
    assert views.view(tmp_path / "0") is not first


def test_a_lack_of_files_is_printed_once(tmp_path: Path) -> None:
    messages: list[str] = []
    served = served_app.ServedApp(
        ServedStore(tmp_path, messages.append), access_rules("127.0.0.1", ""), messages.append
    )

    async def fail() -> None:
        app, loop = served.build(), asyncio.get_running_loop()
        async with app.router.lifespan_context(app):
            for _ in range(5):
                loop.call_exception_handler({"exception": OSError(24, "Too many open files")})

    asyncio.run(fail())
    assert len(messages) == 1
