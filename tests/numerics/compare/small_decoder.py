"""Trains a small decoder, with a fault or another implementation on request: a script that tests record."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS, LAYERS = 64, 32, 4, 2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--fault", choices=["none", "epsilon", "scale", "sign", "residual", "decay"], default="none")
    return parser.parse_args()


class SignChange(torch.autograd.Function):
    """The identity, whose gradient has the wrong sign."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -gradients[0]


class Attention(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2)
        if self.scale != 1:
            scores = scores * self.scale
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, WIDTH))


class Layer(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = Attention(1.0 if fault == "scale" else (WIDTH // HEADS) ** -0.5)
        self.mlp_norm = nn.LayerNorm(WIDTH, eps=1e-4 if fault == "epsilon" else 1e-5)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        hidden = nn.functional.gelu(self.up(self.mlp_norm(x)))
        if self.fault == "sign":
            hidden = SignChange.apply(hidden)
        return self.down(hidden) if self.fault == "residual" else x + self.down(hidden)


class Decoder(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(*(Layer(fault if layer == 1 else "none") for layer in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embedding(tokens)))


def main() -> None:
    options = arguments()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Decoder(options.fault).to(getattr(torch, options.dtype))
    decay = 0.0 if options.fault == "decay" else 0.01
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=decay)
    model_or_compiled: Any = torch.compile(model, backend="aot_eager") if options.compile else model
    for _ in range(2):
        tokens = torch.randint(0, VOCABULARY, (4, 17))
        logits = model_or_compiled(tokens[:, :-1]).float()
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
