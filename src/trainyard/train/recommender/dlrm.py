"""DLRM (Naumov et al. 2019, arXiv:1906.00091) with low-rank cross layers instead of dot products (Wang et al. 2020,
"DCN V2", arXiv:2008.13535): MLPerf training's recommender since version 3.0.

Shapes: B samples, C crossed values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.train.model.layers import Linear
from trainyard.train.recommender.embeddings import Embeddings, Replicated
from trainyard.train.recommender.recommender_sizes import Dlrm


class DlrmMlp(nn.ModuleList):
    """An MLP with a ReLU after each matrix, except after the last if `ends_linear`."""

    def __init__(self, width_in: int, widths: Sequence[int], ends_linear: bool) -> None:
        """`widths`: output width of each linear layer."""
        inputs = [width_in, *widths]
        super().__init__(Linear(layer_in, layer_out, bias=True) for layer_in, layer_out in zip(inputs, widths))
        self.ends_linear = ends_linear

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, width_in) to (B, last of widths)."""
        for number, layer in enumerate(self, start=1):
            x = layer(x)
            if not (self.ends_linear and number == len(self)):
                x = F.relu(x)
        return x


class Cross(nn.Module):
    """A low-rank cross layer: x0 * (up down x + b) + x, with `up` (C, rank) and `down` (rank, C)."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = Linear(width, rank)
        self.up = Linear(rank, width, bias=True)

    def forward(self, first_BC: Tensor, x_BC: Tensor) -> Tensor:
        """One cross layer: `first_BC` is the input of the first layer (x0), `x_BC` that of this one. Returns (B, C)."""
        return first_BC * self.up(self.down(x_BC)) + x_BC


class ClickModel(nn.Module):
    """Maps dense features (B, F) and ids (B, I) to click logits (B)."""

    def __init__(self, sizes: Dlrm, dtype: torch.dtype, *, row_gradients: bool) -> None:
        """Embedding tables, the bottom MLP of the dense features, cross layers over all features, and the top MLP.
        `dtype`: the compute dtype; `row_gradients`: of the tables."""
        super().__init__()
        self.compute_dtype = dtype
        self.embed = Replicated(sizes, dtype) if row_gradients else Embeddings(sizes, dtype, range(len(sizes.rows)))
        self.bottom = DlrmMlp(sizes.dense, sizes.bottom, ends_linear=False)
        self.cross = nn.ModuleList(Cross(sizes.features, sizes.cross_rank) for _ in range(sizes.cross_layers))
        self.top = DlrmMlp(sizes.features, sizes.top, ends_linear=True)

    @property
    def blocks(self) -> dict[str, nn.Module]:
        crosses = {f"cross.{number}": layer for number, layer in enumerate(self.cross)}
        return {"bottom": self.bottom, **crosses, "top": self.top}

    def forward(self, dense_BF: Tensor, ids_BI: Tensor) -> Tensor:
        """Click logits (B) of dense features (B, F) and ids (B, I). The T tables' vectors and the dense one are
        concatenated to C = (T + 1) D features."""
        vectors_BTD = self.embed(ids_BI)
        dense_BD = self.bottom(dense_BF.to(self.compute_dtype))
        first_BC = x_BC = torch.cat([dense_BD.unsqueeze(1), vectors_BTD], dim=1).flatten(1)
        for layer in self.cross:
            x_BC = layer(first_BC, x_BC)
        return self.top(x_BC).squeeze(1)
