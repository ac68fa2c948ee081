"""Columns of a table that grow while a trace is read, and the numbers that stand for repeated texts in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.events import I32, Collective


class TextIndex(dict[Any, int]):
    """Numbers texts, or other hashable keys, from 0 on in order of first appearance: text -> number."""

    def __missing__(self, text: Any) -> int:
        number = self[text] = len(self)
        return number

    def add_all(self, texts: list[Any]) -> I32:
        """Adds the texts that are new; returns the number of each text."""
        return np.array(list(map(self.__getitem__, texts)), np.int32)

    def texts(self) -> list[Any]:
        """The distinct texts; the one at position i has the number i."""
        return list(self)


class ColumnBuilder:
    """Columns of one table, which grow by blocks of rows. `count`: number of rows; `collectives`: row -> collective."""

    def __init__(self, dtypes: Sequence[type[np.integer[Any]]]) -> None:
        """`dtypes`: dtype of each column."""
        self.dtypes = dtypes
        self.count = 0
        self.collectives: dict[int, Collective] = {}
        self._blocks: list[list[NDArray[Any]]] = []

    def extend(self, columns: Sequence[NDArray[Any]]) -> None:
        """Appends a block of rows, given as one array per column."""
        self._blocks.append([column.astype(dtype) for column, dtype in zip(columns, self.dtypes)])
        self.count += len(columns[0])

    def columns(self) -> list[NDArray[Any]]:
        """Concatenates the blocks of each column; can be called once. Frees the blocks on the way, so that at most one
        column is in memory twice."""
        if len(self._blocks) == 1:
            return self._blocks.pop()
        columns = []
        for index, dtype in enumerate(self.dtypes):
            columns.append(np.concatenate([np.empty(0, dtype), *(block[index] for block in self._blocks)]))
            for block in self._blocks:
                block[index] = np.empty(0, dtype)
        return columns
