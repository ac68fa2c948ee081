"""Parameters that are replaced after DDP registered its hooks on them: gradients are no longer averaged.

Rebuilt after pytorch/pytorch#104336, "DDP: moving model to CPU and back to GPU breaks gradient synchronization". Here
the move is a conversion to float64 and back that replaces parameters, which has the same effect without a GPU. Run
with torchrun, two ranks.
"""

from __future__ import annotations

import torch
from batches import token_batch, token_loss
from collectives import process_group
from command_line import parse_options
from decoder import Decoder
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from training_loop import train


def main() -> None:
    options = parse_options(__doc__)
    with process_group() as (rank, ranks):
        model = DistributedDataParallel(Decoder())
        if options.faulty:
            torch.__future__.set_overwrite_module_params_on_conversion(True)
            model.double()
            model.to(options.dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

        def loss(step: int) -> Tensor:
            batch = token_batch(options.seed, step)
            return token_loss(model(batch.inputs.chunk(ranks)[rank]), batch.labels.chunk(ranks)[rank])

        train(options, model, optimizer, loss)


if __name__ == "__main__":
    main()
