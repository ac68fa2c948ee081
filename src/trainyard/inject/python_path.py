"""The variable by which every Python that a command starts imports `site/sitecustomize.py` first."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_SITE = Path(__file__).with_name("site")


def python_path(environment: Mapping[str, str]) -> str:
    """The value of PYTHONPATH for a command whose Python processes run our sitecustomize, before its present value."""
    return os.pathsep.join(part for part in (str(_SITE), environment.get("PYTHONPATH", "")) if part)
