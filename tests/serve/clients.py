"""Clients of an application in this process, and a server in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.testclient import TestClient

HOST = "127.0.0.1:8765"


@contextmanager
def client_of(root: Path, token: str = "", host: str = "127.0.0.1") -> Iterator[TestClient]:
    """A client of the store in `root`. Messages of the server, such as that of a damaged run, are ignored; errors of
    the server are raised."""
    from starlette.testclient import TestClient

    from trainyard.serve.app import build_app
    from trainyard.serve.served_store import ServedStore
    from trainyard.serve.server import access_rules

    app = build_app(ServedStore(root, _check_message), access_rules(host, token), _check_message)
    with TestClient(app, base_url=f"http://{HOST}", follow_redirects=False) as client:
        yield client


@contextmanager
def running_server(root: Path, *options: str, **environment: str) -> Iterator[str]:
    """The address of `trainyard serve` in a process of its own, without the last slash."""
    command = [sys.executable, "-m", "trainyard.cli.main", "serve", "--port", "0", "--json", *options]
    env = {**os.environ, "TRAINYARD_STORE": str(root), **environment}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"].rstrip("/")
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=30)
            assert "Traceback" not in errors, errors


def _check_message(text: str) -> None:
    assert "This is a bug" not in text, text
