"""A chrome trace as a stream: walks the document piece by piece, gives its events to a scanner, keeps its header.

What stands in the way costs no more than itself: an entry that cannot be read is counted, and where the text ends
early or stops being JSON, what was whole before is kept and the loss is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from typing import Protocol

from trainyard.errors import BadFile, FileTooLarge
from trainyard.trace.readers.kineto.event import ChromeEvent, read_event
from trainyard.trace.readers.kineto.unpack import UnpackedText

_HEADER = ("deviceProperties", "distributedInfo", "baseTimeNanoseconds", "host_name")
_SPACE = re.compile(rb"[ \t\r\n,]*")
_TEXT = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN = re.compile(_TEXT + rb'|[\[\]{}"]', re.S)


def _brackets(depth: int) -> bytes:
    """A pattern of an object or list with at most so many brackets in one another, which one call then reads."""
    inside = b"|" + _brackets(depth - 1) if depth > 1 else b""
    return rb'[\[{](?:[^\[\]{}"]++|%b%b)*+[\]}]' % (_TEXT, inside)


_SHALLOW = re.compile(_TEXT + b"|" + _brackets(5), re.S)
_SCALAR = re.compile(rb"[^\s,\[\]{}\":]+")
_RUBBISH = re.compile(rb"[\s:}]+|[^\s,\[\]{}\"]+")
_LONGEST = 16 << 20
"""Bytes of one entry or header value, at most."""
_DEEPEST = 1000
"""Brackets in one another, at most."""
_HOPELESS = 100_000
"""Entries that cannot be read, and outnumber the ones that can: from here on the rest is left."""


class StopReason(IntEnum):
    """Why a scanner stopped: its text is used up; the list of events ends; an event it leaves to others."""

    NEED_MORE, CLOSED, ODD = range(3)


class Scanner(Protocol):
    """Reads the text of events into columns."""

    entries: int

    def feed(self, text: bytes, at: int) -> tuple[int, StopReason]:
        """Up to where it has read whole events of the text from `at` on, and why it stopped."""
        ...

    def add(self, event: ChromeEvent) -> None:
        """An event that was read apart."""
        ...


class Walk:
    """One pass over a document. After `run`: `header` (key -> raw JSON), `lost` (sentences), `unread` (entries)."""

    def __init__(self, text: UnpackedText) -> None:
        self.text = text
        self.header: dict[str, bytes] = {}
        self.lost: list[str] = []
        self.unread = 0
        self.entries = 0
        self._pieces: Iterator[bytes] = iter(text)
        self._rest, self._at = b"", 0
        self._more, self._too_deep = True, False

    def header_first(self) -> bool:
        """Reads the header up to the list of events; whether there is one. Raises `BadFile`."""
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
        """Gives all events to the scanner, then reads what follows them."""
        again = True
        while again:
            closed = self._events(scanner)
            again = closed and not self._bare and self._to_events()
        for _ in self._pieces:  # what follows a bare list or a closed document means nothing, but may be damaged
            pass
        if self.text.lost:
            self.lost.insert(0, self.text.lost)
        self.entries = scanner.entries + self.unread

    def _fetch(self, least: int = 1) -> None:
        """Appends at least so many bytes, where there are more."""
        pieces = [self._rest[self._at :]]
        while least > 0 and (piece := next(self._pieces, None)) is not None:
            pieces.append(piece)
            least -= len(piece)
        self._more = least <= 0
        self._rest, self._at = b"".join(pieces), 0

    def _grow(self, what: str) -> None:
        """Doubles what is left to read, so that looking at it again costs no more than reading it did."""
        left = len(self._rest) - self._at
        if left > _LONGEST:
            raise FileTooLarge(f"{self.text.path}: one {what} is longer than {_LONGEST:,} bytes: no profiler's.")
        self._fetch(max(1, left))

    def _peek(self) -> bytes:
        """The next byte that is neither space nor comma; empty at the end."""
        while True:
            space = _SPACE.match(self._rest, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._rest) or not self._more:
                return self._rest[self._at : self._at + 1]
            self._fetch()

    def _to_events(self) -> bool:
        """Reads keys and values until a list named traceEvents has begun; False where none (more) comes."""
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
            value = self._value()
            if value is None:
                self.lost.append(self._unfinished(name[:60]))
                return False
            if name in _HEADER:
                self.header[name] = value
        if not first:
            self.lost.append("the file ends before its closing bracket")
        return False

    def _events(self, scanner: Scanner) -> bool:
        """Whether the list came to its end."""
        while True:
            self._at, why = scanner.feed(self._rest, self._at)
            if why == StopReason.CLOSED:
                return True
            if why == StopReason.ODD:
                if not self._odd(scanner):
                    return False
            elif self._more:
                self._grow("entry")
            elif self._peek() in (b"", b"]"):
                break
            elif not self._odd(scanner):  # what the scanner waits for may be whole all the same
                return False
        if self._peek() == b"]":
            self._at += 1
            return True
        self.lost.append("the file ends before its list of events does")
        return False

    def _odd(self, scanner: Scanner) -> bool:
        """Reads the entry, or the rubbish, that stands next by itself; whether to go on."""
        if self._peek() in b'{["':
            text = self._value()
        else:
            found = _RUBBISH.match(self._rest, self._at)
            self._at = found.end() if found else self._at + 1
            text = b""
        if text is None:
            self.lost.append(self._unfinished("an event"))
            return False
        event = read_event(text) if text else None
        if event is not None:
            scanner.add(event)
            return True
        self.unread += 1
        if self.unread > _HOPELESS and self.unread > scanner.entries:
            self.lost.append(f"{self.unread:,} entries are no events; what follows was left out")
            return False
        return True

    def _unfinished(self, what: str) -> str:
        if self._too_deep:
            return f"{what} nests more than {_DEEPEST:,} brackets; it and what follows were left out"
        return f"the file ends inside {what}; {len(self._rest) - self._at:,} bytes of it were lost"

    def _value(self) -> bytes | None:
        """The value that begins here; None where the text ends inside it, or nests too deeply to be a profiler's."""
        begin = self._peek()
        if begin and begin not in b'{["':
            while (found := _SCALAR.match(self._rest, self._at)) and found.end() == len(self._rest) and self._more:
                self._grow("value")
            value = found[0] if found else b""
            self._at += len(value)
            return value or None
        if shallow := _SHALLOW.match(self._rest, self._at):
            self._at = shallow.end()
            return shallow[0]
        depth, seen = 0, self._at
        while True:
            for token in _TOKEN.finditer(self._rest, seen):
                first = self._rest[token.start()]
                if first in b"[{":
                    depth += 1
                elif first in b"]}":
                    depth -= 1
                elif token.end() - token.start() == 1:
                    break  # a string that goes on beyond the text
                seen = token.end()
                if depth <= 0:
                    value = self._rest[self._at : seen]
                    self._at = seen
                    return value
                self._too_deep = depth > _DEEPEST
                if self._too_deep:
                    return None
            else:
                seen = len(self._rest)
            if not self._more:
                return None
            seen -= self._at
            self._grow("value")
