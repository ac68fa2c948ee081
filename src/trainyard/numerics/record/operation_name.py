"""The name by which an operation is recorded."""

from __future__ import annotations

from typing import Any


def operation_name(func: Any) -> str:
    """An operation without its overload, as `aten.mm`."""
    return f"{func.namespace}.{func.overloadpacket.__name__}"
