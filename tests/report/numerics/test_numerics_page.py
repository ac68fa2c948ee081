"""The page of a comparison of recorded tensors, as far as it needs no browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.compared_records import PAGES, SCRIPT, compared
from tests.page_views import HOSTILE
from trainyard import api
from trainyard.errors import BadFile, BadInput
from trainyard.numerics.reproduce.script_title import script_subject
from trainyard.report.numerics.numerics_page import page

_MOST_BYTES = 2_000_000


def data_of(text: str) -> dict[str, Any]:
    """The data in a page."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert match is not None
    return json.loads(match[1])


def test_page_of_a_hundred_layers_is_bounded(tmp_path: Path) -> None:
    report = PAGES["large"](tmp_path)
    text = page(report)
    assert len(text.encode()) < _MOST_BYTES
    data = data_of(text)
    assert len(data["modules"]) == 1001
    assert report.counts.compared > 50_000
    assert len(data["tensors"]["rows"]) == 5000
    assert len(data["tensors"]["rows"]) + report.tensors_left_out == report.counts.compared
    assert any("5,000 of" in note for note in data["notes"])
    assert {row[0] for row in data["tensors"]["rows"]} == set(range(1001))


def test_page_has_the_first_fault_and_the_tensors_of_its_module(tmp_path: Path) -> None:
    data = data_of(page(compared(tmp_path, "page", SCRIPT, epsilon=1e-2)))
    fault = next(at for at, module in enumerate(data["modules"]) if module["is_first_fault"])
    texts = data["tensors"]["texts"]
    labels = [(texts[row[3]], texts[row[4]]) for row in data["tensors"]["rows"] if row[0] == fault and row[1] == 0]
    assert ("aten.rms_norm", "different") in labels
    assert data["fault"]["place"] == "step 0 forward"
    assert data["reproducer"] == SCRIPT


def test_hostile_names_do_not_leave_their_elements(tmp_path: Path) -> None:
    text = page(PAGES["hostile"](tmp_path))
    for name in HOSTILE:
        if "<" in name:
            assert name not in text
    assert text.count("<script") == 2
    assert not {"\u202e", "\x00", "\x1b"} & set(text)


def test_reproducer_is_read_with_a_limit(tmp_path: Path) -> None:
    report = compared(tmp_path, "read", epsilon=1e-2)
    script = tmp_path / "script.py"
    assert report.first is not None
    subject = script_subject(report.first)
    script.write_bytes(f"# {subject}".encode() + b"\nprint('\xff')\n")
    read = api.compare_numerics(report.a.folder, report.b.folder, reproducer=script)
    assert read.reproducer == f"# {subject}\nprint('\ufffd')\n"
    with pytest.raises(BadInput):  # these records do not differ
        api.compare_numerics(report.a.folder, report.a.folder, reproducer=script)
    script.write_text("# another difference")
    with pytest.raises(BadInput):
        api.compare_numerics(report.a.folder, report.b.folder, reproducer=script)
    script.write_bytes(b"#" * (2 << 20))
    for path in (script, tmp_path, tmp_path / "missing.py"):
        with pytest.raises(BadFile):
            api.compare_numerics(report.a.folder, report.b.folder, reproducer=path)
