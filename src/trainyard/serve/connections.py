"""Bounds on connections, so that clients which send nothing cannot use up the server's open files."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from trainyard.launch.supervisor.listen import raise_open_files_limit

REQUEST_S = 15.0
"""Seconds that a client has for a complete request; twice as many if it comes right after another one."""
_MOST_CONNECTIONS = 1024
_FILES_SHARE = 2
"""The connections may use one file in this many; the others are for the runs and the index."""


def most_connections() -> int:
    """The number of connections that may be open at once, after raising the limit of open files if possible."""
    raise_open_files_limit()
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(_MOST_CONNECTIONS, files // _FILES_SHARE)


class BoundedProtocol(H11Protocol):
    """Closes new connections when too many are open, and those over which no complete request comes in time. A class
    is derived for each server, since uvicorn makes the instances. `most`: number of connections; `request_s`: seconds
    for a request."""

    most: int
    request_s: float = REQUEST_S
    _check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
        else:
            self._check_later(self.cycle)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._check is not None:
            self._check.cancel()
        super().connection_lost(exc)

    def _check_later(self, last: Any) -> None:
        """Look again whether a request has come. `last`: the latest one, or a mark for one that is being answered."""
        self._check = self.loop.call_later(self.request_s, self._close_if_waiting, last)

    def _close_if_waiting(self, last: Any) -> None:
        """Close the connection if no request has been completed since `last` and none is being answered."""
        cycle = self.cycle
        if cycle is not None and not cycle.more_body and not cycle.response_complete:
            self._check_later(_ANSWERING)
        elif cycle is last:
            self.transport.abort()
        else:
            self._check_later(cycle)


_ANSWERING = object()


def bounded_protocol(most: int, request_s: float = REQUEST_S) -> type[BoundedProtocol]:
    """The protocol of a server with at most `most` connections."""
    return type("BoundedProtocol", (BoundedProtocol,), {"most": most, "request_s": request_s})
