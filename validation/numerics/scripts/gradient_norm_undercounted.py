"""A gradient norm that omits the experts of all ranks but the first.

Rebuilt after NVIDIA/Megatron-LM#5916, "Fix gradient-norm undercounting when using EP and TP": expert weights, of which
each rank has others, are counted as if they were replicated over the tensor-parallel ranks, so that gradients are
clipped less than they should be. Run with torchrun, two ranks.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from batches import VOCABULARY, token_batch, token_loss
from clipping import scale_gradients, squares
from collectives import SumInputGradients, SumOutputs, process_group, sum_over_ranks
from command_line import parse_options
from torch import Tensor, nn
from training_loop import train

WIDTH, EXPERTS_PER_RANK = 32, 2


class LocalExperts(nn.Module):
    """This rank's experts; all ranks have the same tokens, and outputs are summed over ranks."""

    def __init__(self) -> None:
        super().__init__()
        count = dist.get_world_size() * EXPERTS_PER_RANK
        self.router = nn.Linear(WIDTH, count, bias=False)
        every = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)) for _ in range(count)]
        self.first = dist.get_rank() * EXPERTS_PER_RANK
        self.experts = nn.ModuleList(every[self.first : self.first + EXPERTS_PER_RANK])

    def forward(self, x: Tensor) -> Tensor:
        weights = SumInputGradients.apply(self.router(x).softmax(-1))
        local = SumInputGradients.apply(x)
        outputs = [
            weights[..., self.first + number, None] * expert(local) for number, expert in enumerate(self.experts)
        ]
        return SumOutputs.apply(torch.stack(outputs).sum(0))


class ExpertNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.moe = nn.ModuleList(LocalExperts() for _ in range(2))
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for norm, moe in zip(self.norms, self.moe):
            x = x + moe(norm(x))
        return self.output(x)


def clip_gradients(model: ExpertNetwork, counts_first_rank_only: bool) -> None:
    """Clips by the norm of all gradients. `counts_first_rank_only`: without the experts of other ranks."""
    experts = [parameter for name, parameter in model.named_parameters() if ".experts." in name]
    names = {id(parameter) for parameter in experts}
    dense = [parameter for parameter in model.parameters() if id(parameter) not in names]
    of_experts = squares(experts)
    if counts_first_rank_only and dist.get_rank():
        of_experts = torch.zeros_like(of_experts)
    scale_gradients(model.parameters(), (squares(dense) + sum_over_ranks(of_experts)).sqrt())


def main() -> None:
    options = parse_options(__doc__)

    def compute_loss(step: int) -> Tensor:
        batch = token_batch(options.seed, step)
        return token_loss(model(batch.inputs), batch.labels)

    with process_group():
        model = ExpertNetwork()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        clip = partial(clip_gradients, model, counts_first_rank_only=options.faulty)
        train(options, model, optimizer, compute_loss, clip)


if __name__ == "__main__":
    main()
