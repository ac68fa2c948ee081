"""A store of two jobs and notable runs, made once, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.serve.clients import client_of
from tests.serve.served_runs import fill
from trainyard.store.store import Store

if TYPE_CHECKING:
    from starlette.testclient import TestClient


class Filled(NamedTuple):
    """A store, and the ids of its notable runs by name, as of `fill`."""

    root: Path
    ids: dict[str, str]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    root = tmp_path_factory.mktemp("served")
    return Filled(root, fill(Store(root, say=lambda _: None)))


@pytest.fixture(scope="module")
def client(filled: Filled) -> Iterator[TestClient]:
    with client_of(filled.root) as client:
        yield client
