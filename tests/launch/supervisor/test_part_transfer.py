"""Parts of a run that agents send through the supervisor's store."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trainyard.launch.supervisor import part_transfer
from trainyard.launch.supervisor.part_transfer import CHUNK_BYTES, PartReceiver, read_transfers, send_part
from trainyard.launch.supervisor.signed_store import SignedStore

pytestmark = pytest.mark.torch


def open_store() -> tuple[Any, int]:
    pytest.importorskip("torch")
    from torch._C._distributed_c10d import TCPStore

    server = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=20), wait_for_workers=False)
    return server, server.port


def connect(port: int, token: str = "token") -> SignedStore:  # noqa: S107 - of a test
    from torch._C._distributed_c10d import TCPStore

    return SignedStore(TCPStore("127.0.0.1", port, None, False, timedelta(seconds=20), wait_for_workers=False), token)


SIZES = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES + 7]


def test_parts_of_many_nodes_arrive_whole(tmp_path: Path) -> None:
    server, port = open_store()
    archives = {node: bytes([node]) * size for node, size in enumerate(SIZES, start=1)}
    senders = [
        threading.Thread(target=send_part, args=(connect(port), node, archive)) for node, archive in archives.items()
    ]
    for sender in senders:
        sender.start()
    PartReceiver(SignedStore(server, "token"), tmp_path).receive(archives)
    for sender in senders:
        sender.join(20)
    transfers = read_transfers(tmp_path)
    assert {node: transfer.bytes for node, transfer in transfers.items()} == dict(enumerate(SIZES, start=1))
    assert not any(transfer.problem for transfer in transfers.values())
    for node, archive in archives.items():
        assert (tmp_path / "parts" / f"node{node}.part").read_bytes() == archive
    receipts = [key for key in server.list_keys() if key.startswith("part/")]
    assert len(receipts) <= 4 * len(archives), "receipts are removed as the transfer proceeds"


def test_missing_and_damaged_parts_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_transfer, "_SILENCE_S", 0.3)
    server, port = open_store()
    own, stranger = connect(port), connect(port, "guess")
    header = part_transfer.PartHeader(node=1, bytes=3, sha256="0" * 64)
    part_transfer._push(own, msgspec.msgpack.encode(header))
    part_transfer._push(own, msgspec.msgpack.encode(part_transfer._Chunk(node=1, index=0, data=b"abc")))
    part_transfer._push(own, msgspec.msgpack.encode(part_transfer.PartHeader(node=2, bytes=9, sha256="")))
    part_transfer._push(own, msgspec.msgpack.encode(part_transfer._Chunk(node=2, index=1, data=b"later")))
    part_transfer._push(own, b"not a message")
    part_transfer._push(
        stranger, msgspec.msgpack.encode(part_transfer.PartHeader(node=3, bytes=0, sha256="", shared="x"))
    )
    part_transfer._push(own, msgspec.msgpack.encode(part_transfer.PartHeader(node=4, bytes=1 << 60, sha256="")))
    PartReceiver(SignedStore(server, "token"), tmp_path).receive({1, 2, 3, 4})
    problems = {node: transfer.problem for node, transfer in read_transfers(tmp_path).items()}
    assert problems == {
        1: "its digest differs from the announced one",
        2: "0 of 9 bytes arrived",
        3: "it did not arrive",
        4: "it did not arrive",
    }
