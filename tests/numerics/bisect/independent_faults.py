"""A training with faults in modules, a backward pass, the update, the batches or the initial weights."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class WrongGradient(torch.autograd.Function):
    """The identity, whose gradient is 1 % too large."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient * 1.01


class Mixer(nn.Module):
    def __init__(self, width: int, fault: bool) -> None:
        super().__init__()
        self.inner, self.outer, self.fault = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), fault

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.inner(x))
        return self.outer(WrongGradient.apply(hidden) if self.fault else hidden)


class Experts(nn.Module):
    """Sends each token to the expert with the largest score, a choice that rounding can change."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        scores = self.router(tokens).softmax(-1)
        weight, chosen = scores.max(-1)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            result = result.index_add(0, rows, (expert(tokens[rows]) * weight[rows, None]).to(result.dtype))
        return result.view_as(x)


class Block(nn.Module):
    def __init__(self, width: int, eps: float, fault: bool) -> None:
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(width, eps=eps), Mixer(width, fault)
        self.experts, self.drop = Experts(width), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.mixer(self.norm(x)))
        return x + self.experts(x)


class Network(nn.Module):
    def __init__(self, faults: set[str]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(
            Block(16, 1e-2 if f"eps{at}" in faults else 1e-5, f"backward{at}" in faults) for at in range(4)
        )
        self.head = nn.Linear(16, 50, bias=False)
        self.scale = 1.01 if "head" in faults else 1.0

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--autocast", action="store_true")
    options = parser.parse_args()
    faults = set(options.fault)
    torch.manual_seed(1 if "weights" in faults else 0)
    network: nn.Module = Network(faults)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        network = DistributedDataParallel(network, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, weight_decay=0.2 if "decay" in faults else 0.1)
    torch.manual_seed(2 + int(os.environ.get("RANK", "0")))
    for step in range(2):
        tokens = torch.randint(0, 50, (4, 9))
        if "batch" in faults and step:
            tokens = tokens.flip(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=options.autocast):
            scores = network(tokens[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
