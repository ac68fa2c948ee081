"""A training with a fault in the kernel of an operation, or in a lowering of the compiler."""

import argparse

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.tanh(self.inner(self.norm(x))))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(16) for _ in range(3))
        self.gate = nn.SiLU()
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.gate(x))


def break_kernel() -> object:
    """Makes silu on the CPU wrong in float32, by one part in a thousand."""
    library = torch.library.Library("aten", "IMPL")

    def silu(x: torch.Tensor) -> torch.Tensor:
        wide = x.double()
        return (wide * torch.sigmoid(wide) * (1.001 if x.dtype == torch.float32 else 1)).to(x.dtype)

    library.impl("silu", silu, "CPU")
    return library


def break_lowering() -> None:
    """Makes compiled tanh wrong by one part in a thousand."""
    from torch._inductor import lowering

    tanh = lowering.lowerings[torch.ops.aten.tanh.default]

    def wrong(x: object) -> object:
        return lowering.lowerings[torch.ops.aten.mul.Tensor](tanh(x), 1.001)

    lowering.lowerings[torch.ops.aten.tanh.default] = wrong


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernel", action="store_true")
    parser.add_argument("--lowering", action="store_true")
    parser.add_argument("--compile", choices=["whole", "in-place", "blocks", "none"], default="none")
    options = parser.parse_args()
    torch.manual_seed(0)
    library = break_kernel() if options.kernel else None
    if options.lowering:
        break_lowering()
    network = Network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    model: nn.Module = network
    if options.compile == "whole":
        model = torch.compile(network)
    elif options.compile == "in-place":
        network.compile()
    elif options.compile == "blocks":
        for number, block in enumerate(network.blocks):
            network.blocks[number] = torch.compile(block)
    for _ in range(2):
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    del library


if __name__ == "__main__":
    main()
