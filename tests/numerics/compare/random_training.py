"""Trains a small network with random weights and dropout, drawn as another device would draw them on request."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional

CHOICES = ["cpu", "weights", "dropout", "data", "deviation", "no dropout", "epsilon"]


class Dropout(nn.Module):
    """Dropout whose mask is that of the CPU, of another generator and kernel, or absent."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def forward(self, x: Tensor) -> Tensor:
        if self.device == "no dropout":
            return x
        if self.device == "dropout":
            return torch.native_dropout(x, 0.25, True)[0]
        return functional.dropout(x, 0.25)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=CHOICES, default="cpu")
    device = parser.parse_args().device
    torch.manual_seed(1 if device == "weights" else 0)
    torch.set_num_threads(1)
    norm = nn.LayerNorm(64, eps=0.5 if device == "epsilon" else 1e-5)
    model = nn.Sequential(nn.Linear(32, 64), norm, nn.GELU(), Dropout(device), nn.Linear(64, 8))
    nn.init.normal_(model[0].weight, std=0.3 if device == "deviation" else 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(3 if device == "dropout" else 2)
    data = torch.Generator().manual_seed(3 if device == "data" else 2)
    for _ in range(2):
        x = torch.randn(16, 32, generator=data)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
