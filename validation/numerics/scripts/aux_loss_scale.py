"""The gradient of a load-balancing loss that depends on the number of tensor-parallel ranks.

Rebuilt after NVIDIA/Megatron-LM#5047, "Fix MoE aux_loss / z_loss gradient scaling with TP > 1": the loss is multiplied
by the tokens of this rank, although all gradients are then divided by the tokens of all ranks that share the sequence.
Run with torchrun, two ranks, each with half of every sequence.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from batches import token_batch, token_loss
from collectives import process_group, sum_over_ranks
from command_line import parse_options, print_loss, print_weights
from routed_experts import MoeDecoder
from torch import Tensor, nn


class NoMixing(nn.Module):
    """A linear layer in place of attention, so that a rank needs no tokens of other ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def main() -> None:
    options = parse_options(__doc__)
    with process_group() as (rank, ranks):

        def scale(samples: int, positions: int) -> float:
            return samples * positions * (1 if options.faulty else ranks)

        model = MoeDecoder(scale, mix=NoMixing)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for step in range(options.steps):
            optimizer.zero_grad()
            batch = token_batch(options.seed, step)
            inputs, labels = batch.inputs.chunk(ranks, dim=1)[rank], batch.labels.chunk(ranks, dim=1)[rank]
            loss = token_loss(model(inputs), labels, reduction="sum")
            loss.backward()
            for parameter in model.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= batch.labels.numel()
            optimizer.step()
            print_loss(step, sum_over_ranks(loss) / batch.labels.numel())
        print_weights(model)


if __name__ == "__main__":
    main()
