"""The extent of a value that follows a name in a text: in quotes, in brackets, or up to a space."""

from __future__ import annotations

import re

from trainyard.lazy_pattern import lazy_compile

RUN = lazy_compile(r"""(?:[^\s"'`\\&;,]|\\++(?!["'`])|[&;,](?!\s|\Z|\\*+["'`]|amp;|[\w.\-]++["']?\s{0,2}[=:]))*+""")
"""A value without quotes: up to a space or quote, or to a separator before the next name."""
LINE = lazy_compile(r"""(?:[^\r\n"'`\\]|\\++(?!["'`]))*+""")
"""A value of several words: up to a quote or the end of the line."""
_OPENING = lazy_compile(r"""[bBrRuUfF]{0,2}(\\*+)(["'`])""")
_BRACKETS = lazy_compile(r"""["'`\[\](){}]""")
_CLOSERS = ")]}>.,;:!"


def value_at(text: str, at: int, unquoted: re.Pattern[str]) -> tuple[int, int]:
    """The span (begin, end) of the value that begins at `at`, without its quotes or brackets. `unquoted`: the pattern
    of a value without them, `RUN` or `LINE`."""
    if quoted := _OPENING.match(text, at):
        return quoted.end(), _closing_quote(text, quoted.end(), quoted[2], len(quoted[1]))
    if text[at : at + 1] in ("[", "{", "("):
        return at + 1, _closing_bracket(text, at)
    run = unquoted.match(text, at)
    value = run[0] if run else ""
    return at, at + len(value.rstrip(_CLOSERS) or value)


def _closing_quote(text: str, at: int, quote: str, escapes: int) -> int:
    """End of the quoted text that begins at `at`: the index of its closing `quote`, or of the backslashes that escape
    it. `escapes`: number of backslashes before its opening quote."""
    end = text.find(quote, at)
    while end >= 0:
        first = end
        while first > at and text[first - 1] == "\\":
            first -= 1
        if escapes and end - first <= escapes:
            return first
        if not escapes and (end - first) % 2 == 0:
            return end
        end = text.find(quote, end + 1)
    return len(text)


def _closing_bracket(text: str, at: int) -> int:
    """Index of the bracket that closes the one at `at`, skipping strings; the end of the text if it is not closed."""
    depth = 0
    unclosed: set[str] = set()
    while match := _BRACKETS.search(text, at):
        sign, at = match[0], match.end()
        if sign in "[{(":
            depth += 1
        elif sign in "]})":
            depth -= 1
            if depth == 0:
                return match.start()
        elif sign not in unclosed:
            closing = text.find(sign, at)
            if closing < 0:
                unclosed.add(sign)
            else:
                at = closing + 1
    return len(text)
