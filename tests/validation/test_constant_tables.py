"""The table of fitted constants of `make validate`."""

from __future__ import annotations

from trainyard.predict.inputs import constant_sets
from validation.constant_tables import at_limit, constants_table


def test_shares_and_factors_of_one_are_at_their_limit() -> None:
    assert at_limit("matmul", 0.999999)
    assert at_limit("adapted", 1.0)
    assert not at_limit("matmul", 0.9)
    assert not at_limit("kernel_s", 1.0)  # a time has no limit


def test_moved_and_other_constants_add_up() -> None:
    sets = constant_sets.known()
    table = constants_table(sets)
    assert [row[0] for row in table.rows] == [known.name for known in sets]
    for known, row in zip(sets, table.rows, strict=True):
        moved, others = row[3], row[4]
        assert isinstance(moved, int)
        assert isinstance(others, int)
        assert moved + others == len(known.constants)
        assert 0 < moved <= known.rows
