"""An optimizer that was built before FSDP replaced the parameters: it holds the old ones, and no weight is updated.

Rebuilt after huggingface/accelerate#2665 (the same as huggingface/accelerate#3256 and pytorch/pytorch#107843). Run
with torchrun, two ranks.
"""

from __future__ import annotations

import torch
from batches import token_batch, token_loss
from collectives import process_group
from command_line import parse_options
from decoder import Decoder
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from training_loop import train


def main() -> None:
    options = parse_options(__doc__)
    with process_group() as (rank, ranks):
        mesh = init_device_mesh("cpu", (ranks,))
        model = Decoder()
        early_optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = early_optimizer if options.faulty else torch.optim.AdamW(model.parameters(), lr=3e-3)

        def loss(step: int) -> Tensor:
            model.zero_grad()  # an optimizer with other parameters would not do it
            batch = token_batch(options.seed, step)
            return token_loss(model(batch.inputs.chunk(ranks)[rank]), batch.labels.chunk(ranks)[rank])

        train(options, model, optimizer, loss)


if __name__ == "__main__":
    main()
