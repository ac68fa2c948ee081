"""Values in the supervisor's store: signed with the job's token, and moved to no other key."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.launch.launch_spec import TOKEN
from trainyard.launch.supervisor.signed_store import BadSignature, SignedStore, draw_token, take_token


@pytest.fixture(scope="module")
def raw_store() -> Any:
    pytest.importorskip("torch")
    from torch._C._distributed_c10d import TCPStore

    return TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=20), wait_for_workers=False)


@given(key=st.text(max_size=20), value=st.binary(max_size=200), token=st.text(min_size=1, max_size=20))
def test_only_the_same_key_and_token_open_a_value(key: str, value: bytes, token: str) -> None:
    store = SignedStore(None, token)
    sealed = store.seal(key, value)
    assert store.open(key, sealed) == value
    for other, name, data in (
        (SignedStore(None, token + "x"), key, sealed),
        (store, key + "x", sealed),
        (store, key, sealed + b"x"),
        (store, key, sealed[:-1]),
        (store, key, b""),
    ):
        with pytest.raises(BadSignature):
            other.open(name, data)


@pytest.mark.torch
def test_strangers_values_are_ignored_among_reports(raw_store: Any) -> None:
    own, stranger = SignedStore(raw_store, "token"), SignedStore(raw_store, "guess")
    keys = [f"agent/{node}" for node in range(4)]
    own.reserve(keys)
    assert own.get_all(keys) == [None] * 4
    own.set(keys[0], b"\0\xff report")
    stranger.set(keys[1], b"report")
    raw_store.set(keys[2], "report")
    assert own.get_all(keys) == [b"\0\xff report", None, None, None]
    with pytest.raises(BadSignature):
        own.get(keys[1])


def test_token_is_taken_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "secret")
    assert take_token() == "secret"
    assert take_token() == ""


def test_token_of_a_job_is_given_or_random(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "secret")
    assert draw_token() == "secret"
    monkeypatch.setenv(TOKEN, "")
    first, second = draw_token(), draw_token()
    assert first != second
    assert min(len(first), len(second)) == 64
