"""Where to look next: commands that a report suggests."""

from __future__ import annotations

import msgspec


class NextStep(msgspec.Struct, frozen=True):
    """A command or option, and its purpose in a few words."""

    command: str
    purpose: str
