"""Fixtures of the training tests."""

import random

import pytest


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A text file, always the same: losses that are compared with a tolerance depend on it."""
    draw = random.Random(7)  # noqa: S311
    letters = "abcdefghijklmnopqrstuvwxyz_"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(200)]
    frequencies = [1 / rank for rank in range(1, len(words) + 1)]  # Zipf's law
    lines = (" ".join(draw.choices(words, frequencies, k=draw.randint(3, 12))) for _ in range(400))
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("\n".join(lines), "utf-8")
    return str(path)
