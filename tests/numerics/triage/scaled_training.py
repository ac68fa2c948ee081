"""Trains in float16 with a scaler of the loss, with an overflow on request."""

from __future__ import annotations

import argparse
import sys

import torch
from torch import Tensor, nn

STEPS = 8


class Activation(nn.Module):
    """Passes its input on, multiplied by a factor that may overflow float16."""

    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.factor).relu()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--overflow", choices=["none", "start", "batch", "diverge", "forward"], default="none")
    parser.add_argument("--fused", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    activation = Activation()
    model = nn.Sequential(nn.Linear(16, 32), activation, nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=options.fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**25 if options.overflow == "start" else 2.0**10)
    for step in range(STEPS):
        x, y = torch.randn(8, 16), torch.randn(8, 4)
        weight = {"batch": 1e6 if step == 3 else 1.0, "diverge": 8.0**step}.get(options.overflow, 1.0)
        activation.factor = 1e6 if options.overflow == "forward" and step >= 4 else 1.0
        with torch.autocast("cpu", torch.float16):
            out = model(x)
        loss = (out.float() - y).square().mean()
        out.register_hook(lambda gradient, weight=weight: gradient * weight)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        sys.stdout.write(f"{step} {scaler.get_scale():.9g} {loss.item():.9g}\n")


if __name__ == "__main__":
    main()
