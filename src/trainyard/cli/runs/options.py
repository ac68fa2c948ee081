"""Options that modes of `trainyard runs` share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
REMOTE: dict[str, Any] = {
    "envvar": "TRAINYARD_REMOTE",
    "required": True,
    "metavar": "URL",
    "help": "A folder, or a URL such as s3://BUCKET/FOLDER; default: $TRAINYARD_REMOTE.",
}
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
