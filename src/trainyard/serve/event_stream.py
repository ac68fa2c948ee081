"""A run in progress as server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from trainyard.errors import BadFile, UnknownName
from trainyard.run.live_run import LiveRun
from trainyard.serve.answers import json_of
from trainyard.serve.live_views import LiveView

_POLL_S = 1.0
_KEEP_ALIVE_S = 15.0
"""Seconds without news after which a comment is sent, so that a connection that was lost is noticed."""
_MOST_S = 3600.0
"""Length of a stream; the browser then opens another."""
Look = Callable[[], Awaitable[tuple[LiveRun, int]]]
"""Returns an update and the number of steps in all."""


async def event_stream(view: LiveView, first: Look, poll_s: float = _POLL_S) -> AsyncIterator[bytes]:
    """Yields an event `update` with a `LiveRun` at once and after each change of the run of `view`, and ends with the
    event `ended` when nothing is added to it any more. The first update has the steps so far, at most the latest 1,000.
    `first`: calls the view's `look` for it, which may take seconds.
    """
    clock = asyncio.get_running_loop()
    started = last_sent = clock.time()
    previous: LiveRun | None = None
    seen = 0
    while clock.time() - started < _MOST_S:
        try:
            update, seen = await (first() if previous is None else run_in_threadpool(view.look, seen))
        except (BadFile, UnknownName):  # deleted meanwhile
            break
        except OSError:
            if not view.folder.exists():
                break
            return  # the browser opens another stream
        if update.new_steps or previous is None or update != msgspec.structs.replace(previous, new_steps=()):
            yield b"event: update\ndata: %s\n\n" % json_of(update)
            last_sent = clock.time()
        previous = update
        if update.is_over:
            break
        if clock.time() - last_sent > _KEEP_ALIVE_S:
            yield b": nothing new\n\n"
            last_sent = clock.time()
        await asyncio.sleep(poll_s)
    else:
        return
    yield b"event: ended\ndata: {}\n\n"


class CountedStream(StreamingResponse):
    """A stream of events that calls `on_end` once it has ended, also if it could not begin."""

    def __init__(self, events: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()
