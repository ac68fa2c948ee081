"""What the local launcher tells the elastic process to start."""

from __future__ import annotations

import msgspec

FILE = "launch.json"


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`ranks` processes of `python -m MODULE ARGS`, meeting at 127.0.0.1:`port`; 0 is any free one."""

    ranks: int
    port: int
    module: str
    args: tuple[str, ...] = ()
