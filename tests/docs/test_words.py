"""Vocabulary used in the code exists in `words.py`, and no table is repeated."""

import ast
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from trainyard import words
from trainyard.ledger import Account, AccountChange, Entry, Ledger, Scope
from trainyard.record import Run

SOURCE = Path(__file__).parents[2] / "src" / "trainyard"
FILES = sorted(path for path in SOURCE.rglob("*.py") if path.name != "words.py")
TABLES = {
    name: set(table)
    for name, table in vars(words).items()
    if name.isupper() and not name.startswith("_") and len(table) >= 4
}
ACCOUNT = re.compile(rf"({'|'.join(words.KINDS)})/[a-z0-9_]+(@[a-z0-9_]+)?\Z")
KEYWORDS = {
    "phase": words.PHASES,
    "dtype": words.DTYPES,
    "vendor": words.VENDORS,
    "severity": words.SEVERITIES,
    "basis": words.BASES,
    "how": words.HOWS,
    "verdict": words.VERDICTS,
    "aligned": words.ALIGNMENTS,
}


def text_of(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def literals(path: Path):
    return ast.walk(ast.parse(path.read_text("utf-8")))


def called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_accounts_and_words_in_the_code_exist(path):
    for node in literals(path):
        where = f"{path.name}:{getattr(node, 'lineno', 0)}"
        if (text := text_of(node)) and ACCOUNT.match(text):
            Account.parse(text)
        if not isinstance(node, ast.Call):
            continue
        if called(node) == "Account" and node.args and all(text_of(arg) is not None for arg in node.args):
            Account(*(text_of(arg) or "" for arg in node.args))
        for keyword in node.keywords:
            text = text_of(keyword.value)
            if text and called(node) in {"Entry", "Operation", "Finding", "Ledger", "Scope", "Change", "Device"}:
                assert text in KEYWORDS.get(keyword.arg or "", {text}), f"{where}: {keyword.arg}={text!r}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_vocabulary_table_is_repeated(path):
    """A type must spell out its words (`Literal`), a dict may add data to each, an assignment may name each; a bare
    list may not repeat them."""
    nodes = list(literals(path))
    fine = {id(node.slice) for node in nodes if isinstance(node, ast.Subscript)}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            fine |= {id(part) for part in ast.walk(node.value)}
    for node in nodes:
        if isinstance(node, ast.List | ast.Tuple | ast.Set) and id(node) not in fine:
            parts = {text_of(part) for part in node.elts}
            for name, table in TABLES.items():
                assert not table <= parts, f"{path.name}:{node.lineno} repeats words.{name}"


@pytest.mark.parametrize(
    ("kind", "field", "table"),
    [
        (Entry, "how", words.HOWS),
        (Scope, "reduce", words.REDUCES),
        (Scope, "aligned", words.ALIGNMENTS),
        (Ledger, "basis", words.BASES),
        (AccountChange, "verdict", words.VERDICTS),
        (Run, "state", words.STATES),
    ],
)
def test_literal_types_match_their_tables(kind, field, table):
    assert set(get_args(get_type_hints(kind)[field])) == set(table)


def test_every_word_has_a_label_sentence_and_colour():
    for name in TABLES:
        for word, entry in getattr(words, name).items():
            if isinstance(entry, words.Word | words.AccountKind):
                assert entry.label, word
                assert entry.means.endswith("."), word
                assert re.fullmatch(r"#[0-9a-f]{6}", entry.colour), word


def test_precedence_of_account_kinds():
    order = ["compute", "straggler", "comm", "copy", "checkpoint", "data_wait", "bubble", "launch_gap", "unexplained"]
    assert list(words.KINDS) == order
