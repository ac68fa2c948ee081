"""Parse Python stacks that were printed as text: by faulthandler, by a traceback, or by py-spy."""

from __future__ import annotations

import re

from trainyard.code_location import CodeLocation

_FAULTHANDLER = re.compile(r'\s*File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,9}) in (?P<function>\S{1,200})')
_PY_SPY = re.compile(r"\s+(?P<function>\S{1,200}) \((?P<file>[^():]{1,400}):(?P<line>\d{1,9})\)")
_MAX_CALLS = 64


def parse_stack(text: str) -> tuple[CodeLocation, ...]:
    """The calls of the main thread in `text`, innermost first, at most 64; empty if the text holds no stack.

    faulthandler writes the thread that received the signal, the main thread, last. py-spy names it `MainThread`.
    """
    if '"MainThread"' in text:
        main_thread = text.split('"MainThread"', 1)[1]
        lines = main_thread.split("\nThread ", 1)[0].splitlines()
    else:
        lines = text.split("hread 0x")[-1].splitlines()
    matches = (_FAULTHANDLER.match(line) or _PY_SPY.match(line) for line in lines)
    calls = [CodeLocation(match["file"], int(match["line"]), match["function"]) for match in matches if match]
    return tuple(calls[:_MAX_CALLS])
