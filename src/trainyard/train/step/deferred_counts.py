"""Tokens per expert of a step, copied to the host without waiting for the step's end."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trainyard.train.step.deferred_outcome import copy_to_host


class DeferredCounts:
    """An `ExpertCounts`: calling it waits for the copy. On a CPU the counts are there already."""

    def __init__(self, counts: Mapping[str, Tensor]) -> None:
        """`counts`: layer name -> (E,) int64 tokens per expert, of at least one layer."""
        self._layers = tuple(counts)
        counts_LE = torch.stack(tuple(counts.values()))
        self._copied = torch.cuda.Event() if counts_LE.is_cuda else None
        self._counts_LE = counts_LE
        if self._copied is not None:
            self._counts_LE = torch.empty_like(counts_LE, device="cpu", pin_memory=True)
            copy_to_host(self._counts_LE, counts_LE)
            self._copied.record()

    def __call__(self) -> dict[str, tuple[int, ...]]:
        """Layer name -> tokens per expert."""
        if self._copied is not None:
            self._copied.synchronize()
        return {layer: tuple(counts) for layer, counts in zip(self._layers, self._counts_LE.tolist(), strict=True)}
