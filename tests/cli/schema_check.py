"""Checks what a command printed with --json against the JSON Schema in docs/schemas."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"


def valid(name: str, text: str) -> dict[str, Any]:
    """The document in `text`, after asserting that it conforms to the schema `name` and names it."""
    document = conforming(name, text)
    assert re.fullmatch(rf"trainyard/{name}/\d+", document["schema"])
    return document


def conforming(name: str, text: str) -> dict[str, Any]:
    """The document in `text`, after asserting that it conforms to the schema in the file `name`."""
    document: dict[str, Any] = json.loads(text)
    schema = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    assert [error.json_path for error in jsonschema.Draft202012Validator(schema).iter_errors(document)] == []
    return document
