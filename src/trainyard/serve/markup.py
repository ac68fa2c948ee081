"""HTML as nested elements. A text is escaped wherever it appears; only `Html`, which this module makes, is not."""

from __future__ import annotations

from functools import cache, lru_cache
from html import escape

from trainyard.printable import printable

_SHORT = 80
"""Characters of a text that is kept as HTML."""
_VOID = {"input", "link", "meta", "br"}


class Html(str):
    """Markup that may be put into a page as it is."""

    __slots__ = ()


Child = str | None
Attribute = str | int | float | bool | None


def text(value: str) -> Html:
    """A text as HTML, with characters that cannot be seen shown by their numbers."""
    return _short_text(value) if len(value) <= _SHORT else Html(escape(printable(value)))


@lru_cache(8192)
def _short_text(value: str) -> Html:
    """`text` of a label or name; pages repeat them."""
    return Html(escape(printable(value)))


@cache
def _attribute_name(key: str) -> str:
    """The name of an attribute, with a space before it."""
    return f" {key.rstrip('_').replace('_', '-')}"


def element(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """An element. `attributes`: `class_` for `class`, underscores for hyphens; True for an attribute without a value,
    None and False for none."""
    shown = "".join(
        _attribute_name(key) if value is True else f'{_attribute_name(key)}="{text(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    inner = join(*children)
    return Html(f"<{name}{shown}>" if name in _VOID else f"<{name}{shown}>{inner}</{name}>")


def join(*children: Child) -> Html:
    """Elements and texts one after the other; None is left out."""
    return Html("".join(child if isinstance(child, Html) else text(child) for child in children if child is not None))
