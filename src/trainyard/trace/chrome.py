"""A chrome trace as a stream: walks the document piece by piece, gives its events to a scanner, keeps its header.

What stands in the way costs no more than itself: an entry that cannot be read is counted, and where the text ends
early or stops being JSON, what was whole before is kept and the loss is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from typing import Protocol

from trainyard.errors import BadFile
from trainyard.trace.event import Event, read_event
from trainyard.trace.unpack import Text

_HEADER = ("deviceProperties", "distributedInfo", "baseTimeNanoseconds", "host_name")
_SPACE = b" \t\r\n"
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}"]', re.S)
_SCALAR = re.compile(rb"[^\s,\[\]{}\":]+")
_NOTHING = re.compile(rb"[\s:}]+|[^\s,\[\]{}\"]+")
_LONGEST = 64 << 20
"""Bytes of one entry or header value, at most."""


class Why(IntEnum):
    """Why a scanner stopped: its text is used up; the list of events ends; an event it leaves to others."""

    NEED_MORE, CLOSED, ODD = range(3)


class Scanner(Protocol):
    """Reads the text of events into columns."""

    entries: int

    def feed(self, text: bytes) -> tuple[int, Why]:
        """How many bytes of whole events it has read, and why it stopped."""
        ...

    def add(self, event: Event) -> None:
        """An event that was read apart."""
        ...


class Walk:
    """One pass over a document. After `run`: `header` (key -> raw JSON), `lost` (sentences), `unread` (entries)."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.header: dict[str, bytes] = {}
        self.lost: list[str] = []
        self.unread = 0
        self.entries = 0
        self._pieces: Iterator[bytes] = iter(text)
        self._rest = b""
        self._more = True

    def header_first(self) -> bool:
        """Reads the header up to the list of events; whether there is one. Raises `BadFile`."""
        self._fetch()
        self._rest = self._rest.removeprefix(b"\xef\xbb\xbf")
        while not self._skip_space() and self._more:
            self._fetch()
        if self._rest[:1] == b"[":
            self._bare, self._rest = True, self._rest[1:]
            return True
        if self._rest[:1] != b"{":
            what = "the file is empty" if not self._rest else "not JSON: it begins with neither { nor ["
            raise BadFile(f"{self.text.path}: {what}.", "trainyard reads torch.profiler's chrome traces here.")
        self._bare, self._rest = False, self._rest[1:]
        return self._to_events()

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

    def _fetch(self) -> None:
        piece = next(self._pieces, None)
        if piece is None:
            self._more = False
        else:
            self._rest += piece

    def _skip_space(self) -> bool:
        """Drops white space and commas; whether anything is left."""
        self._rest = self._rest.lstrip(_SPACE + b",")
        return bool(self._rest)

    def _peek(self) -> bytes:
        while not self._skip_space() and self._more:
            self._fetch()
        return self._rest[:1]

    def _to_events(self) -> bool:
        """Reads keys and values until a list named traceEvents has begun; False where none (more) comes."""
        while (first := self._peek()) and first != b"}":
            key = self._value(first == b'"')
            if key is None or first != b'"' or self._peek() != b":":
                self.lost.append("outside the list of events the file is no JSON; what follows was left out")
                return False
            self._rest = self._rest[1:]
            begin = self._peek()
            if key == b'"traceEvents"' and begin == b"[":
                self._rest = self._rest[1:]
                return True
            name = key.decode("utf-8", "replace").strip('"')
            value = self._value(name in _HEADER)
            if value is None:
                self.lost.append(f"the file ends inside {name[:60]}")
                return False
            if name in _HEADER:
                self.header[name] = value
        if not first:
            self.lost.append("the file ends before its closing bracket")
        return False

    def _events(self, scanner: Scanner) -> bool:
        """Whether the list came to its end."""
        while True:
            done, why = scanner.feed(self._rest)
            self._rest = self._rest[done:]
            if why == Why.CLOSED:
                return True
            if why == Why.ODD:
                length = self._entry_length()
                if length is not None:
                    self._odd(scanner, self._rest[:length])
                    self._rest = self._rest[length:]
                    continue
            if self._more:
                if len(self._rest) > _LONGEST:
                    raise BadFile(f"{self.text.path}: one entry is longer than {_LONGEST:,} bytes: no profiler's.")
                self._fetch()
            else:
                return self._cut_short(scanner)

    def _cut_short(self, scanner: Scanner) -> bool:
        """The text has ended, and the scanner waits for more. Its last entries may be whole all the same."""
        while self._skip_space() and self._rest[:1] != b"]":
            length = self._entry_length()
            if length is None:
                self.lost.append(f"the file ends inside an event; {len(self._rest):,} bytes of it were lost")
                self._rest = b""
                return False
            self._odd(scanner, self._rest[:length])
            self._rest = self._rest[length:]
        if self._rest:
            self._rest = self._rest[1:]
            return True
        self.lost.append("the file ends before its list of events does")
        return False

    def _odd(self, scanner: Scanner, text: bytes) -> None:
        event = read_event(text)
        if event is None:
            self.unread += 1
        else:
            scanner.add(event)

    def _entry_length(self) -> int | None:
        """Of the entry, or the rubbish, that the rest begins with; None where its end is not in sight."""
        if self._rest[:1] in b'{["':
            return _Depth().end(self._rest)
        found = _NOTHING.match(self._rest)
        return found.end() if found and (found.end() < len(self._rest) or not self._more) else None

    def _value(self, keep: bool) -> bytes | None:
        """The value that begins here, or b"" where it is not kept; None where the text ends inside it."""
        if self._peek() not in b'{["':
            while (found := _SCALAR.match(self._rest)) and found.end() == len(self._rest) and self._more:
                self._fetch()
            value = found[0] if found else b""
            self._rest = self._rest[len(value) :]
            return value or None
        depth = _Depth()
        kept = b""
        while True:
            end = depth.end(self._rest)
            if keep:
                kept += self._rest[: end if end is not None else depth.seen]
                if len(kept) > _LONGEST:
                    raise BadFile(f"{self.text.path}: a header value is longer than {_LONGEST:,} bytes.")
            if end is not None:
                self._rest = self._rest[end:]
                return kept
            if not self._more:
                return None
            self._rest, depth.seen = self._rest[depth.seen :], 0
            self._fetch()


class _Depth:
    """Finds the end of a bracketed value or string over several pieces of text."""

    def __init__(self) -> None:
        self.depth, self.seen = 0, 0

    def end(self, text: bytes) -> int | None:
        """Where the value ends in `text`, or None; `seen` is then how much of the text need not be looked at again."""
        for token in _TOKEN.finditer(text, self.seen):
            first = text[token.start()]
            if first in b"[{":
                self.depth += 1
            elif first in b"]}":
                self.depth -= 1
            elif token.end() - token.start() == 1:
                break  # a string that goes on beyond the text
            self.seen = token.end()
            if self.depth <= 0:
                return self.seen
        else:
            self.seen = len(text)
        return None
