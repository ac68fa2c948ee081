"""Documents that commands print with --json, validated against docs/schemas."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema

_FOLDER = Path(__file__).parents[1] / "docs" / "schemas"


def read_document(name: str, text: str) -> dict[str, Any]:
    """The document, which must conform to docs/schemas/`name`.json and state that schema and its version."""
    document, schema = json.loads(text), json.loads((_FOLDER / f"{name}.json").read_text("utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    assert [(error.json_path, error.message) for error in validator.iter_errors(document)] == []
    assert re.fullmatch(rf"trainyard/{name}/[1-9]", document["schema"])
    return document
