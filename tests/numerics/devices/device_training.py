"""Trains a small transformer on what the test calls devices: kernels of the CPU, and planted faults."""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from torch import Tensor, nn

CHOICES = ["cpu", "math", "unfused:1", "faulty", "broken", "meta"]
WIDTH, HEADS = 32, 4


class Block(nn.Module):
    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        if self.device == "unfused:1":
            scores = q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5
            heads = scores.softmax(-1) @ v
        else:
            scale: Any = 1.02 * (WIDTH // HEADS) ** -0.5 if self.device == "faulty" else None
            heads = nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)
        return x + self.out(heads.transpose(1, 2).reshape(batch, length, WIDTH))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=CHOICES, default=os.environ.get("TEST_DEVICE", "cpu"))
    device = parser.parse_args().device
    if device == "broken":
        raise SystemExit("this device fails")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = device not in ("math", "unfused:1")  # type: ignore[assignment]
    backend = nn.attention.SDPBackend.MATH if device == "math" else nn.attention.SDPBackend.FLASH_ATTENTION
    model = nn.Sequential(nn.Embedding(64, WIDTH), Block(device), Block(device), nn.Linear(WIDTH, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        tokens = torch.randint(0, 64, (4, 17))
        with nn.attention.sdpa_kernel([backend, nn.attention.SDPBackend.MATH]):
            logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
