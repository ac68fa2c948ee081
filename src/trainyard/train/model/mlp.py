"""The MLP of a layer. Shapes: B sequences, T positions, D width, F inner width."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.model import Model
from trainyard.train.model.layers import Linear


class Mlp(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv:2002.05202): gate, up, down. Or up, GELU (tanh approximation, as in GPT-2), down."""

    def __init__(self, model: Model, inner_width: int) -> None:
        """Layers for inputs of `model.hidden_size` channels; `inner_width`: channels between the two matrices."""
        super().__init__()
        biased = model.bias == "all"
        self.gate = Linear(model.hidden_size, inner_width, biased) if model.mlp == "swiglu" else None
        self.up = Linear(model.hidden_size, inner_width, biased)
        self.down = Linear(inner_width, model.hidden_size, biased)

    def forward(self, x_BTD: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(F.gelu(self.up(x_BTD), approximate="tanh"))
        return self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))
