"""Documents that commands print with --json, validated against docs/schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

_FOLDER = Path(__file__).parents[1] / "docs" / "schemas"


def read_document(name: str, text: str) -> dict[str, Any]:
    """The document, which must conform to docs/schemas/`name`.json and name that schema."""
    document = json.loads(text)
    validator = jsonschema.Draft202012Validator(json.loads((_FOLDER / f"{name}.json").read_text("utf-8")))
    assert [(error.json_path, error.message) for error in validator.iter_errors(document)] == []
    assert document["schema"].rpartition("/")[0] == f"trainyard/{name}"
    return document
