"""A column-parallel layer that does not all-reduce the gradient of its input.

Rebuilt after pytorch/torchtitan#1805, "TP gradient update is wrong during MoE backward", and pytorch/pytorch#157606:
each rank passes only the gradient of its own shard on to the layers below. Outputs of the first step are right. Run
with torchrun, two ranks.
"""

from __future__ import annotations

import torch
from batches import token_batch, token_loss
from collectives import process_group
from command_line import parse_options
from tensor_parallel import ParallelNetwork
from torch import Tensor
from training_loop import train


def main() -> None:
    options = parse_options(__doc__)
    with process_group():
        model = ParallelNetwork()
        model.layer(1).up.sums_input_gradient = not options.faulty
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

        def loss(step: int) -> Tensor:
            batch = token_batch(options.seed, step)
            return token_loss(model(batch.inputs), batch.labels)

        train(options, model, optimizer, loss)


if __name__ == "__main__":
    main()
