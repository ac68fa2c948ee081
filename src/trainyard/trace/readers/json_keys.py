"""The top-level keys of a JSON object, read from its text piece by piece in bounded memory.

A value is skipped without being decoded, complete strings and shallow brackets in one match, so that a large value
costs about as much as a search for a byte. `recognise.py` determines the format of a file by these keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
"""A pattern of a complete JSON string."""
_BOM = b"\xef\xbb\xbf"
_MAX_KEY_BYTES = 1 << 14
"""A longer key ends the reading: no profiler writes one."""


def brackets(depth: int) -> bytes:
    """A pattern that matches an object or list with at most `depth` levels of nested brackets."""
    inside = b"|" + brackets(depth - 1) if depth > 1 else b""
    return rb'[\[{](?:[^\[\]{}"]++|%b%b)*+[\]}]' % (STRING, inside)


# `*+` and `++` match as much as they can and never give any of it back, so that matching takes linear time.
_SPACE_AND_COMMAS = re.compile(rb"[ \t\r\n,]*")
_KEY = re.compile(STRING, re.S)
_SCALAR = re.compile(rb"[^,}\]\s]*")
_INSIDE = re.compile(rb'(?:[^\[\]{}"]++|%b|%b)*+' % (STRING, brackets(3)), re.S)
_STRING_REST = re.compile(rb'(?:[^"\\]++|\\.)*+', re.S)


class JsonText:
    """A position in JSON text that is read piece by piece. `text`: the unread text and some before it; `at`: the
    position in it; more text is read only as needed."""

    def __init__(self, pieces: Iterator[bytes], text: bytes = b"", at: int = 0) -> None:
        """`pieces`: the text after `text`, in pieces of any size."""
        self.text, self.at = text, at
        self._pieces = pieces

    def fetch(self) -> bool:
        """Appends the next piece to the unread text, and drops the text before it; returns whether there is a piece."""
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self.text, self.at = self.text[self.at :] + piece, 0
        return True

    def next_byte(self) -> bytes:
        """Advances to the next byte that is not white space or a comma, and returns it without reading it; empty at the
        end."""
        while True:
            space = _SPACE_AND_COMMAS.match(self.text, self.at)
            self.at = space.end() if space else self.at
            if self.at < len(self.text) or not self.fetch():
                return self.text[self.at : self.at + 1]

    def read_key(self) -> str | None:
        """Reads the string that begins at the position, and advances past it; None if the text ends inside it, or if it
        is too long or not JSON."""
        while not (match := _KEY.match(self.text, self.at)):
            if len(self.text) - self.at > _MAX_KEY_BYTES or not self.fetch():
                return None
        self.at = match.end()
        try:
            return json.loads(match[0].decode("utf-8", "replace"), strict=False)
        except ValueError:
            return None

    def skip_value(self) -> bool:
        """Advances past the value that begins at the position; returns whether it is complete."""
        first = self.next_byte()
        if first == b'"':
            self.at += 1
            return self._skip_string()
        if first in (b"[", b"{"):
            self.at += 1
            return self._skip_brackets()
        while True:
            scalar = _SCALAR.match(self.text, self.at)
            self.at = scalar.end() if scalar else self.at
            if self.at < len(self.text) or not self.fetch():
                return bool(first)

    def _skip_brackets(self) -> bool:
        """Advances past the end of the list or object whose first bracket has been read; returns whether it is
        complete."""
        depth = 1
        while depth:
            inside = _INSIDE.match(self.text, self.at)
            self.at = inside.end() if inside else self.at
            byte = self.text[self.at : self.at + 1]
            if not byte:
                if not self.fetch():
                    return False
                continue
            self.at += 1
            if byte == b'"':
                if not self._skip_string():
                    return False
            else:
                depth += 1 if byte in b"[{" else -1
        return True

    def _skip_string(self) -> bool:
        """Advances past the end of the string whose first quote has been read, however long it is; returns whether it
        is complete."""
        while True:
            rest = _STRING_REST.match(self.text, self.at)
            self.at = rest.end() if rest else self.at
            if self.text[self.at : self.at + 1] == b'"':
                self.at += 1
                return True
            if not self.fetch():
                return False


class TopLevelKeys:
    """Iterates over (key, first byte of its value) of the JSON object that some text holds, in the order of the text.

    Ends at the object's end (`complete` is then true), where the text ends, or where it is not JSON. The text is read
    only as far as the iteration proceeds.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        """`pieces`: the text in pieces of any size."""
        self.complete = False
        self._cursor = JsonText(iter(pieces))

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        cursor = self._cursor
        while len(cursor.text) < len(_BOM) and cursor.fetch():
            pass
        cursor.at = len(_BOM) if cursor.text.startswith(_BOM) else 0
        if cursor.next_byte() != b"{":
            return
        cursor.at += 1
        while (first := cursor.next_byte()) == b'"':
            key = cursor.read_key()
            if key is None or cursor.next_byte() != b":":
                return
            cursor.at += 1
            yield key, cursor.next_byte()
            if not cursor.skip_value():
                return
        self.complete = first == b"}"
