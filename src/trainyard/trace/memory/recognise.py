"""Recognises memory snapshots by their first bytes, without loading the code that reads them."""

from __future__ import annotations

from pathlib import Path

from trainyard.errors import BadFile
from trainyard.trace.readers.kineto.unpack import peek


def is_snapshot(path: Path) -> bool:
    """Whether the file begins like a snapshot: with a pickle's protocol byte, or as JSON with the key segments but not
    traceEvents, the key of a profile. False for a file that cannot be read."""
    try:
        head = peek(path, 1 << 16)  # the first 64 KiB, decompressed if it is a gzip
    except BadFile:
        return False
    if head[:1] == b"\x80":
        return True
    return head.lstrip()[:1] in (b"{", b"[") and b'"segments"' in head and b'"traceEvents"' not in head
