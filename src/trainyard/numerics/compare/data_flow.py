"""From which tensors a recorded tensor was computed, in the records of one side."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from trainyard.numerics.compare.align_tensors import Tensors
from trainyard.numerics.compare.logical_tensors import ALL_RANKS, LogicalKey


class DataFlow:
    """The inputs of the tensors of a step. Those of earlier steps, and of compiled regions, are not known."""

    def __init__(self, tensors: Tensors, step: int) -> None:
        self._tensors = tensors
        self._keys = {(key.rank, record.index): key for key, record in tensors.items() if record.step == step}
        self._of_lowest_rank: dict[int, LogicalKey] = {}
        for (_, index), key in sorted(self._keys.items(), key=lambda item: item[0]):
            self._of_lowest_rank.setdefault(index, key)

    def inputs(self, key: LogicalKey) -> list[LogicalKey]:
        """The tensors from which `key` was computed, as far as they are in the records."""
        known = (self._key(key.rank, index) for index in self._tensors[key].inputs)
        return [source for source in known if source is not None and source != key]

    def sources(self, key: LogicalKey, until: Collection[LogicalKey]) -> Iterator[LogicalKey]:
        """All tensors from which `key` was computed, the nearest first, back to the first of `until` on each path,
        which are included."""
        seen = {key}
        level = [key]
        while level:
            level = [source for at in level for source in self.inputs(at)]
            level = [source for source in dict.fromkeys(level) if source not in seen]
            seen.update(level)
            yield from level
            level = [source for source in level if source not in until]

    def _key(self, rank: int, index: int) -> LogicalKey | None:
        """The tensor of a rank with an index, which all ranks may hold together. If `rank` is all ranks, the tensor of
        the lowest rank represents those of all."""
        if rank == ALL_RANKS:
            return self._of_lowest_rank.get(index)
        return self._keys.get((rank, index)) or self._keys.get((ALL_RANKS, index))
