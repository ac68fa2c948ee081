"""Marks of single cases of a parametrized test."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest


def nightly(*values: Any) -> Any:
    """A case that `make test-nightly` runs and `make test` does not."""
    return pytest.param(*values, marks=pytest.mark.nightly)


def nightly_except(cases: Collection[str], quick: Collection[str]) -> list[Any]:
    """`cases`, of which those not in `quick` are nightly."""
    assert set(quick) <= set(cases), f"no cases {set(quick) - set(cases)}"
    return [case if case in quick else nightly(case) for case in cases]
