"""Collecting parts: over the network and through a shared folder, with senders that misbehave."""

import hashlib
import os
import socket
import threading
import time
from contextlib import suppress

import pytest

from tests.run.parts.part_maker import make_part
from trainyard.errors import BadInput, PlaceUnwritable, RemoteFailed, TrainyardError
from trainyard.run.parts import archive, collect, network
from trainyard.run.parts.collect import receive_parts, send_part
from trainyard.run.parts.part import read_part


@pytest.fixture
def receiver():
    reserved = network.Receiver()
    yield reserved
    reserved.close()


def address(receiver):
    return f"127.0.0.1 {receiver.collector}"


def received(receiver, count, timeout_s=20.0):
    """The archives that arrive until there are `count`, in a thread; returns (thread, list)."""
    arrived: list[bytes] = []

    def run():
        for data in receiver.receive(timeout_s):
            arrived.append(data)
            if len(arrived) == count:
                return

    thread = threading.Thread(target=run)
    thread.start()
    return thread, arrived


def test_archives_arrive_unchanged(receiver):
    sent = [os.urandom(3_000_000), b"", b"small"]
    thread, arrived = received(receiver, 3)
    senders = [threading.Thread(target=network.send, args=(address(receiver), data, 20)) for data in sent]
    for sender in senders:
        sender.start()
    for sender in [*senders, thread]:
        sender.join(30)
    assert sorted(arrived) == sorted(sent)


def test_nothing_is_reachable_before_the_receiver_listens(receiver):
    port = int(receiver.collector.split(" ")[0])
    with pytest.raises(ConnectionError), socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
    with pytest.raises(RemoteFailed):
        network.send(address(receiver), b"data", 0.3)


def test_a_sender_waits_until_the_receiver_listens(receiver):
    sender = threading.Thread(target=network.send, args=(address(receiver), b"data", 20))
    sender.start()
    thread, arrived = received(receiver, 1)
    for each in (sender, thread):
        each.join(30)
    assert arrived == [b"data"]


def test_connections_without_the_token_or_with_damage_are_ignored(receiver):
    port, token = receiver.collector.split(" ")
    magic = network._MAGIC + token.encode()
    wrong = network._MAGIC + b"0" * len(token)
    digest = hashlib.sha256(b"data").digest()
    messages = [
        b"GET / HTTP/1.1\r\n\r\n" + b" " * 200,
        wrong + (4).to_bytes(8, "big") + digest + b"data",
        magic + (1 << 62).to_bytes(8, "big") + digest,  # a length beyond the limit
        magic + (4).to_bytes(8, "big") + digest + b"atad",  # another digest
        magic + (9).to_bytes(8, "big") + digest + b"data",  # cut short
        b"",
    ]
    thread, arrived = received(receiver, 1)
    for message in messages:
        answer = b""
        with connected(int(port)) as connection, suppress(OSError):  # the receiver may close it at once
            connection.sendall(message)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(1)
        assert answer == b""
    network.send(address(receiver), b"data", 20)
    thread.join(30)
    assert arrived == [b"data"]


def connected(port):
    """A connection to a receiver that may not listen yet."""
    until = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=10)
        except ConnectionRefusedError:
            assert time.monotonic() < until


def test_a_connection_that_stalls_does_not_hold_up_the_end(receiver):
    thread, arrived = received(receiver, 1)
    with connected(int(receiver.collector.split(" ")[0])) as stalled:
        stalled.sendall(network._MAGIC)
        network.send(address(receiver), b"data", 20)
        thread.join(20)
        assert not thread.is_alive()
    assert arrived == [b"data"]


def parts(tmp_path, **changes_of_b):
    a = make_part(tmp_path / "a", "aaaaaaaa", "node-a", (0, 1))
    b = make_part(tmp_path / "b", "bbbbbbbb", "node-b", (2, 3), **changes_of_b)
    return a, b


@pytest.mark.parametrize("shared", [True, False], ids=["folder", "network"])
def test_the_node_of_rank_zero_gets_every_part(tmp_path, receiver, shared):
    a, b = parts(tmp_path)
    location, messages = (str(tmp_path / "shared") if shared else ""), []
    into = tmp_path / "into"
    into.mkdir()
    sender = threading.Thread(target=send_part, args=(b, read_part(b), location, address(receiver), messages.append))
    sender.start()
    (folder,) = receive_parts(read_part(a), location, receiver, into, messages.append, 20)
    sender.join(30)
    assert read_part(folder) == read_part(b)
    assert (folder / "samples" / "rank3.jsonl").read_bytes() == (b / "samples" / "rank3.jsonl").read_bytes()


def test_parts_that_do_not_belong_are_left_out(tmp_path, receiver):
    a, b = parts(tmp_path)
    foreign = make_part(tmp_path / "c", "cccccccc", "node-c", (2, 3), job_id="job.2")
    overlapping = make_part(tmp_path / "d", "dddddddd", "node-d", (1, 2))
    shared, messages, into = tmp_path / "shared", [], tmp_path / "into"
    into.mkdir()
    folder = shared / "runs" / collect.joined_run_id("job.1") / "parts"
    folder.mkdir(parents=True)
    packed = {
        "rank2-00000000.part": b"not an archive",
        "rank2-11111111.part": archive.pack(foreign, (2, 3)),
        "rank1-22222222.part": archive.pack(overlapping, (1, 2)),
        "rank2-33333333.part": archive.pack(b, (2, 3)),
        "unrelated": b"x",
    }
    for name, data in packed.items():
        (folder / name).write_bytes(data)
    collected = receive_parts(read_part(a), str(shared), receiver, into, messages.append, 2)
    assert [read_part(path).run for path in collected] == ["bbbbbbbb"]
    assert sum(message.startswith("left out") for message in messages) == 3


def test_a_part_that_never_comes_ends_the_wait(tmp_path):
    a, _ = parts(tmp_path)
    for location in ("", str(tmp_path / "shared")):
        assert receive_parts(read_part(a), location, network.Receiver(), tmp_path, lambda _: None, 0.3) == []


def test_an_unwritable_shared_folder_is_an_error(tmp_path):
    _, b = parts(tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TrainyardError) as raised:
        send_part(b, read_part(b), str(tmp_path / "file"), "", lambda _: None)
    assert str(tmp_path / "file") in str(raised.value)


def test_location_is_checked_before_the_job(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for location in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(PlaceUnwritable) as raised:
            collect.check_location(str(location))
        assert "--collect" in str(raised.value)
    collect.check_location(str(tmp_path / "new" / "folder"))
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    for location in ("", "s3://bucket/job"):
        collect.check_location(location)


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "1e9"])
def test_impossible_timeouts_are_refused(monkeypatch, text):
    monkeypatch.setenv(collect.TIMEOUT, text)
    with pytest.raises(BadInput):
        collect.timeout_s()
