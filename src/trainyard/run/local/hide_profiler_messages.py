"""Keeps the progress messages of torch's profiler (libkineto's `USDT:` lines) out of stderr.

The library prints them at each start and stop of a profile, whatever its log level.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from torch.profiler import profile

_PREFIX = b"USDT:"
_STDERR = 2
"""Descriptor of stderr, to which native code writes."""


class QuietProfile(profile):
    """torch's profiler without messages at its start and stop."""

    def start_trace(self) -> None:
        with hidden_messages():
            super().start_trace()

    def stop_trace(self) -> None:
        with hidden_messages():
            super().stop_trace()


@contextmanager
def hidden_messages() -> Iterator[None]:
    """For the duration of the context, stderr goes to a temporary file; then its lines that do not begin with the
    prefix of the profiler's messages are written to stderr. If stderr is closed, nothing is changed."""
    sys.stderr.flush()
    try:
        stderr = os.dup(_STDERR)
    except OSError:
        yield
        return
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), _STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, _STDERR)
            os.close(stderr)
            _write_rest(kept)


def _write_rest(kept: IO[bytes]) -> None:
    """Writes the lines of the temporary file, except the profiler's messages, to stderr."""
    kept.seek(0)
    rest = b"".join(line for line in kept if not line.startswith(_PREFIX))
    if rest:
        os.write(_STDERR, rest)
