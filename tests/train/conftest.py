"""Fixtures of the training tests."""

from pathlib import Path

import pytest

from trainyard.train.rules import trainable


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A text file of this project's sources."""
    path = tmp_path_factory.mktemp("text") / "sources.txt"
    path.write_bytes(b"".join(file.read_bytes() for file in sorted(Path(trainable.__file__).parents[1].glob("*.py"))))
    return str(path)
