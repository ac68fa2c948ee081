"""Map the clock of an agent's host to the supervisor's clock, by exchanging readings through the store.

An agent asks at `sent` on its own monotonic clock; the supervisor's clock process answers with its reading; the answer
arrives at `received`. The reading was taken in between: at the middle with an error of at most half the time between
them. Of several exchanges the shortest is used. Clocks may drift apart later, by up to 50 ppm (180 ms an hour) between
hosts whose clocks nothing disciplines; agents measure again before each launch of their ranks.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple, NoReturn

from trainyard.launch import epoch
from trainyard.launch.agents.process_title import set_process_name
from trainyard.launch.supervisor.signed_store import BadSignature, SignedStore
from trainyard.pdeathsig import die_with_parent

_QUEUE = "clock"
"""Queue of the store with the keys under which agents wait for a reading."""
_KEY = "clock/"
_ROUNDS = 8
_ANSWER_TIMEOUT = timedelta(seconds=20)
_POLL_TIMEOUT = timedelta(seconds=60)


class MeasuredOffset(NamedTuple):
    """The offset from this host's monotonic clock to the supervisor's clock, and its largest error, both in ns."""

    offset_ns: int
    error_ns: int


def fork_clock_process(host: str, port: int, token: str, listening: socket.socket) -> int:
    """Fork a process that answers the agents' requests for readings, and return its id. It dies with this process.

    Call it before this process runs any thread; the store at `host`:`port` may be opened later, on the socket
    `listening`.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    exit_code = 1
    try:
        die_with_parent(parent, signal.SIGKILL)
        listening.close()
        set_process_name("clock")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _answer(host, port, token)
    finally:
        os._exit(exit_code)


def _answer(host: str, port: int, token: str) -> NoReturn:
    """Answer requests until this process is killed. Raises `DistError` if the store is lost."""
    from torch._C._distributed_c10d import TCPStore
    from torch.distributed import DistStoreError

    store = SignedStore(TCPStore(host, port, None, False, _POLL_TIMEOUT, wait_for_workers=False), token)
    while True:
        with suppress(DistStoreError, BadSignature):  # the timeout of a wait, or a stranger's request
            key = store.open(_QUEUE, store.store.queue_pop(_QUEUE)).decode("utf-8", "replace")
            if key.startswith(_KEY):
                store.set(key, b"%d" % epoch.now_ns())


def measure(store: SignedStore) -> MeasuredOffset:
    """Measure the offset of this host's monotonic clock to the supervisor's clock, in `_ROUNDS` exchanges.

    Takes some milliseconds. Raises `DistError` if the supervisor does not answer, `BadSignature` for a stranger's
    answer.
    """
    store.store.set_timeout(_ANSWER_TIMEOUT)
    best: MeasuredOffset | None = None
    for _ in range(_ROUNDS):
        key = _KEY + secrets.token_hex(8)
        sent_ns = time.monotonic_ns()
        store.store.queue_push(_QUEUE, store.seal(_QUEUE, key.encode()))
        reading_ns = int(store.get(key))
        received_ns = time.monotonic_ns()
        store.store.delete_key(key)
        measured = MeasuredOffset(reading_ns - (sent_ns + received_ns) // 2, (received_ns - sent_ns + 1) // 2)
        if best is None or measured.error_ns < best.error_ns:
            best = measured
    assert best is not None  # noqa: S101 - there is at least one round
    return best
