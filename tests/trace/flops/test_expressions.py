"""Expressions of formula files: results against Python's own arithmetic, and everything that they must refuse."""

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.flops.shapes import HALF, SINGLE, Listed, shape
from trainyard.errors import BadInput
from trainyard.trace.flops.expressions import MAX_LENGTH, Expression
from trainyard.trace.flops.operands import FORMATS, CallFacts, OpArguments, UnknownOperand
from trainyard.trace.flops.pairs import kept_pairs

NAMES = ["x", "y", "n", "flag", "shape", "many", "gone"]
CALL = OpArguments(
    shape((HALF, (4, 3, 5)), (SINGLE, (7,)), 6, True, [2, 3, 4], Listed([(2, 2), (3,)]), None),
    " ".join(NAMES),
    CallFacts(element=FORMATS["float"]),
)


def evaluate(text):
    return Expression(text, NAMES, "file").value(CALL.value)


@st.composite
def sums(draw, depth=3):
    """(Text, value) of an expression over integers, dims and comparisons."""
    if not depth:
        return draw(
            st.sampled_from(
                [("n", 6), ("x[0]", 4), ("x[-1]", 5), ("y[0]", 7), ("x.numel", 60), ("y.bytes", 28), ("x.itemsize", 2),
                 ("x.ndim", 3), ("prod(x[1:])", 15), ("prod(shape[:])", 24), ("many.numel", 7), ("11", 11), ("0", 0)]
            )
        )  # fmt: skip
    (left, a), (right, b) = draw(sums(depth - 1)), draw(sums(depth - 1))
    kind = draw(st.sampled_from(["+", "-", "*", "//", "%", "<", "==", "if", "min", "max"]))
    if kind in ("//", "%") and b == 0:
        kind = "+"
    text = {
        "if": f"({left} if {left} < {right} else {right})", "min": f"min({left}, {right})",
        "max": f"max({left}, {right})",
    }.get(kind, f"({left} {kind} {right})")  # fmt: skip
    values = {
        "+": a + b, "-": a - b, "*": a * b, "<": int(a < b), "==": int(a == b), "if": min(a, b), "min": min(a, b),
        "max": max(a, b),
    }  # fmt: skip
    return text, values[kind] if kind in values else (a // b if kind == "//" else a % b)


@given(sums())
def test_values_equal_those_of_python(case):
    text, value = case
    if len(text) <= MAX_LENGTH:
        assert evaluate(text) == value


def test_functions_and_optional_arguments():
    assert evaluate("given(x) and not given(gone)")
    assert evaluate("default(gone, 9) + default(n, 9)") == 15
    assert evaluate("bytes(x, y, gone, many)") == 120 + 28 + 28
    assert evaluate("ceil_div(x.numel, n + 1)") == 9
    assert evaluate("pairs(3, 5, flag)") == 3 + 4 + 5
    assert evaluate("flag or gone.numel > 0")


REFUSED = [
    "__import__('os')", "x.__class__", "x.format", "().__class__", "lambda: 0", "[i for i in x]", "2 ** 9", "x @ y",
    "'a'",
    "1.5", "f'{n}'", "1 < n < 3", "prod(x[::2])", "min(a=1)", "open(n)", "prod", "n(1)", "n :=1", "(n := 1)", "1 if n",
    "n; n", "", "{}", "x[1:2, 0]", "n << 9", "~n", "n & 1", "1j", "...", "None", "min(*shape)", "await n", "n\nn",
    "given()", "eval('1')", "1" * (MAX_LENGTH + 1), "9" * 60, "-" * 500 + "n", "(" * 300 + "n" + ")" * 300, "m + 1",
    "\0n",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_other_syntax_is_refused_by_file(text):
    with pytest.raises(BadInput, match="file"):
        Expression(text, NAMES, "file")


@pytest.mark.parametrize(
    "text",
    ["x", "x[3]", "x[-4]", "1 // 0", "n % (n - 6)", "gone.numel", "n[0]", "n.numel", "bytes(n)", "prod(n)", "shape[9]",
     "1000000000000000000 * 1000000000000000000 * x.numel", "0 - n", "pairs(0 - 1, 2)", "min(x, y)", "many[0]",
     "flag.bytes"],
)  # fmt: skip
def test_impossible_values_give_no_cost(text):
    with pytest.raises(UnknownOperand):
        Expression(text, NAMES, "file").number(CALL.value)


TOKENS = [
    *NAMES,
    *"+-*/%()[]:,.<=!0123456789 ",
    "//",
    "numel",
    "bytes",
    "if",
    "else",
    "not",
    "and",
    "prod",
    "min",
    "pairs",
]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(TOKENS), max_size=14).map("".join))
def test_random_text_is_refused_or_evaluated(text):
    try:
        value = Expression(text, NAMES, "file").number(CALL.value)
    except (BadInput, UnknownOperand):
        return
    assert type(value) in (int, bool)
    assert value >= 0


@given(st.integers(0, 9), st.integers(0, 9), st.booleans(), st.integers(-1, 6), st.integers(-1, 6))
def test_kept_pairs_match_a_mask(rows, columns, causal, left, right):
    def keeps(i, j):
        middle = i + columns - rows
        last = middle if causal else middle + right if right >= 0 else columns
        return j <= last and (left < 0 or j >= middle - left)

    assert kept_pairs(rows, columns, causal, left, right) == sum(
        keeps(i, j) for i in range(rows) for j in range(columns)
    )


def test_numel_of_a_list_counts_all_its_tensors():
    assert evaluate("many.numel") == prod((2, 2)) + 3
    assert evaluate("many.ndim") == 2
