"""The size of default output: a command prints at most one screen of 80 columns."""

from __future__ import annotations

from rich.cells import cell_len

COLUMNS, LINES = 80, 45


def check(text: str, columns: int = COLUMNS, lines: int = LINES) -> None:
    """Assert that the text fits a terminal of `columns` x `lines`, and that no cell is cut to a letter."""
    shown = text.splitlines()
    assert len(shown) <= lines, f"{len(shown)} lines:\n{text}"
    for line in shown:
        assert cell_len(line) <= columns, f"{cell_len(line)} columns: {line}"
        assert not any(len(word) <= 2 and "…" in word for word in line.split()), f"cut to a letter: {line}"
