"""Patterns that are compiled at their first use behave like compiled ones."""

import re

from trainyard.lazy_pattern import lazy_compile


def test_methods_and_attributes_are_those_of_the_compiled_pattern():
    lazy, compiled = lazy_compile(r"(?P<word>[a-z]+)", re.IGNORECASE), re.compile(r"(?P<word>[a-z]+)", re.IGNORECASE)
    for text in ("Some words", "", "123"):
        assert lazy.findall(text) == compiled.findall(text)
        assert bool(lazy.match(text)) == bool(compiled.match(text))
    assert (lazy.pattern, lazy.flags, lazy.groupindex) == (compiled.pattern, compiled.flags, compiled.groupindex)
    assert lazy.sub("x", "a b") == "x x"


def test_an_invalid_pattern_fails_at_its_first_use():
    lazy = lazy_compile("(")
    try:
        lazy.search("text")
    except re.error:
        return
    raise AssertionError("an invalid pattern was compiled")
