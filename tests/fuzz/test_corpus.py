"""Replays the corpus of `validation/fuzz` without a fuzzer: every input is read or refused with `BadInput`."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fuzz.target import check
from trainyard import plugins
from trainyard.errors import BadInput
from validation.fuzz.readers import CORPUS, READERS, corpus

INPUTS = [(name, path) for name in READERS for path in corpus(name)]
PROFILES = [path for name, path in INPUTS if name in {*plugins.names("readers"), "snapshot"}]
MOST_BYTES = 500_000


@pytest.mark.parametrize(("name", "path"), INPUTS, ids=[f"{name}/{path.name}" for name, path in INPUTS])
def test_input_is_read_or_refused(name: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exceptions that Python prints and ignores count too."""
    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: dropped.append(ignored.exc_value))
    with suppress(BadInput):
        READERS[name].read(path.read_bytes(), tmp_path)
    gc.collect()
    assert not dropped


@pytest.mark.parametrize("path", PROFILES, ids=[f"{path.parent.name}/{path.name}" for path in PROFILES])
def test_profile_is_measured_or_refused(path: Path, tmp_path: Path) -> None:
    check(path.read_bytes(), tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_seeds_are_accepted(name: str, tmp_path: Path) -> None:
    accepted = 0
    for path in corpus(name):
        with suppress(BadInput):
            accepted += path.name.startswith("seed-") and READERS[name].read(path.read_bytes(), tmp_path)
    assert accepted


def test_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < MOST_BYTES
