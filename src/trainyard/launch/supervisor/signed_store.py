"""A store whose values carry a signature made with the job's token, so that strangers cannot write plans or reports.

torch's TCPStore has no authentication: whoever reaches its port can read, overwrite and delete keys. Values are
therefore signed (HMAC-SHA256 over key and value). A stranger without the token can still read them, since they are not
encrypted, repeat an old value, and disturb the job by deleting keys or flooding the port: use a network that only the
cluster's users reach. The store in which ranks meet, and the ranks' own connections, are torch's and not signed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Sequence
from typing import Any

from trainyard.launch.launch_spec import TOKEN

_SIGNATURE_BYTES = 32


class BadSignature(Exception):
    """A value was not signed with the job's token: it belongs to another job, or comes from a stranger."""


def take_token() -> str:
    """Return the job's token and remove it from the environment, so that ranks and logs do not contain it; empty if
    there is none."""
    return os.environ.pop(TOKEN, "")


def draw_token() -> str:
    """Return the token for a job that is about to start: that of the environment, else a random one."""
    return os.environ.get(TOKEN) or secrets.token_hex(32)


class SignedStore:
    """Signed values in a torch store (`TCPStore`). `token`: shared by all processes of the job."""

    def __init__(self, store: Any, token: str) -> None:
        self.store = store
        self._token = token.encode()

    def _sign(self, key: str, value: bytes) -> bytes:
        """The signature of a value; it includes the key, so that a value cannot be moved to another key."""
        return hmac.digest(self._token, key.encode() + b"\0" + value, hashlib.sha256)

    def seal(self, key: str, value: bytes) -> bytes:
        """Return the value with its signature in front, as it is stored under `key`."""
        return self._sign(key, value) + value

    def open(self, key: str, sealed: bytes) -> bytes:
        """Return the value of `sealed`, which was stored under `key`. Raises `BadSignature`."""
        signature, value = sealed[:_SIGNATURE_BYTES], sealed[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(key, value)):
            raise BadSignature(f"the value of {key!r} is not signed with this job's token")
        return value

    def set(self, key: str, value: bytes) -> None:
        """Store a value. Raises torch's `DistError` if the store does not answer."""
        self.store.set(key, self.seal(key, value))

    def get(self, key: str) -> bytes:
        """Return the value of `key`; waits until there is one. Raises `BadSignature`, and `DistError` after the store's
        timeout."""
        return self.open(key, self.store.get(key))

    def reserve(self, keys: Sequence[str]) -> None:
        """Store an empty value under each key, so that `get_all` never waits for them."""
        self.store.multi_set(list(keys), [""] * len(keys))

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of reserved keys, in one exchange with the store however many there are; None for a key
        whose value has not been set or is not signed."""
        return [
            self._open_or_none(key, value) for key, value in zip(keys, self.store.multi_get(list(keys)), strict=True)
        ]

    def _open_or_none(self, key: str, sealed: bytes) -> bytes | None:
        """The value of `sealed`; None if it is empty or not signed."""
        try:
            return self.open(key, sealed) if sealed else None
        except BadSignature:
            return None
