"""Secrets in a command line that is already split into words."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.lazy_pattern import lazy_compile
from trainyard.redact.clients import ClientOptions
from trainyard.redact.secret_names import HIDDEN, is_plain, is_random_key, is_secret, is_switch
from trainyard.redact.text_secrets import redact

_ASSIGNMENT = lazy_compile(r"([-+~]{0,3}\w[\w.\-]*+):?=")
_OPTION = lazy_compile(r"-{1,2}\w[\w.\-]*+\Z")
_LONGEST_PLAIN = 64


def redact_command(words: Sequence[str]) -> list[str]:
    """The same words, with secrets replaced by `***`. A word is one argument, so all of a secret value is hidden."""
    shown: list[str] = []
    clients, option = ClientOptions(), ""  # `option`: the word before, if it takes a secret value
    for word in words:
        begin = clients.secret_from(word)
        if option and not is_plain(option, word):
            shown.append(HIDDEN)
        else:
            shown.append(redact_word(word) if begin < 0 else word[:begin] + HIDDEN)
        option = word if takes_secret(word) else ""
    return shown


def takes_secret(word: str) -> bool:
    """Whether the next word is the secret value of the option `word`."""
    return _OPTION.match(word) is not None and is_secret(word) and not is_switch(word)


def redact_word(word: str) -> str:
    """One argument with its secrets replaced by `***`: after the `NAME=` of a secret, also as in `--env=NAME=`, all of
    it is the value."""
    at = 0
    while match := _ASSIGNMENT.match(word, at):
        at = match.end()
        plain = is_plain(match[1], word[at : at + _LONGEST_PLAIN])
        if (is_secret(match[1]) and not plain) or is_random_key(match[1], word, at):
            return word[:at] + HIDDEN
    return redact(word)
