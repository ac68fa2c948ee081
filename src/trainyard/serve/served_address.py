"""Where a server listens: what `trainyard serve --json` prints."""

from __future__ import annotations

from typing import Literal

import msgspec


class ServedAddress(msgspec.Struct, frozen=True, kw_only=True):
    """`url`: of the first page; `store`: folder of the store; `runs`: number of its runs when the server started."""

    schema: Literal["trainyard/serve/1"] = "trainyard/serve/1"
    url: str
    store: str
    runs: int
