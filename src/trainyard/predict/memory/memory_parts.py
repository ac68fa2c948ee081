"""What a rank holds, by part, and the fullest of several such moments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Column


class MemoryParts(NamedTuple):
    """Bytes. `gathered`: whole weights, and gradients that are leaving."""

    parameters: Column
    gradients: Column
    optimizer: Column
    activations: Column
    logits: Column
    gathered: Column

    @property
    def total(self) -> Column:
        return sum(self, np.zeros(1))

    def parts(self) -> dict[str, Column]:
        """By the words of `words.MEMORY`, and what has none of those."""
        return {
            "parameter": self.parameters,
            "gradient": self.gradients,
            "optimizer_state": self.optimizer,
            "activation": self.activations,
            "logits": self.logits,
            "gathered": self.gathered,
        }


def fullest(moments: Sequence[MemoryParts]) -> MemoryParts:
    """Of each case; the first of those that are equal."""
    most = moments[0]
    for other in moments[1:]:
        more = other.total > most.total
        most = MemoryParts(*(np.where(more, its, mine) for its, mine in zip(other, most, strict=True)))
    return most
