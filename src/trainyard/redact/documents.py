"""Redaction of JSON documents: the result is JSON, and everything except the secrets is unchanged byte for byte.

Documents are read token by token, not decoded, so that large ones are redacted in pieces. Plain text has no secret;
suspect text may have one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

from trainyard.lazy_pattern import lazy_compile
from trainyard.redact.clients import ClientOptions
from trainyard.redact.command_line import redact_word, takes_secret
from trainyard.redact.secret_names import HIDDEN, is_plain, is_random_key, is_secret
from trainyard.redact.text_secrets import is_suspect, redact

_TOKEN = lazy_compile(r'(?P<text>"(?:[^"\\]|\\.)*+"?)(?P<colon>\s*+:)?|[{}\[\],:]|[^\s{}\[\]:,"]++', re.DOTALL)
_TEXT = lazy_compile(rb'"(?:[^"\\]|\\.)*+"?|[A-Za-z_][^\s"{}\[\],:]*+', re.DOTALL)
_LITERAL = lazy_compile(r"-?[\d.eE+\-]++\Z|true\Z|false\Z|null\Z|-?Infinity\Z|NaN\Z")
_PIECE_BYTES = 1 << 16
_MAX_CACHED_STRINGS = 100_000
_HIDDEN = f'"{HIDDEN}"'


def redact_json(data: bytes, keep_numbers: bool = False) -> bytes:
    """A JSON document with its secrets replaced by `***`. `keep_numbers`: redact strings only, so that a record keeps
    its types."""
    text = data.decode("utf-8", "surrogateescape")
    if not is_suspect(text) and "\\u00" not in text:
        return data
    return _DocumentReader(keep_numbers).feed(text).encode("utf-8", "surrogateescape")


def secret_paths(value: object, path: str = "$", key: str = "") -> Iterator[str]:
    """Paths of the strings in a decoded document that contain a secret: `$.sizes.text`, `$.list[2]`. `path`, `key`: of
    `value` in the document; elements of a list have the key of the list."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from secret_paths(part, f"{path}.{redact(name)}", name)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from secret_paths(part, f"{path}[{index}]", key)
    elif isinstance(value, str):
        has_secret_name = is_secret(key) and not is_plain(key, value)
        if value != HIDDEN and (has_secret_name or is_random_key(key, value) or redact(value) != value):
            yield path


def redact_json_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Redact a JSON document of many lines in pieces. Most strings of a large document repeat; each is checked once."""
    reader, plain_strings = _DocumentReader(), set[bytes]()
    while lines := file.readlines(_PIECE_BYTES):
        piece = b"".join(lines)
        if reader.must_read_next or not _is_plain(piece, plain_strings):
            yield from (_redact_line(reader, line, plain_strings) for line in lines)
        else:
            yield piece


def _redact_line(reader: _DocumentReader, line: bytes, plain_strings: set[bytes]) -> bytes:
    """The redacted line; unchanged if it can contain no secret. `plain_strings`: the cache of `_is_plain`."""
    if not reader.must_read_next and _is_plain(line, plain_strings):
        return line
    return reader.feed(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _is_plain(piece: bytes, plain_strings: set[bytes]) -> bool:
    """Whether no string in `piece` can contain a secret. `plain_strings`: cache of strings known to contain none; new
    ones are added."""
    new_strings = [text for text in set(_TEXT.findall(piece)) if text not in plain_strings]
    # `\u00` escapes may hide letters of a name. A quote is appended, as some hints end with one.
    suspect = [text for text in new_strings if b"\\u00" in text or is_suspect(text.decode("utf-8", "replace") + '"')]
    if len(plain_strings) < _MAX_CACHED_STRINGS:
        plain_strings.update(set(new_strings).difference(suspect))
    return not suspect


class _DocumentReader:
    """Reads a document in pieces that end between two tokens. Pieces without a secret may be left out unless
    `must_read_next`.

    `_depth`: brackets open since a secret key. `_key`, `_option`: the secret key or option whose value comes next.
    """

    def __init__(self, keep_numbers: bool = False) -> None:
        self._keep_numbers = keep_numbers
        self._depth = 0
        self._key = self._option = ""
        self._clients = ClientOptions()

    @property
    def must_read_next(self) -> bool:
        """Whether the next piece must be read, since a secret value may begin in it."""
        return bool(self._depth or self._key or self._option or self._clients.active)

    def feed(self, text: str) -> str:
        """The redacted piece; the state (key, depth, option) is kept for the next one. A piece that is not JSON, e.g.
        of a profiler that does not escape quotes, is redacted as text."""
        pieces, at, is_json = [], 0, True
        for token in _TOKEN.finditer(text):
            shown = self._replace_token(token)
            is_json = is_json and (token["text"] or token[0] in "{}[],:" or _LITERAL.match(token[0])) is not None
            if shown is not None:
                begin, end = token.span("text") if token["text"] else token.span()
                pieces += [text[at:begin], shown]
                at = end
        text = "".join([*pieces, text[at:]]) if pieces else text
        return text if is_json else redact(text)

    def _replace_token(self, token: re.Match[str]) -> str | None:
        """The token's replacement; None if it is unchanged. Updates the state: everything in brackets after a secret
        key is secret."""
        if token["colon"]:
            return self._replace_name(token["text"])
        sign = token[0]
        if sign in "{[":
            self._depth += bool(self._depth or is_secret(self._key))
        elif sign in "}]":
            self._depth -= bool(self._depth)
        elif sign in ",:":
            return None
        else:
            return self._replace_value(sign, token["text"] is not None)
        self._key = self._option = ""
        self._clients = ClientOptions()
        return None

    def _replace_name(self, literal: str) -> str | None:
        """The replacement of a key, given its JSON literal; None if it stays. Keeps the key if it names a secret."""
        name = _decode_string(literal)
        self._key = name if is_secret(name) or name.lower().endswith("key") else ""
        self._option = ""
        return _encode_if_changed(name, redact(name))

    def _replace_value(self, literal: str, is_text: bool) -> str | None:
        """The replacement of a value, given the key or option before it; None if it stays. `is_text`: it is a string.
        `literal`: as in the document."""
        key, option = self._key, self._option
        self._key = self._option = ""
        if self._keep_numbers and not is_text and _LITERAL.match(literal):
            return None
        value = _decode_string(literal) if is_text else literal
        names_secret = (is_secret(key) and not is_plain(key, value)) or is_random_key(key, value)
        if self._depth or names_secret or (option and not is_plain(option, value)):
            return None if is_plain("", value) or value == HIDDEN else _HIDDEN
        if not is_text:
            return None
        begin = self._clients.secret_from(value)
        self._option = value if takes_secret(value) else ""
        if begin >= 0:
            return _encode_if_changed(value, value[:begin] + HIDDEN)
        return _encode_if_changed(value, redact_word(value) if value.startswith("-") else redact(value))


def _decode_string(literal: str) -> str:
    """The string that a JSON string literal stands for; the literal without its quotes if its escapes are invalid."""
    if "\\" not in literal:
        return literal.strip('"')
    import json

    try:
        return json.loads(literal)
    except ValueError:
        return literal.strip('"')


def _encode_if_changed(before: str, after: str) -> str | None:
    """The JSON literal of `after`; None if it equals `before`."""
    import json

    return None if before == after else json.dumps(after)
