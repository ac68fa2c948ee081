"""Parts of generated pages: Markdown tables, and sentences from docstrings."""

from collections.abc import Iterable
from textwrap import dedent


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    lines = [list(head)]
    lines += [["---"] * len(lines[0])]
    lines += [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def first_paragraph(doc: str | None) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(dedent(doc or "").strip().split("\n\n")[0].split())
