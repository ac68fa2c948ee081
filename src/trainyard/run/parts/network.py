"""Sends parts over the network: from the nodes' `trainyard run` processes to that of the node with rank 0.

The receiving node reserves a port before the ranks start, and listens on it only after its command has ended, if the
job has ranks on other nodes. Rank 0 publishes port and token through the store of the process group, so that only the
job's ranks know them. The bytes are an archive (`archive.pack`), never code; they are not encrypted, as those of the
job's own process group are not.

A sender connects and sends: magic, token, length and SHA-256 digest of the archive, and the archive. The receiver
answers with one byte, or closes the connection.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress

from trainyard.errors import EnvironmentFailed, RemoteFailed
from trainyard.run.parts.archive import MAX_PACKED_BYTES

_MAGIC, _ACCEPTED = b"trainyard part 1\n", b"\x06"
_TOKEN_BYTES, _LENGTH_BYTES, _DIGEST_BYTES = 64, 8, 32
_CHUNK_BYTES = 1 << 20
_CONNECTION_TIMEOUT_S, _RETRY_S = 30.0, 0.25
_MAX_CONNECTIONS = 16


class Receiver:
    """A reserved port at which parts arrive. `collector`: its port and token, to be passed to rank 0's process."""

    def __init__(self) -> None:
        """Reserve a free port on all interfaces. Raises `EnvironmentFailed` if there is none."""
        self._token = secrets.token_hex(_TOKEN_BYTES // 2)
        try:
            self._socket = _reserve()
        except OSError as error:
            raise EnvironmentFailed(f"no port can be reserved for the parts of other nodes: {error}.") from error
        self.collector = f"{self._socket.getsockname()[1]} {self._token}"

    def receive(self, timeout_s: float) -> Iterator[bytes]:
        """Yield the archives that arrive within `timeout_s` seconds, each once it is complete; the caller ends the
        iteration when it has all parts. Connections without the token, and archives that arrive damaged, are
        ignored."""
        until = time.monotonic() + timeout_s
        self._socket.listen(_MAX_CONNECTIONS)
        waiting: set[Future[bytes | None]] = set()
        connections: list[socket.socket] = []
        with ThreadPoolExecutor(_MAX_CONNECTIONS) as pool:
            try:
                while (left := until - time.monotonic()) > 0:
                    self._socket.settimeout(min(_RETRY_S, left))
                    with suppress(TimeoutError):
                        connection, _ = self._socket.accept()
                        connections.append(connection)
                        waiting.add(pool.submit(self._read, connection))
                    done, waiting = wait(waiting, 0, FIRST_COMPLETED)
                    yield from (data for future in done if (data := future.result()) is not None)
            finally:
                self.close()
                for connection in connections:  # ends the reading of those that stall
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()

    def _read(self, connection: socket.socket) -> bytes | None:
        """Read an archive from a connection, and close it; None for anything else."""
        with connection, suppress(OSError, ValueError):
            connection.settimeout(_CONNECTION_TIMEOUT_S)
            head = _receive(connection, len(_MAGIC) + _TOKEN_BYTES)
            if not hmac.compare_digest(head, _MAGIC + self._token.encode()):
                return None
            length = int.from_bytes(_receive(connection, _LENGTH_BYTES), "big")
            digest = _receive(connection, _DIGEST_BYTES)
            if length > MAX_PACKED_BYTES:
                return None
            data = _receive(connection, length)
            if hashlib.sha256(data).digest() == digest:
                connection.sendall(_ACCEPTED)
                return data
        return None


def _reserve() -> socket.socket:
    """A socket that is bound to a free port and does not listen yet; both for IPv4 and IPv6 if the host has both."""
    if socket.has_dualstack_ipv6():
        reserved = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        with suppress(OSError):
            reserved.bind(("::", 0))
            return reserved
        reserved.close()
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.bind(("0.0.0.0", 0))  # noqa: S104  other nodes connect; see the module's description
    return reserved


def send(collector: str, data: bytes, timeout_s: float) -> None:
    """Send an archive to the node with rank 0, and wait until it has it.

    `collector`: addresses separated by commas, port and token, as rank 0 published them. Tries for `timeout_s` seconds,
    since the receiver listens only after its own command has ended. Raises `RemoteFailed`.
    """
    if len(words := collector.split(" ")) != 3:
        raise RemoteFailed("rank 0 published an address for parts that cannot be read.", "Join the parts by hand.")
    addresses, port, token = words
    until, reason = time.monotonic() + timeout_s, "it does not listen"
    while time.monotonic() < until:
        for address in addresses.split(","):
            try:
                with socket.create_connection((address, int(port)), timeout=_CONNECTION_TIMEOUT_S) as connection:
                    _transmit(connection, token, data)
                    return
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or str(error)
        time.sleep(_RETRY_S)
    raise RemoteFailed(
        f"the node of rank 0 ({addresses}, port {port}) did not take the part within {timeout_s:g} s: {reason}."
    )


def _transmit(connection: socket.socket, token: str, data: bytes) -> None:
    """Send an archive over a connection. Raises `ConnectionError` if it is not accepted, and other `OSError`."""
    head = _MAGIC + token.encode() + len(data).to_bytes(_LENGTH_BYTES, "big") + hashlib.sha256(data).digest()
    connection.sendall(head)
    for start in range(0, len(data), _CHUNK_BYTES):
        connection.sendall(data[start : start + _CHUNK_BYTES])
    if connection.recv(1) != _ACCEPTED:
        raise ConnectionError("it did not accept the part")


def _receive(connection: socket.socket, size: int) -> bytes:
    """Read `size` bytes. Raises `ValueError` if the connection ends earlier."""
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(min(_CHUNK_BYTES, size - len(data)))
        if not chunk:
            raise ValueError("the connection ended early")
        data += chunk
    return bytes(data)
