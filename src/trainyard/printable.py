"""Text that is safe to print: invisible characters and those that control a terminal or the text direction are escaped.

Names come from files, and a name may hold a control character (C0, C1), a bidirectional control (U+202A to U+202E,
U+2066 to U+2069, U+200E, U+200F, U+061C), a zero-width character, or half of a surrogate pair, which no encoding has.
Each is shown by its number: `⟨U+202E⟩`. Everything that trainyard prints or draws goes through this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainyard.lazy_pattern import lazy_compile

_BLANK_CHARACTER = lazy_compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\uffa0\U000e0100-\U000e01ef]")
"""Characters of Unicode's property Default_Ignorable_Code_Point that Python takes for printable, but for U+FE00 to
U+FE0F, which choose the look of the character before them."""
_HALF_SURROGATE = lazy_compile("[\ud800-\udfff]")
_NOT_XML_CHARACTER = lazy_compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def printable(text: str, keep: str = "") -> str:
    """Replaces each character that cannot be seen by its number, `⟨U+202E⟩`; those in `keep` stay."""
    if text.isprintable() and (text.isascii() or not _BLANK_CHARACTER.search(text)):
        return text
    return "".join(char if char in keep or _is_visible(char) else _code_point_of(char) for char in text)


def printable_json(text: str) -> str:
    """Escapes, in a JSON document, each character that cannot be seen: `\\u202e`. It decodes to the same value."""
    if text.isprintable() and (text.isascii() or not _BLANK_CHARACTER.search(text)):
        return text
    return "".join(char if char == "\n" or _is_visible(char) else _json_escape(char) for char in text)


def printable_xml(text: str) -> str:
    """Writes, in an XML document, each character that cannot be seen as a character reference, `&#x202e;`. What XML
    cannot hold must have been replaced before, by `storable_xml`."""
    return "".join(char if char == "\n" or _is_visible(char) else f"&#x{ord(char):x};" for char in text)


def storable_xml(text: str) -> str:
    """Shows each character that XML 1.0 cannot hold, such as most control characters, by its number."""
    return _NOT_XML_CHARACTER.sub(lambda char: _code_point_of(char[0]), text)


def paired(text: str) -> str:
    """Shows each half of a surrogate pair by its number, and leaves the rest: what any encoding of Unicode can hold."""
    return _HALF_SURROGATE.sub(lambda half: _code_point_of(half[0]), text)


def encode_json(value: Any, hook: Callable[[Any], Any] = str) -> bytes:
    """Encodes `value` as JSON. Half of a surrogate pair, which UTF-8 cannot hold, is shown by its number. `hook`: as
    msgspec's `enc_hook`; by default, what JSON has no type for becomes its text."""
    import msgspec

    try:
        return msgspec.json.encode(value, enc_hook=hook)
    except UnicodeEncodeError:
        return msgspec.json.encode(_map_texts(msgspec.to_builtins(value, enc_hook=hook), paired))


def printable_tree(value: Any, keep: str = "\n\t") -> Any:
    """Makes every text of plain data printable, keys included."""
    return _map_texts(value, lambda text: printable(text, keep))


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of plain data (dicts, lists, scalars) with `change` applied to every text, keys included; tuples become
    lists."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_map_texts(key, change): _map_texts(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(item, change) for item in value]
    return value


def _code_point_of(char: str) -> str:
    """The character's number in brackets: `⟨U+202E⟩`."""
    return f"⟨U+{ord(char):04X}⟩"


def _is_visible(char: str) -> bool:
    return char.isprintable() and not _BLANK_CHARACTER.match(char)


def _json_escape(char: str) -> str:
    """The character as JSON escapes of its UTF-16 units: `\\u202e`, two for a character beyond U+FFFF."""
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
