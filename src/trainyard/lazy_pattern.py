"""Regular expressions that are compiled when they are first used, since many commands use only a few of them."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


def lazy_compile(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """As `re.compile`, but compiles the pattern at the first use of a method."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(pattern, flags))


class _LazyPattern:
    """A pattern that becomes the compiled one: methods that were used once are attributes afterwards."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self._pattern: Any = pattern
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(self._pattern, self._flags), name)  # `re` caches compiled patterns
        setattr(self, name, value)
        return value
