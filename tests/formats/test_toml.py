"""TOML: written values are read back unchanged."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard import machine
from trainyard.formats import toml
from trainyard.predict.calibrate import machine_file

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = TEXT | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, min_size=1, max_size=3)
)
DOCUMENTS = st.dictionaries(TEXT, VALUES, max_size=5)
LINES = TEXT.map(lambda text: "".join(char for char in text if char.isprintable())).filter(bool)
COMMENTS = st.lists(LINES).map("\n".join)


def exact(value: Any) -> Any:
    """The value with its types and the bits of its floats: 1 is not 1.0, and 0.0 is not -0.0."""
    if isinstance(value, dict):
        return {key: exact(part) for key, part in value.items()}
    if isinstance(value, list):
        return [exact(part) for part in value]
    return (type(value), value.hex() if isinstance(value, float) else value)


@given(DOCUMENTS, COMMENTS)
def test_documents_round_trip(document: dict[str, Any], comment: str) -> None:
    assert exact(toml.loads(toml.dumps(document, comment))) == exact(document)


@given(DOCUMENTS, COMMENTS)
def test_head_comment_round_trips(document: dict[str, Any], comment: str) -> None:
    assert toml.head_comment(toml.dumps(document, comment)) == comment


def test_values_that_toml_lacks_are_left_out_or_replaced() -> None:
    text = toml.dumps({"a": None, "b": {"c": None}, "d": {}, "e": "\ud800", "\udfff": 1})
    assert toml.loads(text) == {"e": "⟨U+D800⟩", "⟨U+DFFF⟩": 1}
    assert math.isnan(toml.loads(toml.dumps({"x": math.nan}))["x"])


@pytest.mark.parametrize("name", machine.known())
def test_machine_files_round_trip(name: str) -> None:
    text = machine_file.write(machine.load(name), "Written by a test.")
    document = toml.loads(text)
    assert toml.dumps(document, toml.head_comment(text)) == text
    assert {"source", "value", "unit"} <= document["device"]["memory"].keys()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a = 1\nper_node = 2\n\nper_node = 4\n", ["'per_node'", "line 4"]),
        ("a = 1\na = 2", ["'a'", "line 2"]),
        ("[d]\nx = [\n1,\n]\nx = [\n2,\n3]\n", ["'x'", "line 5"]),
        ('"a b" = 1\n"a b" = 2\n', ["a b", "line 2"]),
        ("x = 1\n[x]\ny = 2\n", ["'x'", "line 2"]),
        ("[device.peak]\na = 1\n[device.peak]\nb = 1\n", ["[device.peak]", "line 3"]),
        ("x = {a = 1, a = 2}\n", ["'a'", "line 1"]),
    ],
)
def test_repeated_keys_are_named_with_their_line(text: str, values: list[str]) -> None:
    with pytest.raises(toml.DecodeError) as caught:
        toml.loads(text)
    assert [value for value in values if value not in str(caught.value)] == []
