"""Streams a chrome trace: walks the document piece by piece, passes its events to a scanner and keeps its header.

Damage is contained: unreadable entries are counted, and if the text ends early or stops being JSON, the complete
events before that are kept and the loss is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from typing import Protocol

from trainyard.errors import BadFile, FileTooLarge
from trainyard.recorded_stacks import STACKS_KEY
from trainyard.trace.readers.json_keys import STRING, JsonText, brackets
from trainyard.trace.readers.kineto.event import ChromeEvent, read_event
from trainyard.trace.readers.kineto.header import LOG_KEYS
from trainyard.trace.readers.kineto.unpack import UnpackedText

_HEADER_KEYS = ("deviceProperties", "distributedInfo", "baseTimeNanoseconds", "host_name", STACKS_KEY, *LOG_KEYS)
_SPACE_AND_COMMAS = re.compile(rb"[ \t\r\n,]*")
_TOKEN = re.compile(STRING + rb'|[\[\]{}"]', re.S)
_SHALLOW_VALUE = re.compile(STRING + b"|" + brackets(5), re.S)
_SCALAR = re.compile(rb"[^\s,\[\]{}\":]+")
_JUNK = re.compile(rb"[\s:}]+|[^\s,\[\]{}\"]+")
_MAX_VALUE_BYTES = 16 << 20
"""Maximum bytes of one entry or header value."""
_MAX_NESTING = 1000
"""Maximum nesting of brackets."""
_MAX_UNREADABLE = 100_000
"""Reading stops after this many unreadable entries if they outnumber the readable ones."""


class StopReason(IntEnum):
    """Why a scanner stopped: it needs more text; the list of events ends; an event that it cannot read."""

    NEED_MORE, CLOSED, ODD = range(3)


class Scanner(Protocol):
    """Reads the text of events into columns."""

    entries: int

    def feed(self, text: bytes, at: int) -> tuple[int, StopReason]:
        """Reads events from `at` on; returns the position after the last complete event and why it stopped."""
        ...

    def add(self, event: ChromeEvent) -> None:
        """Adds an event that was decoded separately."""
        ...


class Walk:
    """One pass over a document. After `run`: `header` (key -> raw JSON), `lost` (descriptions of what was lost) and
    `unread` (number of unreadable entries)."""

    def __init__(self, text: UnpackedText) -> None:
        """`text`: the file's text in pieces, read only as the walk proceeds."""
        self.text = text
        self.header: dict[str, bytes] = {}
        self.lost: list[str] = []
        self.unread = 0
        self.entries = 0
        """Entries of the list of events, including unreadable ones."""
        self._pieces: Iterator[bytes] = iter(text)
        # The unconsumed text and the position in it; whether more pieces follow; whether a value is nested too deep.
        self._rest, self._at = b"", 0
        self._more, self._too_deep = True, False

    def header_first(self) -> bool:
        """Reads the header up to the list of events; returns whether there is one. Raises `BadFile`."""
        self._fetch()
        self._rest = self._rest.removeprefix(b"\xef\xbb\xbf")
        first = self._peek()
        if first not in (b"[", b"{"):
            problem = (
                "not JSON: it begins with neither { nor ["
                if first
                else f"the file is empty ({self.text.size:,} bytes of white space)"
            )
            raise BadFile(f"{self.text.path}: {problem}.", "trainyard reads torch.profiler's chrome traces here.")
        self._at += 1
        self._bare = first == b"["
        return self._bare or self._to_events()

    def run(self, scanner: Scanner) -> None:
        """Passes all events to the scanner, then reads the rest of the document."""
        more_events = True
        while more_events:
            closed = self._events(scanner)
            more_events = closed and not self._bare and self._to_events()
        for _ in self._pieces:  # the text after a bare list or a closed document is ignored, but may be damaged
            pass
        if self.text.lost:
            self.lost.insert(0, self.text.lost)
        self.entries = scanner.entries + self.unread

    def _fetch(self, min_bytes: int = 1) -> None:
        """Appends at least `min_bytes` bytes, or all that are left."""
        pieces = [self._rest[self._at :]]
        while min_bytes > 0 and (piece := next(self._pieces, None)) is not None:
            pieces.append(piece)
            min_bytes -= len(piece)
        self._more = min_bytes <= 0
        self._rest, self._at = b"".join(pieces), 0

    def _grow(self, part: str) -> None:
        """Doubles the unread text, so that rescanning it takes linear time in total."""
        unread_bytes = len(self._rest) - self._at
        if unread_bytes > _MAX_VALUE_BYTES:
            raise FileTooLarge(f"{self.text.path}: one {part} is longer than {_MAX_VALUE_BYTES:,} bytes, the maximum.")
        self._fetch(max(1, unread_bytes))

    def _peek(self) -> bytes:
        """The next byte that is not white space or a comma; empty at the end."""
        while True:
            space = _SPACE_AND_COMMAS.match(self._rest, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._rest) or not self._more:
                return self._rest[self._at : self._at + 1]
            self._fetch()

    def _to_events(self) -> bool:
        """Reads keys and values up to the beginning of the next list named traceEvents; False if there is none."""
        while (first := self._peek()) and first != b"}":
            key = self._value() if first == b'"' else None
            if key is None or self._peek() != b":":
                self.lost.append(
                    f"outside the list of events the file is not JSON, within its first {self.text.size:,} bytes; "
                    "the rest was left out"
                )
                return False
            self._at += 1
            begin = self._peek()
            if key == b'"traceEvents"' and begin == b"[":
                self._at += 1
                return True
            name = key.decode("utf-8", "replace").strip('"')
            if name not in _HEADER_KEYS:
                if not self._skip_value():
                    self.lost.append(self._unfinished(name[:60]))
                    return False
                continue
            value = self._value()
            if value is None:
                self.lost.append(self._unfinished(name[:60]))
                return False
            self.header[name] = value
        if not first:
            self.lost.append("the file ends before its closing bracket")
        return False

    def _events(self, scanner: Scanner) -> bool:
        """Reads a list of events; returns whether it was complete."""
        while True:
            self._at, reason = scanner.feed(self._rest, self._at)
            if reason == StopReason.CLOSED:
                return True
            if reason == StopReason.ODD:
                if not self._odd(scanner):
                    return False
            elif self._more:
                self._grow("entry")
            elif self._peek() in (b"", b"]"):
                break
            elif not self._odd(scanner):  # the entry that the scanner waits for may be complete
                return False
        if self._peek() == b"]":
            self._at += 1
            return True
        self.lost.append("the file ends before its list of events does")
        return False

    def _odd(self, scanner: Scanner) -> bool:
        """Reads the next entry, or junk between entries, separately; returns whether to continue."""
        if self._peek() in b'{["':
            text = self._value()
        else:
            junk = _JUNK.match(self._rest, self._at)
            self._at = junk.end() if junk else self._at + 1
            text = b""
        if text is None:
            self.lost.append(self._unfinished("an event"))
            return False
        event = read_event(text) if text else None
        if event is not None:
            scanner.add(event)
            return True
        self.unread += 1
        if self.unread > _MAX_UNREADABLE and self.unread > scanner.entries:
            self.lost.append(f"{self.unread:,} entries are not events; the rest was left out")
            return False
        return True

    def _unfinished(self, part: str) -> str:
        if self._too_deep:
            return f"{part} nests more than {_MAX_NESTING:,} brackets; it and the rest of the file were left out"
        return f"the file ends inside {part}; {len(self._rest) - self._at:,} bytes of it were lost"

    def _skip_value(self) -> bool:
        """Skips the value that begins here, of any size; returns whether it is complete."""
        cursor = JsonText(self._pieces, self._rest, self._at)
        is_complete = cursor.skip_value()
        self._rest, self._at = cursor.text, cursor.at
        return is_complete

    def _value(self) -> bytes | None:
        """Reads the value that begins here; None if the text ends inside it or it is nested too deeply."""
        begin = self._peek()
        if begin and begin not in b'{["':
            while (scalar := _SCALAR.match(self._rest, self._at)) and scalar.end() == len(self._rest) and self._more:
                self._grow("value")
            value = scalar[0] if scalar else b""
            self._at += len(value)
            return value or None
        if shallow := _SHALLOW_VALUE.match(self._rest, self._at):
            self._at = shallow.end()
            return shallow[0]
        depth, scanned = 0, self._at
        while True:
            for token in _TOKEN.finditer(self._rest, scanned):
                first = self._rest[token.start()]
                if first in b"[{":
                    depth += 1
                elif first in b"]}":
                    depth -= 1
                elif token.end() - token.start() == 1:
                    break  # a string that continues beyond the text
                scanned = token.end()
                if depth <= 0:
                    value = self._rest[self._at : scanned]
                    self._at = scanned
                    return value
                self._too_deep = depth > _MAX_NESTING
                if self._too_deep:
                    return None
            else:
                scanned = len(self._rest)
            if not self._more:
                return None
            scanned -= self._at
            self._grow("value")
