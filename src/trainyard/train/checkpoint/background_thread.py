"""A thread that runs jobs one after another while training continues."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any


class Background:
    """One daemon thread for all saves of a rank. The first call of `do` starts it."""

    def __init__(self) -> None:
        """`_waiting`: the queue of (function, future of its result); None in it ends the thread."""
        self._waiting: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread: Thread | None = None

    def do(self, work: Callable[[], Any]) -> Future[Any]:
        """Queues the call `work()` and returns at once. The future gets its result or exception. The first call starts
        the thread."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="checkpoint", daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._waiting.put((work, future))
        return future

    def close(self) -> None:
        """Waits for the queued work, then ends the thread."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        """The thread's loop: calls the queued functions in order and stores each result or exception in its future.
        A None in the queue ends the loop."""
        while (item := self._waiting.get()) is not None:
            work, future = item
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
