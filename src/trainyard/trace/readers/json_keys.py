"""The top-level keys of a JSON object, read from its text piece by piece in bounded memory.

A value is skipped without being decoded, complete strings and shallow brackets in one match, so that a large value
costs about as much as a search for a byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
"""A pattern of a complete JSON string."""
_MAX_KEY_BYTES = 1 << 14
"""A longer key ends the reading: no profiler writes one."""


def brackets(depth: int) -> bytes:
    """A pattern that matches an object or list with at most `depth` levels of nested brackets."""
    inside = b"|" + brackets(depth - 1) if depth > 1 else b""
    return rb'[\[{](?:[^\[\]{}"]++|%b%b)*+[\]}]' % (STRING, inside)


_SPACE_AND_COMMAS = re.compile(rb"[ \t\r\n,]*")
_KEY = re.compile(STRING, re.S)
_SCALAR = re.compile(rb"[^,}\]\s]*")
_INSIDE = re.compile(rb'(?:[^\[\]{}"]++|%b|%b)*+' % (STRING, brackets(3)), re.S)
_STRING_REST = re.compile(rb'(?:[^"\\]++|\\.)*+', re.S)


class TopLevelKeys:
    """Iterates over (key, first byte of its value) of the JSON object that some text holds, in the order of the text.

    Ends at the object's end (`complete` is then true), where the text ends, or where it is not JSON. The text is read
    only as far as the iteration proceeds.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        """`pieces`: the text in pieces of any size."""
        self.complete = False
        self._pieces = iter(pieces)
        self._text, self._at = b"", 0

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        self._fetch()
        self._text = self._text.removeprefix(b"\xef\xbb\xbf")
        if self._next_byte() != b"{":
            return
        self._at += 1
        while (first := self._next_byte()) == b'"':
            key = self._read_key()
            if key is None or self._next_byte() != b":":
                return
            self._at += 1
            yield key, self._next_byte()
            if not self._skip_value():
                return
        self.complete = first == b"}"

    def _fetch(self) -> bool:
        """Appends the next piece to the unread text; returns whether there is one."""
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._text, self._at = self._text[self._at :] + piece, 0
        return True

    def _next_byte(self) -> bytes:
        """The next byte that is not white space or a comma; empty at the end."""
        while True:
            space = _SPACE_AND_COMMAS.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text) or not self._fetch():
                return self._text[self._at : self._at + 1]

    def _read_key(self) -> str | None:
        """Reads the string that begins here; None if the text ends inside it, or if it is too long or not JSON."""
        while not (match := _KEY.match(self._text, self._at)):
            if len(self._text) - self._at > _MAX_KEY_BYTES or not self._fetch():
                return None
        self._at = match.end()
        try:
            return json.loads(match[0].decode("utf-8", "replace"), strict=False)
        except ValueError:
            return None

    def _skip_value(self) -> bool:
        """Skips the value that begins here; returns whether it is complete."""
        first = self._next_byte()
        self._at += 1
        if first == b'"':
            return self._skip_string()
        if first in (b"[", b"{"):
            return self._skip_brackets()
        while True:
            scalar = _SCALAR.match(self._text, self._at)
            self._at = scalar.end() if scalar else self._at
            if self._at < len(self._text) or not self._fetch():
                return bool(first)

    def _skip_brackets(self) -> bool:
        """Skips to the end of the list or object whose first bracket has been read."""
        depth = 1
        while depth:
            inside = _INSIDE.match(self._text, self._at)
            self._at = inside.end() if inside else self._at
            byte = self._text[self._at : self._at + 1]
            if not byte:
                if not self._fetch():
                    return False
                continue
            self._at += 1
            if byte == b'"':
                if not self._skip_string():
                    return False
            else:
                depth += 1 if byte in b"[{" else -1
        return True

    def _skip_string(self) -> bool:
        """Skips to the end of the string whose first quote has been read, however long it is."""
        while True:
            rest = _STRING_REST.match(self._text, self._at)
            self._at = rest.end() if rest else self._at
            if self._text[self._at : self._at + 1] == b'"':
                self._at += 1
                return True
            if not self._fetch():
                return False
