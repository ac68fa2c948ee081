"""Bounds on connections, with real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import uvicorn
from starlette.types import Receive, Scope, Send

from trainyard.serve.connections import bounded_protocol, most_connections
from trainyard.serve.server import listen

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LIMIT_S = 0.3


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    del scope
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def _served(most: int, request_s: float = LIMIT_S) -> Iterator[tuple[str, int]]:
    """The address of a server in a thread."""
    config = uvicorn.Config(
        _app, http=bounded_protocol(most, request_s), ws="none", lifespan="off", log_level="error",
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            server.should_exit = True
            thread.join()


def _received(connection: socket.socket) -> bytes:
    """What is received until the server closes the connection."""
    parts = []
    try:
        while part := connection.recv(4096):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nab"]
)
def test_a_connection_without_a_complete_request_is_closed(sent: bytes) -> None:
    with _served(10) as address, socket.create_connection(address, timeout=30) as connection:
        connection.sendall(sent)
        assert _received(connection) == b""


def test_a_connection_with_a_part_of_a_second_request_is_closed() -> None:
    with _served(10) as address, socket.create_connection(address, timeout=30) as connection:
        connection.sendall(REQUEST + b"GET / ")
        assert _received(connection).count(b"HTTP/1.1 200") == 1


def test_a_new_connection_is_closed_when_too_many_are_open_and_accepted_later() -> None:
    with _served(3, request_s=3600) as address:
        with ExitStack() as opened:
            for _ in range(3):
                connection = opened.enter_context(socket.create_connection(address, timeout=30))
                connection.sendall(REQUEST)
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            with socket.create_connection(address, timeout=30) as further:
                assert _received(further) == b""
        for _ in range(200):  # until the server has seen that the others are closed
            with socket.create_connection(address, timeout=30) as connection:
                try:
                    connection.sendall(REQUEST)
                    if connection.recv(4096).startswith(b"HTTP/1.1 200"):
                        break
                except ConnectionError:
                    pass
            time.sleep(0.05)
        else:
            pytest.fail("no connection is accepted")


def test_connections_leave_files_for_the_store() -> None:
    assert 1 <= most_connections() <= 1024
