"""A recommender: bags of categories, dense features, products of all pairs of embeddings, and an MLP (as DLRM)."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from benign.decomposed import ChunkedLinear
from benign.settings import Batch, Sizes, Task
from torch import Tensor, nn

TABLES, ROWS, DENSE = 4, 100, 6


class Recommender(nn.Module):
    """`bottom`: of the dense features. Vectors are the outputs of the tables and of `bottom`."""

    def __init__(self, width: int, settings: argparse.Namespace) -> None:
        super().__init__()
        linear = ChunkedLinear if settings.product == "chunked" else nn.Linear
        self.tables = nn.ModuleList(nn.Embedding(ROWS, width) for _ in range(TABLES))
        self.bottom = nn.Sequential(linear(DENSE, width), nn.ReLU(), linear(width, width))
        self.top = nn.Sequential(linear((TABLES + 1) ** 2 + width, 2 * width), nn.ReLU(), linear(2 * width, 1))
        self.uses_einsum, self.adds_backward = settings.interaction == "einsum", settings.sum_order == "backward"

    def forward(self, categories: Tensor, dense: Tensor) -> Tensor:
        """`categories`: [sample, table, number in the bag]; `dense`: [sample, feature]."""
        bottom = self.bottom(dense)
        bags = [self._add(table(categories[:, number])) for number, table in enumerate(self.tables)]
        vectors = torch.stack([bottom, *bags], dim=1)
        if self.uses_einsum:
            products = torch.einsum("biw,bjw->bij", vectors, vectors)
        else:
            products = vectors @ vectors.mT
        return self.top(torch.cat((bottom, products.flatten(1)), dim=1)).squeeze(1)

    def _add(self, bag: Tensor) -> Tensor:
        """The sum of a bag [sample, number, width] in its order."""
        parts = list(bag.unbind(1))
        total = torch.zeros_like(parts[0])
        for part in reversed(parts) if self.adds_backward else parts:
            total = total + part
        return total


def build(settings: argparse.Namespace, size: Sizes) -> Task:
    model = Recommender(size.width, settings)

    def batch(step: int) -> Batch:
        draw = torch.Generator().manual_seed(1000 * size.seed + step)
        categories = torch.randint(ROWS, (4 * size.samples, TABLES, size.length), generator=draw)
        dense = torch.randn(4 * size.samples, DENSE, generator=draw)
        return categories, dense, (dense.sum(1) + categories[:, 0, 0] / ROWS > 0).to(dense.dtype)

    return Task(model, batch, lambda model, batch: F.binary_cross_entropy_with_logits(model(*batch[:2]), batch[2]))
