"""Logins before a host: `https://user:password@host`, `user:password@proxy:80`, also percent-encoded."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainyard.lazy_pattern import lazy_compile

_COLON, _AT = lazy_compile(r":|%(?:25)*3A", re.IGNORECASE), lazy_compile(r"@|%(?:25)*40")
_URL = lazy_compile(r"://?|%(?:25)*3A(?:%(?:25)*2F){2}", re.IGNORECASE)
"""`://`, which a path shortens to `:/`."""
_SCHEME = lazy_compile(r"[A-Za-z0-9+.\-]*\Z")
_LONGEST_SCHEME = 32
_TOKEN_SCHEMES = lazy_compile(r"(?:https?|ftps?|wss?)\Z", re.IGNORECASE)
"""Schemes in which a user without a password is hidden too: it may be a token."""
_AUTHORITY_END = lazy_compile(r"[/?#\\]")
_ENCODED_ENDS = ("2f", "3f", "23")
_PORT = lazy_compile(r"\d{1,5}\Z")
_RUN = lazy_compile(r"""(?:[^\s<>"`']|'(?![,)\]}:;\s]|\Z))*+""")
_QUOTED_RUN = {quote: lazy_compile(rf"[^\s<>{quote}]*+") for quote in "\"'`"}

_WORD = lazy_compile(r"""[^\s"'`<>|]+""")
_NOT_OF_USER = lazy_compile(r"[^\w.+%~*\-]")
_HOST = lazy_compile(
    r"(?!sha\d+:)(?:[A-Za-z0-9.\-]*[A-Za-z][A-Za-z0-9.\-]*|\d{1,3}(?:\.\d{1,3}){3}|\[[0-9A-Fa-f:]+\])(?P<port>:\d)?"
)


def find_in_urls(text: str) -> Iterator[tuple[int, int]]:
    """Spans (begin, end) of user and password in every URL of `text`. A URL ends at a space, a quote, `<` or `>`, or
    where the scheme of the next one begins."""
    marks = [match.span() for match in _URL.finditer(text)]
    schemes = [_scheme(text, begin) for begin, _ in marks]
    for (begin, end), scheme, next_scheme in zip(marks, schemes, [*schemes[1:], len(text)]):
        after_mark = _QUOTED_RUN.get(text[scheme - 1 : scheme], _RUN).match(text, end, max(end, next_scheme))
        if after_mark and (length := _login_length(after_mark[0], text[scheme:begin], text[begin:end])):
            yield end, end + length


def _scheme(text: str, end: int) -> int:
    """Index at which the scheme that ends at `end` begins."""
    match = _SCHEME.search(text[max(0, end - _LONGEST_SCHEME) : end])
    return end - len(match[0]) if match else end


def _login_length(after_mark: str, scheme: str, mark: str) -> int:
    """Number of leading characters of `after_mark` that are a login to hide: user, password and separators, up to the
    `@`. `after_mark`: the text of a URL after the `mark`, its `://` as written, perhaps percent-encoded. `scheme`: the
    text before the mark."""
    authority = after_mark[: _authority_end(after_mark, mark)]
    colon = _COLON.search(authority)
    at = _last_index(_AT, authority)
    if at >= 0:
        return at if (colon and colon.start() < at) or _TOKEN_SCHEMES.search(scheme) else 0
    if colon is None or _PORT.match(authority, colon.end()):
        return 0
    return max(0, _last_index(_AT, after_mark))  # a password with an unescaped slash


def _authority_end(after_mark: str, mark: str) -> int:
    """Index in `after_mark` at which login, host and port end: at a `/`, `?` or `#` that is percent-encoded as often as
    the `mark`, the `://` before it."""
    if "%" not in mark:
        end = _AUTHORITY_END.search(after_mark)
        return end.start() if end else len(after_mark)
    lower, encoded_percent = after_mark.lower(), mark[: mark.lower().index("3a")]
    ends = [lower.find(encoded_percent + code) for code in _ENCODED_ENDS]
    return min((end for end in ends if end >= 0), default=len(after_mark))


def find_in_words(text: str) -> Iterator[tuple[int, int]]:
    """Spans of user and password before a host without a scheme. Not in `git@host:path`, `image:tag@sha256:...` or
    `namespace::name@host`."""
    for word in _WORD.finditer(text):
        if at := _LAST_AT.match(word[0]):
            span = _find_login(word[0], at.start(1), at.end(1))
            if span:
                yield word.start() + span[0], word.start() + span[1]


_LAST_AT = lazy_compile(r".*(@|%(?:25)*40)", re.DOTALL)


def _find_login(word: str, at_index: int, host_index: int) -> tuple[int, int] | None:
    """Span (begin, end) of user and password in a `word` whose last `@` is at `at_index`, its host at `host_index`;
    None if this is not a login, for example if there is a scheme or no `:` before the `@`, user or password is missing,
    or no host follows."""
    left = word[:at_index]
    # After a URL, such as in a list of proxies, the login begins after the separator.
    first = 1 + max(left.rfind(","), left.rfind(";")) if _URL.search(left) else 0
    colon = _COLON.search(left, first)
    if colon is None or _URL.search(left, first):
        return None
    user = first + 1 + _last_index(_NOT_OF_USER, left[first : colon.start()])
    password, host = left[colon.end() :], _HOST.match(word, host_index)
    if user == colon.start() or left[user - 1 : user] == "@" or left[user : colon.start()].lower() == "mailto":
        return None
    if host is None or not password or password.startswith(":") or ("/" in password and not host["port"]):
        return None
    return user, at_index


def _last_index(pattern: re.Pattern[str], text: str) -> int:
    """Index of the last match; -1 if there is none."""
    begin = -1
    for match in pattern.finditer(text):
        begin = match.start()
    return begin
