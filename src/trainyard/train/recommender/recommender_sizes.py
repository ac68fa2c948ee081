"""Dimensions of the recommender, and which rank has which of its tables. No torch here."""

from __future__ import annotations

from math import inf
from typing import Literal

import msgspec

from trainyard.errors import BadJob
from trainyard.train.sizes import at_least


class Dlrm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """DLRM with the cross layers of DCN V2. `dense` features go through the MLP `bottom`; the i-th categorical feature
    has `hots[i]` ids of a table with `rows[i]` rows of `width`, whose sum it is. All together go through `cross_layers`
    layers of rank `cross_rank` and the MLP `top`, which ends in the logit of a click.

    `skew`: exponent of the ids' Zipf distribution; 0 is uniform. `tables`: whether each rank has all tables, its part
    of the rows of each, or whole tables of its own.
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
        at_least(self, 1, "dense", "width", "rows", "hots", "bottom", "cross_layers", "cross_rank", "top")
        if not self.rows:
            raise BadJob("rows = [] at $.sizes.rows, but there is one table at least.", "Add the rows of each.")
        if len(self.rows) != len(self.hots):
            raise BadJob(
                f"{len(self.hots)} hots at $.sizes.hots for {len(self.rows)} tables at $.sizes.rows.",
                "Say for each table how many ids a sample has.",
            )
        for field, last, why in (
            ("bottom", self.width, "what it gives is one vector more beside the tables'"),
            ("top", 1, "it gives one logit"),
        ):
            found = getattr(self, field)
            if found[-1:] != [last]:
                raise BadJob(f"{field} = {found} at $.sizes.{field}, but {why}.", f"Let it end in {last}.")
        if not 0 <= self.skew < inf:
            raise BadJob(f"skew = {self.skew} at $.sizes.skew must be a number from 0.")

    @property
    def ids(self) -> int:
        """Of a sample, over all tables."""
        return sum(self.hots)

    @property
    def features(self) -> int:
        """Values that the cross layers see: a vector of each table and the dense features' one."""
        return (len(self.rows) + 1) * self.width


def owners(rows: list[int], ranks: int) -> list[list[int]]:
    """The tables of each rank: the largest first, to whoever has the fewest rows. None has none, of as many tables as
    ranks or more."""
    parts: list[list[int]] = [[] for _ in range(ranks)]
    held = [0] * ranks
    for table in sorted(range(len(rows)), key=lambda table: (-rows[table], table)):
        least = held.index(min(held))
        parts[least].append(table)
        held[least] += rows[table]
    return [sorted(part) for part in parts]
