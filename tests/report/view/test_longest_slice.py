"""The longest slice of each group, by which merged slices are named."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainyard.report.view.rank_lanes import _longest


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=6))
def test_the_first_of_the_longest_slices_names_its_group(groups):
    starts = np.cumsum([0, *map(len, groups[:-1])])
    lengths = np.array([length for group in groups for length in group])
    expected = [start + group.index(max(group)) for start, group in zip(starts.tolist(), groups)]
    assert _longest(lengths, starts).tolist() == expected
