"""Gradients that are added to weights, because the all-gather of the weights uses the gradient buffer.

Rebuilt after NVIDIA/Megatron-LM#4609, "Fix gradient corruption with layerwise param all-gather overlap": each rank
updates its half of the weights and receives the other half in the gradient buffer, which is not set to zero after the
weights were copied from it. The first step is right. Run with torchrun, two ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from batches import token_batch, token_loss
from collectives import process_group
from command_line import parse_options, print_loss, print_weights
from decoder import Decoder
from torch import Tensor, nn


class ShardedAdamW:
    """AdamW on this rank's half of all weights. Gradients accumulate in one buffer.

    `clears`: whether the buffer is set to zero after it received the weights.
    """

    def __init__(self, model: nn.Module, clears: bool) -> None:
        self.parameters, self.clears = list(model.parameters()), clears
        ranks, size = dist.get_world_size(), sum(parameter.numel() for parameter in self.parameters)
        self.buffer = torch.zeros(-(-size // ranks) * ranks)
        for parameter, view in zip(self.parameters, self._views()):
            parameter.grad = view
        self.half = nn.Parameter(self._flat_weights().chunk(ranks)[dist.get_rank()].clone())
        self.adamw = torch.optim.AdamW([self.half], lr=3e-3)

    def step(self) -> None:
        dist.all_reduce(self.buffer)
        self.buffer /= dist.get_world_size()
        self.half.grad = self.buffer.chunk(dist.get_world_size())[dist.get_rank()].clone()
        self.adamw.step()
        dist.all_gather_into_tensor(self.buffer, self.half.detach())
        with torch.no_grad():
            for parameter, view in zip(self.parameters, self._views()):
                parameter.copy_(view)
        if self.clears:
            self.buffer.zero_()

    def _flat_weights(self) -> Tensor:
        flat = torch.cat([parameter.detach().flatten() for parameter in self.parameters])
        return torch.nn.functional.pad(flat, (0, self.buffer.numel() - flat.numel()))

    def _views(self) -> list[Tensor]:
        """The part of the buffer of each parameter."""
        parts = self.buffer.split([*(p.numel() for p in self.parameters), self.buffer.numel() - self._size()])
        return [part.view_as(parameter) for part, parameter in zip(parts, self.parameters)]

    def _size(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters)


def main() -> None:
    options = parse_options(__doc__)
    with process_group() as (rank, ranks):
        model = Decoder()
        optimizer = ShardedAdamW(model, clears=not options.faulty)
        for step in range(options.steps):
            batch = token_batch(options.seed, step)
            loss = token_loss(model(batch.inputs.chunk(ranks)[rank]), batch.labels.chunk(ranks)[rank])
            loss.backward()
            optimizer.step()
            print_loss(step, loss)
        print_weights(model)


if __name__ == "__main__":
    main()
