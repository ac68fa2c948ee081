"""Secrets in any text: messages, logs, environment values, URLs, names in a trace.

Each step reads the text once, from left to right, so that a hostile text takes time linear in its length.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Iterator

from trainyard.lazy_pattern import lazy_compile
from trainyard.redact import logins
from trainyard.redact.clients import NAMES, ClientOptions
from trainyard.redact.secret_names import HIDDEN, is_plain, is_random_key, is_secret, is_switch
from trainyard.redact.secret_values import LINE, RUN, value_at

_HINTS = (
    "pass", "pwd", "secret", "token", "key", "cred", "auth", "cookie", "jwt", "bearer", "signature", "basic", "login",
    "@", "%40", "2540", "-----", "sk-", "sk_", "pk_", "rk_", "hf_", "gho_", "ghp_", "ghu_", "ghs_", "ghr_", "akia",
    "asia", "xox", "xapp", "aiza", "eyj", "glpat-", "glptt-", "gldt-", "nvapi-", "npm_", "pypi-", "gsk_", "r8_", "hvs.",
    "dckr_", "sg.", "ya29", "hooks.slack", *(name + sign for name in NAMES for sign in " \t\"'"),
    *(name + sign for name in ("pat", "pw", "sig", "sas", "otp") for sign in "=: \t%_\"'`\\"),
)  # fmt: skip
"""Every text with a secret contains one of these, in lower case."""


def _any_of(words: Iterable[str]) -> str:
    """A pattern that matches any of the words. Common beginnings are shared: many times faster than a list."""
    rest: dict[str, list[str]] = {}
    for word in words:
        rest.setdefault(word[:1], []).append(word[1:])
    if "" in rest:
        return ""
    return f"(?:{'|'.join(re.escape(first) + _any_of(others) for first, others in rest.items())})"


_HINT = lazy_compile(_any_of(_HINTS))
_TOKEN = lazy_compile(
    r"""(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2})|(?<=\\[nrtbf]))(?:
      (?P<worded>sk-|hf_|npm_|pypi-|gsk_|r8_|nvapi-|xapp-)(?P<rest>[A-Za-z0-9_\-]++)
    | (?P<json>eyJ)[A-Za-z0-9_\-.]++
    | (?P<kind>gh[pousr]_|github_pat_|gl(?:pat|ptt|dt)-|xox[a-z]-|AKIA|AIza|hvs\.|dckr_pat_|ya29\.|[srp]k_(?:live|test)_
      |ASIA(?=[A-Z0-9]{16})|SG\.(?=[\w\-]{16})|hooks\.slack\.com/services/) [A-Za-z0-9_\-./]{6,}+
    )""",
    re.VERBOSE,
)
_SHORTEST_JSON_TOKEN = 20
_SHORTEST_SIGNATURE = 8
_SHORTEST_RANDOM_WORD, _SHORTEST_MIXED_WORD, _SHORTEST_MIXED_TEXT = 16, 8, 24
"""Characters from which a part of a token counts as random: a word, a word of letters and digits, and words of letters
in both cases and digits."""
_KEY_MARK = lazy_compile(r"-----(?:BEGIN|(?P<end>END)) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_BASIC = lazy_compile(r"(?<![A-Za-z0-9])basic[ \t]++([A-Za-z0-9+/_\-]{4,}+={0,2})", re.IGNORECASE)
_BEARER = lazy_compile(r"(?<![A-Za-z0-9])bearer(?:[ \t=:+]|%(?:25)*+20)++", re.IGNORECASE)

_NAME = lazy_compile(
    r"""(?<![\w.\-])(?P<dash>[-+~]{0,3})(?P<name>\w[\w.\-]*+)(?P<close>\\*+["'`]?)
    (?: [ \t]*+(?:=>|={1,2}|:=|:(?!:|//)|%(?:25)*+3[AaDd])[ \t]*+
      | (?P<option>[ \t]++(?:\\\r?\n[ \t]*+)?|%(?:25)*+20|\s*+,\s*+(?=\\*+["'`])) )""",
    re.VERBOSE,
)
_ESCAPE = lazy_compile(r"(?:25)*[0-9A-Fa-f]{2}")
_WHOLE_LINE = lazy_compile(r"(?:authorization|cookies?|passphrase)\Z", re.IGNORECASE)

_CLIENT = lazy_compile(rf"(?<![\w\-])(?:{'|'.join(map(re.escape, NAMES))})(?=\s)[^\r\n]*+")
_SHELL_WORD = lazy_compile(r"""(?:[^\s"']|"[^"]*+"|'[^']*+'|["'])++""")


def redact(text: str) -> str:
    """`text` with its secrets replaced by `***`."""
    if not is_suspect(text):
        return text
    for find in (
        _find_private_keys,
        _find_client_options,
        logins.find_in_urls,
        _find_named_values,
        _find_bearers,
        logins.find_in_words,
        _find_basics,
    ):
        text = _hide_spans(text, find(text))
    return _TOKEN.sub(_hide_token, text)


def redact_lines(lines: Iterable[str]) -> Iterator[str]:
    """Lines of a log, redacted one by one; a private key may take several."""
    inside = False  # a private key
    for line in lines:
        marks = [bool(mark["end"]) for mark in _KEY_MARK.finditer(line)]
        if not inside or True in marks:
            shown = redact(line)
            yield shown if shown.endswith("\n") or not line.endswith("\n") else shown + "\n"
        inside = not marks[-1] if marks else inside


def is_suspect(text: str) -> bool:
    """Whether `text` may contain a secret: a quick check, so that most text skips the slow one."""
    return _HINT.search(text.lower()) is not None


def _hide_spans(text: str, spans: Iterator[tuple[int, int]]) -> str:
    """`text` with each span (begin, end) hidden; they are in ascending order."""
    pieces, at = [], 0
    for begin, end in spans:
        pieces += [text[at:begin], HIDDEN]
        at = end
    return "".join([*pieces, text[at:]]) if pieces else text


def _find_private_keys(text: str) -> Iterator[tuple[int, int]]:
    """Spans of private keys: from the line that begins a key to the one that ends it; of a key that is cut off, the
    part that is there."""
    last_end, begin = 0, None
    for mark in _KEY_MARK.finditer(text):
        if mark["end"]:
            yield last_end if begin is None else begin, mark.end()
            last_end, begin = mark.end(), None
        elif begin is None:
            begin = mark.start()
    if begin is not None:
        yield begin, len(text)


def _find_client_options(text: str) -> Iterator[tuple[int, int]]:
    """Yields (start, end) in `text` of the passwords in options of known command-line clients: `sshpass -p`,
    `curl -u`. `_CLIENT` matches a command line from the name of a client on."""
    for line in _CLIENT.finditer(text):
        options = ClientOptions()
        for word in _SHELL_WORD.finditer(text, *line.span()):
            unquoted = word[0].strip("\"'")
            begin = options.secret_from(unquoted)  # index in the word, -1 if it holds no secret
            if unquoted and begin >= 0:
                first = word.start() + word[0].index(unquoted) + begin
                yield first, first + len(unquoted) - begin


def _find_named_values(text: str) -> Iterator[tuple[int, int]]:
    """Spans of the values of options, assignments, keys and headers whose name means a secret."""
    at = 0
    while match := _NAME.search(text, at):
        at = match.end()
        if match["option"] and not match["dash"]:  # a word before a space or comma, which has no value
            at = match.end("close")
            continue
        name = match["name"]
        # The name may begin with a percent-encoded separator.
        if text[match.start("name") - 1 : match.start("name")] == "%":
            name = _ESCAPE.sub("", name, count=1)
        if is_secret(name):
            if match["option"] and is_switch(name):
                continue
            begin, end = value_at(text, at, LINE if _WHOLE_LINE.search(name) else RUN)
            if not is_plain(name, text[begin:end]) and not _is_file_of_signature(match, end - begin):
                yield begin, end
                at = end
        elif is_random_key(name, text, at):
            begin, end = value_at(text, at, RUN)
            yield begin, end
            at = end


def _is_file_of_signature(name: re.Match[str], length: int) -> bool:
    """Whether the name is that of a file in a message: `SHA256SUMS.sig: the signer is not allowed`. Signatures in URLs
    follow a `=`."""
    return name["name"].endswith(".sig") and "=" not in name[0] and length < _SHORTEST_SIGNATURE


def _find_bearers(text: str) -> Iterator[tuple[int, int]]:
    """Spans of the tokens after `Bearer`."""
    at = 0
    while match := _BEARER.search(text, at):
        begin, end = value_at(text, match.end(), RUN)
        if begin < end:
            yield begin, end
        at = max(end, match.end())


def _find_basics(text: str) -> Iterator[tuple[int, int]]:
    """Spans of the base64 text of user:password after `Basic`, which is an ordinary word before anything else."""
    for match in _BASIC.finditer(text):
        try:
            plain = binascii.a2b_base64(match[1] + "=" * (-len(match[1]) % 4))
        except binascii.Error:
            continue
        if b":" in plain and plain.isascii():
            yield match.span(1)


def _hide_token(match: re.Match[str]) -> str:
    """The replacement of a matched token: its prefix and `***`; the match itself if it is an ordinary word."""
    if match["worded"]:
        return match["worded"] + HIDDEN if _is_random(match["rest"]) else match[0]
    if match["json"] and len(match[0]) < _SHORTEST_JSON_TOKEN:
        return match[0]
    return (match["kind"] or match["json"]) + HIDDEN


def _is_random(text: str) -> bool:
    """Whether the part of a token after its prefix is random, unlike the words in `hf_transfer`."""
    runs = re.split("[-_]", text)
    return any(
        len(run) >= _SHORTEST_RANDOM_WORD or (len(run) >= _SHORTEST_MIXED_WORD and _is_mixed(run)) for run in runs
    ) or (len(text) >= _SHORTEST_MIXED_TEXT and _is_mixed(text) and text.lower() != text)


def _is_mixed(text: str) -> bool:
    """Whether the text has both letters and digits."""
    return any(sign.isdigit() for sign in text) and any(sign.isalpha() for sign in text)
