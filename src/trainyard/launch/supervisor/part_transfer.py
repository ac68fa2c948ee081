"""Transfer of the nodes' parts of a run to the supervisor's host, through the store, when the job is over.

An agent pushes its archive in chunks to a queue and waits for the receipt of a chunk before it sends the second next,
so that the store holds at most two chunks of each node. The supervisor appends them to `parts/node<N>.part` in the
run's folder and, at the end, writes `parts/transfers.json`: node -> `Transfer`. An archive in a shared folder is not
sent: the agent sends a `PartHeader` with its path.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from trainyard.formats.atomic import replacing_own
from trainyard.launch.supervisor.signed_store import BadSignature, SignedStore

FOLDER = "parts"
TRANSFERS = "transfers.json"
CHUNK_BYTES = 1 << 18
MAX_PART_BYTES = 1 << 34
_QUEUE = "parts"
_IN_FLIGHT = 2
_SILENCE_S = 30.0
"""Seconds without a chunk of any node after which the missing parts count as lost."""
_POLL_S = 0.005


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """The transfer of a node's part. `bytes`: size of its archive. `seconds`: from its first chunk to its last one.
    `problem`: why it is incomplete; empty if it is complete. `shared`: the archive's name in the shared folder, if it
    was left there."""

    bytes: int = 0
    seconds: float = 0.0
    problem: str = ""
    shared: str = ""


class PartHeader(msgspec.Struct, frozen=True, kw_only=True, tag="header"):
    """The first message on a part: the size and the SHA-256 digest (hexadecimal) of its archive, and its name in the
    shared folder if it was left there. `problem`: why there is none."""

    node: int
    bytes: int
    sha256: str
    shared: str = ""
    problem: str = ""


class _Chunk(msgspec.Struct, frozen=True, tag="chunk"):
    """Bytes of a node's archive: the chunk number `index`."""

    node: int
    index: int
    data: bytes


def send_part(store: SignedStore, node: int, archive: bytes, shared: str = "", problem: str = "") -> None:
    """Send the archive of node `node` to the supervisor; return when it has received everything.

    `shared`: name of the archive in the shared folder, in which it lies already: then only that is sent. `problem`: why
    there is no archive. Raises `DistError` if the supervisor does not answer.
    """
    header = PartHeader(
        node=node, bytes=len(archive), sha256=hashlib.sha256(archive).hexdigest(), shared=shared, problem=problem
    )
    _push(store, msgspec.msgpack.encode(header))
    chunks = 0 if shared else -(-len(archive) // CHUNK_BYTES)
    for index in range(chunks):
        if index >= _IN_FLIGHT:
            store.get(_receipt(node, index - _IN_FLIGHT))
        data = archive[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
        _push(store, msgspec.msgpack.encode(_Chunk(node=node, index=index, data=data)))
    store.get(_receipt(node, chunks - 1))


def _push(store: SignedStore, message: bytes) -> None:
    store.store.queue_push(_QUEUE, store.seal(_QUEUE, message))


def _receipt(node: int, index: int) -> str:
    """The key of the receipt for a chunk; index -1 is the header."""
    return f"part/{node}/{index}"


class _Incoming:
    """A part that is being received."""

    def __init__(self, header: PartHeader, path: Path) -> None:
        """`path`: file that the archive is written to."""
        self.header = header
        self.bytes, self.index = 0, 0
        self.began_s = self.last_s = time.monotonic()
        self._digest = hashlib.sha256()
        self._file: IO[bytes] = path.open("wb")

    def add(self, chunk: _Chunk) -> bool:
        """Append the next chunk; return False for one that does not follow or exceeds the announced size."""
        if chunk.index != self.index or self.bytes + len(chunk.data) > self.header.bytes:
            return False
        self._file.write(chunk.data)
        self._digest.update(chunk.data)
        self.bytes += len(chunk.data)
        self.index += 1
        self.last_s = time.monotonic()
        return True

    @property
    def is_complete(self) -> bool:
        return self.bytes == self.header.bytes or bool(self.header.shared)

    def finish(self) -> Transfer:
        """Close the file and describe the transfer."""
        self._file.close()
        problem = self.header.problem
        if not problem and not self.is_complete:
            problem = f"{self.bytes} of {self.header.bytes} bytes arrived"
        elif not problem and not self.header.shared and self._digest.hexdigest() != self.header.sha256:
            problem = "its digest differs from the announced one"
        return Transfer(
            bytes=self.header.bytes, seconds=self.last_s - self.began_s, problem=problem, shared=self.header.shared
        )


class PartReceiver:
    """Receives the parts of a job's nodes."""

    def __init__(self, store: SignedStore, folder: Path) -> None:
        """`folder`: the run's folder."""
        self._store, self._folder = store, folder / FOLDER
        self._incoming: dict[int, _Incoming] = {}
        """Node -> its part, from its header on."""

    def receive(self, nodes: Collection[int]) -> None:
        """Receive the parts of `nodes` until all are complete, or none has sent anything for `_SILENCE_S`."""
        self._folder.mkdir(exist_ok=True)
        last_s = time.monotonic()
        while not self._have_all(nodes) and time.monotonic() - last_s < _SILENCE_S:
            if self._store.store.queue_len(_QUEUE):
                with suppress(BadSignature, msgspec.MsgspecError):  # a stranger's message
                    self._take(self._store.open(_QUEUE, self._store.store.queue_pop(_QUEUE)))
                    last_s = time.monotonic()
            else:
                time.sleep(_POLL_S)
        transfers = {node: incoming.finish() for node, incoming in self._incoming.items()}
        missing = {node: Transfer(problem="it did not arrive") for node in nodes if node not in transfers}
        with replacing_own(self._folder / TRANSFERS) as file:
            file.write_bytes(msgspec.json.encode(transfers | missing))

    def _have_all(self, nodes: Collection[int]) -> bool:
        return all(node in self._incoming and self._incoming[node].is_complete for node in nodes)

    def _take(self, message: bytes) -> None:
        """Take a header or a chunk, and confirm the receipt. Raises `MsgspecError` for any other message."""
        decoded = msgspec.msgpack.decode(message, type=PartHeader | _Chunk)
        node = decoded.node
        if isinstance(decoded, PartHeader):
            if decoded.bytes <= MAX_PART_BYTES:
                self._incoming[node] = _Incoming(decoded, self._folder / f"node{node}.part")
                self._store.set(_receipt(node, -1), b"")
        elif node in self._incoming and self._incoming[node].add(decoded):
            if decoded.index > 0:
                self._store.store.delete_key(_receipt(node, decoded.index - 1 - _IN_FLIGHT))
            self._store.set(_receipt(node, decoded.index), b"")


def read_transfers(run: Path) -> dict[int, Transfer]:
    """Node -> the transfer of its part, as the supervisor recorded it in the run's folder; empty if it did not get that
    far."""
    path = run / FOLDER / TRANSFERS
    return msgspec.json.decode(path.read_bytes(), type=dict[int, Transfer]) if path.exists() else {}
