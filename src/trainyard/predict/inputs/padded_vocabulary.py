"""How frameworks divide a vocabulary over the ranks of tensor parallelism: padded to a multiple, or unevenly.

Megatron Core pads the embedding and the head to a multiple of make-vocab-size-divisible-by x tp
(`_vocab_size_with_padding` in `megatron/training/tokenizer/tokenizer.py`). torchtitan (DTensor) and DeepSpeed's AutoTP
give the first ranks more rows; the rank with the most rows decides the time and the memory of a step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from trainyard.model import Model


class VocabularyPadding(NamedTuple):
    """`multiple`: the rows are divided by multiples of this number x tp. `in_model`: rows are added to the model, which
    is trained and stored with them; otherwise the ranks have unequal numbers of rows."""

    multiple: int = 1
    in_model: bool = False

    def padded(self, vocab: int | npt.NDArray[np.int64], tp: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """tp x the rows of the rank with the most rows, for each tp."""
        step = self.multiple * tp
        return -(-vocab // step) * step

    def padded_model(self, model: Model, tp: int) -> Model:
        """The model as the framework trains it with this tp."""
        if not self.in_model:
            return model
        return replace(model, vocab=padded_rows(model.vocab, self.multiple * tp))

    def describe(self, vocab: int, tp: int, framework: str) -> str:
        """A sentence on the rows that a layout adds or divides unevenly; empty if there is nothing to report.
        `framework`: its name in sentences."""
        rows = padded_rows(vocab, self.multiple * tp)
        if rows == vocab:
            return ""
        if not self.in_model:
            return (
                f"The vocabulary of {vocab:,} rows is divided unevenly over tp {tp}: the largest part has "
                f"{rows // tp:,} rows."
            )
        factors = f"{self.multiple} x tp {tp}" if self.multiple > 1 else f"tp {tp}"
        return f"The vocabulary is padded from {vocab:,} to {rows:,} rows, a multiple of {factors}, for {framework}."


UNEVEN = VocabularyPadding()
"""torchtitan's and DeepSpeed's: no rows are added."""
TO_TP = VocabularyPadding(in_model=True)
"""Trainyard's own trainer, which shards evenly: a multiple of tp, as NeuronX Distributed pads."""
MEGATRON_DIVISOR = 128
"""Megatron Core's default of make-vocab-size-divisible-by."""
TO_MEGATRON_DIVISOR = VocabularyPadding(MEGATRON_DIVISOR, in_model=True)


def padded_rows(vocab: int, multiple: int) -> int:
    """`vocab`, rounded up to a multiple."""
    return -(-vocab // multiple) * multiple
