"""Experts on two ranks whose all-to-all has another layout on each rank.

Rebuilt after deepspeedai/DeepSpeed#5794: without dropped tokens, each rank computes the capacity of the experts from
its own tokens. In DeepSpeed, different sizes make the collective hang; here the buffer has a fixed size, and tokens
arrive at the wrong expert. Run with torchrun, two ranks with one expert each.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from batches import VOCABULARY, token_batch, token_loss
from collectives import AllToAll, average_gradients, process_group
from command_line import parse_options, print_loss, print_weights
from torch import Tensor, nn

WIDTH, EXPERTS_PER_RANK = 32, 2


class DistributedExperts(nn.Module):
    """Experts on all ranks, the best for each token. `agrees`: whether ranks agree on the capacity of an expert."""

    def __init__(self, agrees: bool) -> None:
        super().__init__()
        self.ranks, self.agrees = dist.get_world_size(), agrees
        count = self.ranks * EXPERTS_PER_RANK
        self.router = nn.Linear(WIDTH, count, bias=False)
        every = [nn.Linear(WIDTH, WIDTH) for _ in range(count)]
        first = dist.get_rank() * EXPERTS_PER_RANK
        self.experts = nn.ModuleList(every[first : first + EXPERTS_PER_RANK])

    def forward(self, tokens: Tensor) -> Tensor:
        """[token, width] -> [token, width]."""
        probability, expert = self.router(tokens).softmax(-1).max(-1)
        chosen = F.one_hot(expert, self.ranks * EXPERTS_PER_RANK)
        row = (chosen.cumsum(0) * chosen).sum(-1) - 1  # of a token among those of its expert
        capacity = chosen.sum(0).max()
        if self.agrees:
            dist.all_reduce(capacity, op=dist.ReduceOp.MAX)
        block = EXPERTS_PER_RANK * len(tokens)  # rows for a rank: enough for any capacity
        target = expert // EXPERTS_PER_RANK * block + expert % EXPERTS_PER_RANK * capacity + row
        sent = tokens.new_zeros(self.ranks * block, WIDTH).index_copy(0, target, tokens)
        received = AllToAll.apply(sent).unflatten(0, (self.ranks, block))
        outputs = received.new_zeros(received.shape)
        for number, module in enumerate(self.experts):
            rows = slice(number * int(capacity), (number + 1) * int(capacity))
            outputs[:, rows] = module(received[:, rows]).tanh()
        return AllToAll.apply(outputs.flatten(0, 1))[target] * probability[:, None]


class MoeNetwork(nn.Module):
    def __init__(self, agrees: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.moe = nn.ModuleList(DistributedExperts(agrees) for _ in range(2))
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).flatten(0, 1)
        for norm, moe in zip(self.norms, self.moe):
            x = x + moe(norm(x))
        return self.output(x).unflatten(0, tokens.shape)


def main() -> None:
    options = parse_options(__doc__)
    with process_group() as (rank, ranks):
        model = MoeNetwork(agrees=not options.faulty)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        replicated = [parameter for name, parameter in model.named_parameters() if ".experts." not in name]
        for step in range(options.steps):
            optimizer.zero_grad()
            batch = token_batch(options.seed, step, samples=8)
            loss = token_loss(model(batch.inputs.chunk(ranks)[rank]), batch.labels.chunk(ranks)[rank])
            loss.backward()
            average_gradients(replicated)
            optimizer.step()
            print_loss(step, loss)
        print_weights(model)


if __name__ == "__main__":
    main()
