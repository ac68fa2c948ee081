"""The parts of the window that a mean covers, and the times inside them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainyard import words
from trainyard.ledger import AFTER, BEFORE
from trainyard.trace.align.steps import StepPart, in_full, in_parts, select_averaged

KINDS = st.sampled_from(list(words.PARTS))
LENGTHS = st.integers(1, 5)
LABELS = st.sampled_from([BEFORE, "1", "2", AFTER])


@st.composite
def windows(draw):
    """The parts of a rank, which tile its window from 10 ns on."""
    parts, start = [], 10
    for label, kind, length in draw(st.lists(st.tuples(LABELS, KINDS, LENGTHS), min_size=1, max_size=5)):
        parts.append(StepPart(label, start, start + length, partial=kind != "step", kind=kind))
        start += length
    return parts


@given(st.lists(windows(), min_size=1, max_size=3))
def test_mean_covers_full_steps_else_cut_ones_else_all(ranks):
    chosen = [[part for part, is_averaged in zip(*pair) if is_averaged] for pair in zip(ranks, select_averaged(ranks))]
    full = [[part for part in parts if not part.partial] for parts in ranks]
    cut = [[part for part in parts if part.kind == "cut" and part.label not in (BEFORE, AFTER)] for parts in ranks]
    assert chosen == (full if any(full) else cut if any(cut) else ranks)


@given(windows(), st.data())
def test_times_are_in_the_selected_parts(parts, data):
    size = len(parts)
    is_selected = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool)
    times = np.arange(5, 45)
    selected = [part for part, chosen in zip(parts, is_selected) if chosen]
    full = [part for part in parts if not part.partial] or parts
    for result, wanted in ((in_parts(parts, is_selected, times), selected), (in_full(parts, times), full)):
        assert result.tolist() == [any(part.start <= time < part.stop for part in wanted) for time in times]
