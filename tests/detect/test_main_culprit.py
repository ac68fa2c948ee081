"""The code that an interval is named after covers the largest part of it, against a search at each microsecond."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.booked_maker import STEP, US, Did, Gap, Span, a_rank
from tests.detect.test_code_shares import nested_spans, open_at
from tests.detect.test_detect import found_by
from trainyard.detect.host_blame import main_culprit, time_by_culprit
from trainyard.events import CALL, NOTE, OP, PYTHON
from trainyard.step_marks import STEP_MARK

MAIN = "train.py(1): main"


def named_by(spans, gaps):
    """The name of the interval that the gaps form."""
    rank = a_rank((), gaps, spans)
    return main_culprit(rank, rank.idle.host, rank.idle.ns)


def within(spans, begin, end):
    """The idle time from `begin` to `end` (µs), in pieces of 1 µs, each with its innermost span."""
    innermost = [next(reversed(open_at(spans, at * US)), -1) for at in range(begin, end)]
    return [Gap(at * US, (at + 1) * US, during=row) for at, row in zip(range(begin, end), innermost)]


def acceptable_paths(spans, begin, end):
    """The stacks of names that the documentation of `main_culprit` allows, several if times are equal."""
    stacks = [tuple(spans[row].name for row in open_at(spans, at * US)) for at in range(begin, end)]
    chosen, accepted = [()], set()
    while chosen:
        path = chosen.pop()
        inside = [stack for stack in stacks if stack[: len(path)] == path]
        times = Counter(stack[: len(path) + 1] for stack in inside if len(stack) > len(path))
        most = max(times.values(), default=0)
        enough = most > len(inside) - times.total() if not path else most and 2 * most >= len(stacks)
        if enough:
            chosen.extend(callee for callee, ns in times.items() if ns == most)
        else:
            accepted.add(path)
    return accepted


@settings(max_examples=150, deadline=None)
@given(nested_spans(), st.integers(0, 60), st.integers(1, 60))
def test_the_name_covers_the_largest_part(spans, begin, length):
    gaps = within(spans, begin, begin + length)
    rank = a_rank((), gaps, spans)
    names = set()
    for path in acceptable_paths(spans, begin, begin + length):
        rows = [-1] if not path else [row for row in range(len(spans)) if path_of(spans, row) == path][:1]
        names |= set(time_by_culprit(rank, np.array(rows), np.ones(1, np.int64)))
    assert main_culprit(rank, rank.idle.host, rank.idle.ns) in names


def path_of(spans, row):
    """The names of a span and of those around it, outermost first."""
    above = path_of(spans, spans[row].parent) if spans[row].parent >= 0 else ()
    return (*above, spans[row].name)


def test_a_function_with_many_short_callees_is_named_rather_than_the_first_frame():
    spans = [
        Span(MAIN, 0, 1_000 * US, PYTHON),
        Span("train.py(2): begin", 0, 200 * US, PYTHON, parent=0),
        Span("train.py(3): augment", 200 * US, 950 * US, PYTHON, parent=0),
    ]
    spans += [Span(f"train.py({at}): helper", at * US, (at + 90) * US, PYTHON, parent=2) for at in range(210, 850, 100)]
    gaps = within(spans, 0, 1_000)
    assert named_by(spans, gaps) == "train.py(3): augment"
    (finding,) = found_by("launch_bound", a_rank([Did("gemm", 1_000 * US, STEP, "compute/matmul")], gaps, spans))
    assert "largest: train.py(3): augment" in finding.evidence


@pytest.mark.parametrize(("half", "name"), [(50, "aten::mm in train.py(1): main"), (49, MAIN)])
def test_a_callee_of_half_of_the_interval_is_named(half, name):
    spans = [Span(MAIN, 0, 100 * US, PYTHON), Span("aten::mm", 0, half * US, OP, parent=0)]
    assert named_by(spans, within(spans, 0, 100)) == name


def test_repeated_calls_of_one_name_count_together():
    spans = [Span(MAIN, 0, 100 * US, PYTHON)]
    spans += [Span("cudaFree", at * US, (at + 2) * US, CALL, parent=0) for at in range(0, 60, 2)]
    assert named_by(spans, within(spans, 0, 100)) == f"cudaFree in {MAIN}"


def test_a_mark_is_named_only_for_the_time_without_a_span_in_it():
    mark = Span(f"{STEP_MARK}#3", 0, 100 * US, NOTE)
    ops = [Span(name, at * US, (at + 20) * US, OP, parent=0) for name, at in (("aten::a", 0), ("aten::b", 30))]
    assert named_by([mark, *ops], within([mark, *ops], 0, 25)) == "aten::a"
    assert named_by([mark, *ops], within([mark, *ops], 0, 100)) in ("host code", "Python")


def test_time_without_spans_is_not_named_after_one():
    spans = [Span("aten::mm", 0, 10 * US)]
    rank = a_rank((), [Gap(0, 10 * US, during=0), Gap(10 * US, 30 * US)], spans)
    assert main_culprit(rank, rank.idle.host, rank.idle.ns) in ("host code", "Python")
