"""Wording that readers stumble over does not come back: the count of each pattern may fall, and never rise.

Texts are docstrings, other strings of three words and more, comments, and documents outside of their code blocks. Some
uses are right, so a limit need not be zero. Lower a limit when the count has fallen.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDERS = ("src", "docs", "tests", "validation", "benchmarks", "examples")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
LEFT_OUT = ("docs/reference.md", "tests/docs/test_wording.py")

TEXTS = {
    "fragment": r"^\W*Of\b",
    "is no": r"(?<!here )\b(?:is|are|was|were) (?:no (?!longer\b|more\b|less\b)[a-z]+|none\b)",
    "told": r"(?<!cannot )\b(?:told|tells?|telling)\b",
    "is said": r"\b(?:is|are|be) said\b|\bsays? so\b",
    "stands": r"\bstand(?:s|ing)?\b(?! (?:alone|for|in\b))",
    "beside": r"\bbeside\b",
    "go on": r"\bgo(?:es|ne|ing)? on\b|\bwent on\b",
    "where none": r"\bwhere (?:there (?:is|are)|none|one|no|nothing)\b",
    "by itself": r"\bby (?:itself|themselves)\b",
    "somebody": r"\b(?:no|some)body\b",
    "anew": r"\b(?:anew|alike)\b",
    "metaphors": r"\bdoors?\b|\brooms?\b|\bthe house\b",
}
NAMES = re.compile(r"_?(?:one|found|said|told|made|place|of|asked|who|what|says|tells)")

LIMITS: dict[str, int] = {
    "fragment": 1,
    "is no": 5,
    "told": 12,
    "is said": 4,
    "stands": 7,
    "beside": 12,
    "go on": 8,
    "where none": 7,
    "by itself": 2,
    "somebody": 11,
    "anew": 6,
    "metaphors": 3,
    "names": 77,
}


def texts(path: Path) -> Iterator[str]:
    """The texts of a Python file or a document."""
    source = path.read_text("utf-8")
    if path.suffix == ".md":
        yield from re.sub(r"(?ms)^```.*?^```", "", source).splitlines()
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) >= 3:
            yield node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def bound_names(path: Path) -> Iterator[str]:
    """Names of variables and parameters, once for each time they are bound."""
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


@pytest.fixture(scope="module")
def counts(root: Path) -> Counter[str]:
    paths = [path for folder in FOLDERS for suffix in ("py", "md") for path in (root / folder).rglob(f"*.{suffix}")]
    paths = [path for path in (*paths, *(root / page for page in PAGES)) if str(path.relative_to(root)) not in LEFT_OUT]
    patterns = {name: re.compile(pattern) for name, pattern in TEXTS.items()}
    counts: Counter[str] = Counter()
    for path in paths:
        if str(path.relative_to(root)) in LEFT_OUT:
            continue
        for text in texts(path):
            counts.update({name: len(pattern.findall(text)) for name, pattern in patterns.items()})
        counts["names"] += sum(NAMES.fullmatch(name) is not None for name in bound_names(path))
    return counts


@pytest.mark.parametrize("name", [*TEXTS, "names"])
def test_wording_does_not_get_worse(counts: Counter[str], name: str) -> None:
    assert counts[name] <= LIMITS[name]


def test_a_pattern_matches_what_it_is_for() -> None:
    assert re.search(TEXTS["fragment"], "Of each interval, -1 where unknown")
    assert re.search(TEXTS["is no"], "a name that is no run")
    assert not re.search(TEXTS["is no"], "there is no run")
    assert not re.search(TEXTS["stands"], "a name that stands for a run")
    assert NAMES.fullmatch("found")
    assert not NAMES.fullmatch("offset")
