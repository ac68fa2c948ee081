"""A residual network of feed-forward blocks with tensor parallelism (Shoeybi et al. 2019).

`up` is split by outputs, `down` by inputs. Norms, embedding and output are replicated. All ranks get the same tokens.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from batches import VOCABULARY
from collectives import SumInputGradients, SumOutputs
from torch import Tensor, nn

WIDTH, HIDDEN = 32, 64


class ColumnParallelLinear(nn.Module):
    """This rank's rows of a linear layer. `sums_input_gradient`: whether the gradient of the input is all-reduced."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.randn(HIDDEN, WIDTH) / WIDTH**0.5
        self.weight = nn.Parameter(whole.chunk(dist.get_world_size())[dist.get_rank()].clone())
        self.sums_input_gradient = True

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(SumInputGradients.apply(x) if self.sums_input_gradient else x, self.weight)


class RowParallelLinear(nn.Module):
    """This rank's columns of a linear layer; outputs are all-reduced."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.randn(WIDTH, HIDDEN) / HIDDEN**0.5
        self.weight = nn.Parameter(whole.chunk(dist.get_world_size(), dim=1)[dist.get_rank()].clone())

    def forward(self, x: Tensor) -> Tensor:
        return SumOutputs.apply(F.linear(x, self.weight))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = ColumnParallelLinear(), RowParallelLinear()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class ParallelNetwork(nn.Module):
    """Predicts the next token from each token."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))

    def layer(self, number: int) -> Block:
        return cast(Block, self.layers[number])

    def sharded(self) -> list[nn.Parameter]:
        """The parameters that are different on each rank."""
        blocks = [self.layer(number) for number in range(len(self.layers))]
        return [weight for block in blocks for weight in (block.up.weight, block.down.weight)]
