"""A weight gradient that is summed over ranks in bfloat16, although gradients are to be reduced in float32.

Rebuilt after NVIDIA/Megatron-LM#6624, "emit the wgrad in main_grad's dtype so the reduce-scatter honours FP32": the
product that fell back from the fused kernel gave the dtype of the computation. Weights are float32, products have
bfloat16 inputs. Run with torchrun, two ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from batches import VOCABULARY, token_batch, token_loss
from collectives import average_gradients, process_group
from command_line import parse_options, print_loss, print_weights
from decoder import WIDTH, Decoder
from torch import Tensor, nn

MICRO_BATCHES = 4


class Product(torch.autograd.Function):
    """A linear layer with bfloat16 inputs, whose weight gradient is summed over ranks. `reduce_dtype`: of that sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, reduce_dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.reduce_dtype = reduce_dtype
        return (x.bfloat16() @ weight.bfloat16().mT).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        gradient = gradient.bfloat16()
        rows, columns = gradient.flatten(0, -2).to(ctx.reduce_dtype), x.flatten(0, -2).bfloat16().to(ctx.reduce_dtype)
        weight_gradient = rows.mT @ columns
        dist.all_reduce(weight_gradient)
        return (
            (gradient @ weight.bfloat16()).to(x.dtype),
            weight_gradient.to(weight.dtype) / dist.get_world_size(),
            None,
        )


class ReducedLinear(nn.Linear):
    """A linear layer that reduces its weight gradient itself."""

    reduce_dtype = torch.float32

    def forward(self, input: Tensor) -> Tensor:
        return Product.apply(input, self.weight, self.reduce_dtype)


def main() -> None:
    options = parse_options(__doc__)
    with process_group() as (rank, ranks):
        model = Decoder()
        output = ReducedLinear(WIDTH, VOCABULARY, bias=False)
        output.reduce_dtype = torch.bfloat16 if options.faulty else options.dtype
        model.output = output
        others = [parameter for parameter in model.parameters() if parameter is not output.weight]
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for step in range(options.steps):
            optimizer.zero_grad()
            batch = token_batch(options.seed, step, samples=2 * MICRO_BATCHES)
            inputs, labels = batch.inputs.chunk(ranks)[rank], batch.labels.chunk(ranks)[rank]
            step_loss = 0.0
            for micro_inputs, micro_labels in zip(inputs.chunk(MICRO_BATCHES), labels.chunk(MICRO_BATCHES)):
                loss = token_loss(model(micro_inputs), micro_labels) / MICRO_BATCHES
                loss.backward()
                step_loss += loss.item()
            average_gradients(others)
            optimizer.step()
            print_loss(step, step_loss)
        print_weights(model)


if __name__ == "__main__":
    main()
