"""A language model with two LSTM layers."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from benign.decomposed import CellLSTM
from benign.settings import Batch, Sizes, Task
from torch import Tensor, nn

VOCABULARY = 40


class Recurrent(nn.Module):
    def __init__(self, width: int, lstm: type[nn.LSTM]) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
        self.layers = nn.ModuleList(lstm(width, width, batch_first=True) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer(x)[0]
        return self.output(x)


def build(settings: argparse.Namespace, size: Sizes) -> Task:
    model = Recurrent(size.width, CellLSTM if settings.cells else nn.LSTM)

    def batch(step: int) -> Batch:
        draw = torch.Generator().manual_seed(1000 * size.seed + step)
        tokens = torch.randint(VOCABULARY, (4 * size.samples, size.length + 1), generator=draw).cumsum(1) % VOCABULARY
        return tokens[:, :-1], tokens[:, 1:]

    return Task(model, batch, lambda model, batch: F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten()))
