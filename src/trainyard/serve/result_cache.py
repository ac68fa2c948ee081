"""A cache of documents that are expensive to compute, shared by the threads of a server."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future


class ResultCache:
    """Documents by key, of at most `most_bytes` in all; those that were not used for the longest time are dropped."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._documents: OrderedDict[Hashable, bytes] = OrderedDict()
        self._bytes = 0
        self._running: dict[Hashable, Future[bytes]] = {}

    def known(self, key: Hashable) -> bytes | None:
        """The document of a key if it is kept."""
        with self._lock:
            if key in self._documents:
                self._documents.move_to_end(key)
            return self._documents.get(key)

    def get(self, key: Hashable, compute: Callable[[], bytes]) -> bytes:
        """The document of a key. Concurrent calls with the same key compute it once; an error is raised in all of them
        and not kept."""
        with self._lock:
            if key in self._documents:
                self._documents.move_to_end(key)
                return self._documents[key]
            running = self._running.get(key)
            if running is None:
                own: Future[bytes] = Future()
                self._running[key] = own
        if running is not None:
            return running.result()
        try:
            document = compute()
        except BaseException as error:
            with self._lock:
                del self._running[key]
            own.set_exception(error)
            raise
        with self._lock:
            del self._running[key]
            self._keep(key, document)
        own.set_result(document)
        return document

    def _keep(self, key: Hashable, document: bytes) -> None:
        """Add a document, and drop others if there are too many bytes; a document larger than the cache is not kept."""
        if len(document) > self._most_bytes:
            return
        self._documents[key] = document
        self._bytes += len(document)
        while self._bytes > self._most_bytes:
            _, dropped = self._documents.popitem(last=False)
            self._bytes -= len(dropped)
