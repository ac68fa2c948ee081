"""Gradients clipped by the norm of each rank's own shard: replicated weights of tensor parallelism drift apart.

Rebuilt after the BF16 optimizer of deepspeedai/DeepSpeed#1801, which clipped gradients with another norm on each rank
of a tensor-parallel group; layer norms of BLOOM-176B diverged between ranks (Jiang et al. 2025, arXiv:2506.14813). Run
with torchrun, two ranks.
"""

from __future__ import annotations

from functools import partial

import torch
from batches import token_batch, token_loss
from clipping import scale_gradients, squares
from collectives import process_group, sum_over_ranks
from command_line import parse_options
from tensor_parallel import ParallelNetwork
from torch import Tensor
from training_loop import train


def clip_gradients(model: ParallelNetwork, is_local: bool) -> None:
    """Clips by the norm of all gradients. `is_local`: by the norm of those on this rank."""
    sharded = model.sharded()
    names = {id(parameter) for parameter in sharded}
    replicated = [parameter for parameter in model.parameters() if id(parameter) not in names]
    shards = squares(sharded)
    total = squares(replicated) + (shards if is_local else sum_over_ranks(shards))
    scale_gradients(model.parameters(), total.sqrt())


def main() -> None:
    options = parse_options(__doc__)

    def compute_loss(step: int) -> Tensor:
        batch = token_batch(options.seed, step)
        return token_loss(model(batch.inputs), batch.labels)

    with process_group():
        model = ParallelNetwork()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        train(options, model, optimizer, compute_loss, partial(clip_gradients, model, is_local=options.faulty))


if __name__ == "__main__":
    main()
