"""Streams a chrome trace: walks the document piece by piece, passes its events to a scanner and keeps its header.

The document is a JSON object with the list `traceEvents`, or that list alone. Its header is the object's other keys. A
scanner (`rows.Rows` or the compiled `scanner.CompiledScanner`) turns the text of events into columns.

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
    """Why a scanner stopped. NEED_MORE: the text ends inside or after an event; CLOSED: the list of events ended;
    IRREGULAR: the next entry is one that the scanner cannot read. `native/scan.c` returns the same numbers."""

    NEED_MORE, CLOSED, IRREGULAR = range(3)


class Scanner(Protocol):
    """Reads the text of events into columns. `entries`: number of events read so far."""

    entries: int

    def feed(self, text: bytes, at: int) -> tuple[int, StopReason]:
        """Reads events from byte `at` of `text` on. Returns the position after the last complete event (after the
        closing bracket if the list ended), and why the scanner stopped there."""
        ...

    def add(self, event: ChromeEvent) -> None:
        """Adds an event that was decoded separately."""
        ...


class Walk:
    """One pass over a document: call `read_header`, then, if it returns true, `run`.

    After `run`: `header` (key of the document -> its value as raw JSON), `lost` (a description of each loss by
    truncation or damage) and `unreadable_entries` (number of entries of the list that are not events).
    """

    def __init__(self, text: UnpackedText) -> None:
        """`text`: the file's text in pieces, read only as the walk proceeds."""
        self.text = text
        self.header: dict[str, bytes] = {}
        self.lost: list[str] = []
        self.unreadable_entries = 0
        self.entries = 0
        """Entries of the list of events, including unreadable ones."""
        self._pieces: Iterator[bytes] = iter(text)
        # The text in memory and the position of the next byte to read in it.
        self._buffer, self._position = b"", 0
        self._has_more_pieces = True
        self._too_deep = False
        """Whether the last value that could not be read was nested too deeply."""
        self._is_bare_list = False
        """Whether the document is the list of events alone."""

    def read_header(self) -> bool:
        """Reads the keys before the list of events into `header`, and the list's opening bracket. Returns whether there
        is such a list. Raises `BadFile` if the text is neither a JSON object nor a list."""
        self._fetch()
        self._buffer = self._buffer.removeprefix(b"\xef\xbb\xbf")
        first = self._peek()
        if first not in (b"[", b"{"):
            problem = (
                "not JSON: it begins with neither { nor ["
                if first
                else f"the file is empty ({self.text.size:,} bytes of white space)"
            )
            raise BadFile(f"{self.text.path}: {problem}.", "trainyard reads torch.profiler's chrome traces here.")
        self._position += 1
        self._is_bare_list = first == b"["
        return self._is_bare_list or self._seek_events()

    def run(self, scanner: Scanner) -> None:
        """Passes all events to the scanner, then reads the rest of the document; sets `entries` and appends to `lost`.
        A document may hold several lists named traceEvents. Raises `FileTooLarge` if an entry is too long."""
        more_events = True
        while more_events:
            closed = self._feed_events(scanner)
            more_events = closed and not self._is_bare_list and self._seek_events()
        for _ in self._pieces:  # the text after a bare list or a closed document is ignored, but may be damaged
            pass
        if self.text.lost:
            self.lost.insert(0, self.text.lost)
        self.entries = scanner.entries + self.unreadable_entries

    def _fetch(self, min_bytes: int = 1) -> None:
        """Drops the text before the position and appends at least `min_bytes` bytes, or all that are left."""
        pieces = [self._buffer[self._position :]]
        while min_bytes > 0 and (piece := next(self._pieces, None)) is not None:
            pieces.append(piece)
            min_bytes -= len(piece)
        self._has_more_pieces = min_bytes <= 0
        self._buffer, self._position = b"".join(pieces), 0

    def _grow(self, part: str) -> None:
        """Doubles the unread text, so that rescanning it takes linear time in total. Raises `FileTooLarge`, which names
        the `part` being read (`entry`, `value`), if the unread text has the maximum length already."""
        unread_bytes = len(self._buffer) - self._position
        if unread_bytes > _MAX_VALUE_BYTES:
            raise FileTooLarge(f"{self.text.path}: one {part} is longer than {_MAX_VALUE_BYTES:,} bytes, the maximum.")
        self._fetch(max(1, unread_bytes))

    def _peek(self) -> bytes:
        """Moves to the next byte that is not white space or a comma, and returns it; empty at the end of the text."""
        while True:
            space = _SPACE_AND_COMMAS.match(self._buffer, self._position)
            self._position = space.end() if space else self._position
            if self._position < len(self._buffer) or not self._has_more_pieces:
                return self._buffer[self._position : self._position + 1]
            self._fetch()

    def _seek_events(self) -> bool:
        """Reads keys and values of the document into `header` up to the first entry of the next list named traceEvents.
        Returns whether there is one; if damage prevents it, `lost` describes the damage."""
        while (first := self._peek()) and first != b"}":
            key = self._read_value() if first == b'"' else None
            if key is None or self._peek() != b":":
                self.lost.append(
                    f"outside the list of events the file is not JSON, within its first {self.text.size:,} bytes; "
                    "the rest was left out"
                )
                return False
            self._position += 1
            begin = self._peek()
            if key == b'"traceEvents"' and begin == b"[":
                self._position += 1
                return True
            name = key.decode("utf-8", "replace").strip('"')
            if name not in _HEADER_KEYS:
                if not self._skip_value():
                    self.lost.append(self._describe_unfinished(name[:60]))
                    return False
                continue
            value = self._read_value()
            if value is None:
                self.lost.append(self._describe_unfinished(name[:60]))
                return False
            self.header[name] = value
        if not first:
            self.lost.append("the file ends before its closing bracket")
        return False

    def _feed_events(self, scanner: Scanner) -> bool:
        """Passes the entries of a list of events to the scanner; those that it cannot read are decoded singly. Returns
        whether the list was complete; if not, `lost` describes the reason."""
        while True:
            self._position, reason = scanner.feed(self._buffer, self._position)
            if reason == StopReason.CLOSED:
                return True
            if reason == StopReason.IRREGULAR:
                if not self._read_single_entry(scanner):
                    return False
            elif self._has_more_pieces:
                self._grow("entry")
            elif self._peek() in (b"", b"]"):
                break
            elif not self._read_single_entry(scanner):  # the entry that the scanner waits for may be complete
                return False
        if self._peek() == b"]":
            self._position += 1
            return True
        self.lost.append("the file ends before its list of events does")
        return False

    def _read_single_entry(self, scanner: Scanner) -> bool:
        """Reads the next entry of the list with the tolerant decoder, and passes it to the scanner if it is an event;
        anything else, also text between entries, counts as unreadable. Returns whether to continue: False if the entry
        is incomplete or too many are unreadable, which `lost` then describes."""
        if self._peek() in b'{["':
            text = self._read_value()
        else:
            junk = _JUNK.match(self._buffer, self._position)
            self._position = junk.end() if junk else self._position + 1
            text = b""
        if text is None:
            self.lost.append(self._describe_unfinished("an event"))
            return False
        event = read_event(text) if text else None
        if event is not None:
            scanner.add(event)
            return True
        self.unreadable_entries += 1
        if self.unreadable_entries > _MAX_UNREADABLE and self.unreadable_entries > scanner.entries:
            self.lost.append(f"{self.unreadable_entries:,} entries are not events; the rest was left out")
            return False
        return True

    def _describe_unfinished(self, part: str) -> str:
        """A sentence on the `part` of the document (`an event`, a key) that could not be read to its end."""
        if self._too_deep:
            return f"{part} nests more than {_MAX_NESTING:,} brackets; it and the rest of the file were left out"
        return f"the file ends inside {part}; {len(self._buffer) - self._position:,} bytes of it were lost"

    def _skip_value(self) -> bool:
        """Skips the JSON value at the position, of any size; returns whether it is complete."""
        cursor = JsonText(self._pieces, self._buffer, self._position)  # reads on from here without keeping the value
        is_complete = cursor.skip_value()
        self._buffer, self._position = cursor.text, cursor.at
        return is_complete

    def _read_value(self) -> bytes | None:
        """Reads the JSON value at the position and moves behind it; returns its text. None if there is no value, if the
        document ends inside it, or if it is nested too deeply, which sets `_too_deep`. Raises `FileTooLarge`."""
        begin = self._peek()
        if begin and begin not in b'{["':
            while (
                (scalar := _SCALAR.match(self._buffer, self._position))
                and scalar.end() == len(self._buffer)
                and self._has_more_pieces
            ):
                self._grow("value")
            value = scalar[0] if scalar else b""
            self._position += len(value)
            return value or None
        if shallow := _SHALLOW_VALUE.match(self._buffer, self._position):
            self._position = shallow.end()
            return shallow[0]
        depth, scanned = 0, self._position
        while True:
            for token in _TOKEN.finditer(self._buffer, scanned):
                first = self._buffer[token.start()]
                if first in b"[{":
                    depth += 1
                elif first in b"]}":
                    depth -= 1
                elif token.end() - token.start() == 1:
                    break  # a string that continues beyond the text
                scanned = token.end()
                if depth <= 0:
                    value = self._buffer[self._position : scanned]
                    self._position = scanned
                    return value
                self._too_deep = depth > _MAX_NESTING
                if self._too_deep:
                    return None
            else:
                scanned = len(self._buffer)
            if not self._has_more_pieces:
                return None
            scanned -= self._position
            self._grow("value")
