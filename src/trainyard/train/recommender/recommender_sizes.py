"""Dimensions of the recommender, and the assignment of its tables to ranks. Needs no torch."""

from __future__ import annotations

from math import inf
from typing import Literal

import msgspec

from trainyard.errors import BadJob
from trainyard.train.sizes import require_at_least


class Dlrm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """DLRM with the cross layers of DCN V2. `dense` features pass through the MLP `bottom`. The i-th categorical
    feature is the sum of `hots[i]` rows of a table with `rows[i]` rows of `width`. All features pass through
    `cross_layers` layers of rank `cross_rank` and the MLP `top`, which outputs the click logit.

    `skew`: exponent of the ids' Zipf distribution; 0 is uniform. `tables`: replicated, sharded by row or sharded by
    table.
    """

    dense: int = 13
    width: int
    rows: list[int]
    hots: list[int]
    bottom: list[int]
    cross_layers: int
    cross_rank: int
    top: list[int]
    skew: float = 1.05
    tables: Literal["replicated", "by_row", "by_table"] = "replicated"

    def __post_init__(self) -> None:
        """Raises `BadJob` if a dimension is out of range, or lists do not fit each other."""
        require_at_least(self, 1, "dense", "width", "rows", "hots", "bottom", "cross_layers", "cross_rank", "top")
        if not self.rows:
            raise BadJob("rows = [] at $.sizes.rows, but at least one table is needed.", "Add the rows of each table.")
        if len(self.rows) != len(self.hots):
            raise BadJob(
                f"{len(self.hots)} hots at $.sizes.hots for {len(self.rows)} tables at $.sizes.rows.",
                "Give the number of ids per sample for each table.",
            )
        for field, last, reason in (
            ("bottom", self.width, "its output is concatenated with the tables' vectors"),
            ("top", 1, "its output is one logit"),
        ):
            widths = getattr(self, field)
            if widths[-1:] != [last]:
                raise BadJob(f"{field} = {widths} at $.sizes.{field}, but {reason}.", f"End it with {last}.")
        if not 0 <= self.skew < inf:
            raise BadJob(f"skew = {self.skew} at $.sizes.skew must be a finite number of at least 0.")

    @property
    def ids(self) -> int:
        """Ids per sample, over all tables."""
        return sum(self.hots)

    @property
    def features(self) -> int:
        """Input values of the cross layers: one vector per table and that of the dense features."""
        return (len(self.rows) + 1) * self.width


def assign_tables(rows: list[int], ranks: int) -> list[list[int]]:
    """Assigns tables to ranks: the largest first, each to the rank with the fewest rows. Returns the table numbers of
    each rank, ascending. `rows`: of each table. No rank is empty if there are at least as many tables as ranks."""
    tables_per_rank: list[list[int]] = [[] for _ in range(ranks)]
    rows_per_rank = [0] * ranks
    for table in sorted(range(len(rows)), key=lambda table: (-rows[table], table)):
        lightest_rank = rows_per_rank.index(min(rows_per_rank))
        tables_per_rank[lightest_rank].append(table)
        rows_per_rank[lightest_rank] += rows[table]
    return [sorted(tables) for tables in tables_per_rank]
