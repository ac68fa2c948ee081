"""A decoder with a mixture of experts, whose router has a load-balancing loss (Fedus et al. 2021).

The gradient of the load-balancing loss is added in the backward pass, where it gets the factor `scale`, because the
loss of the tokens is a sum that is divided by the number of tokens only after the backward pass (as in Megatron-LM
with `--calculate-per-token-loss`).

Shapes: B samples, S positions, E experts, W width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from batches import VOCABULARY
from decoder import WIDTH, Attention, RMSNorm
from torch import Tensor, nn

EXPERTS = 4
COEFFICIENT = 0.05


class AttachLoss(torch.autograd.Function):
    """Passes `x` on unchanged; in the backward pass, `loss` gets the gradient `scale`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        ctx.save_for_backward(loss)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (loss,) = ctx.saved_tensors
        return gradient, torch.full_like(loss, ctx.scale), None


class Router(nn.Module):
    """Weights of the experts. `scale`: number of samples and positions -> factor of the loss's gradient."""

    def __init__(self, scale: Callable[[int, int], float]) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, W] -> weights [B, S, E] of the best expert of each token; 0 for the others."""
        probabilities = self.gate(x).softmax(-1)
        chosen = F.one_hot(probabilities.argmax(-1), EXPERTS).to(x.dtype)
        # Per sample: the share of the tokens of each expert times its mean probability.
        balance = EXPERTS * (chosen.mean(1) * probabilities.mean(1)).sum(-1).mean()
        weights = AttachLoss.apply(probabilities, COEFFICIENT * balance, self.scale(*x.shape[:2]))
        return weights * chosen


class Experts(nn.Module):
    def __init__(self, router: Router) -> None:
        super().__init__()
        self.router = router
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(EXPERTS)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return (outputs * weights[..., None, :]).sum(-1)


class RoutedLayer(nn.Module):
    def __init__(self, attention: nn.Module, moe: Experts) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(), attention
        self.moe_norm, self.moe = RMSNorm(), moe

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.moe(self.moe_norm(x))


class MoeDecoder(nn.Module):
    """Two layers: attention and experts. `scale`: see `Router`. `mix`: how tokens attend to each other."""

    def __init__(self, scale: Callable[[int, int], float], mix: type[nn.Module] = Attention) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(RoutedLayer(mix(), Experts(Router(scale))) for _ in range(2))
        self.norm = RMSNorm()
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))
