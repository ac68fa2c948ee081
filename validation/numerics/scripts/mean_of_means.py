"""Gradient accumulation that averages the means of micro-batches with different numbers of tokens.

Rebuilt after huggingface/transformers#34191, "Fix Gradient Accumulation issue": each micro-batch divided by its own
number of tokens instead of the number in the whole batch.
"""

from __future__ import annotations

import torch
from batches import IGNORED, masked_token_batch, token_loss
from command_line import parse_options, print_loss, print_weights
from decoder import Decoder
from torch import Tensor

MICRO_BATCHES = 4


def main() -> None:
    options = parse_options(__doc__)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def micro_batch_loss(inputs: Tensor, labels: Tensor, tokens_of_batch: Tensor) -> Tensor:
        total = token_loss(model(inputs), labels, reduction="sum")
        if options.faulty:
            return total / (labels != IGNORED).sum() / MICRO_BATCHES
        return total / tokens_of_batch

    for step in range(options.steps):
        optimizer.zero_grad()
        batch = masked_token_batch(options.seed, step)
        tokens = (batch.labels != IGNORED).sum()
        step_loss = 0.0
        for inputs, labels in zip(batch.inputs.chunk(MICRO_BATCHES), batch.labels.chunk(MICRO_BATCHES)):
            loss = micro_batch_loss(inputs, labels, tokens)
            loss.backward()
            step_loss += loss.item()
        optimizer.step()
        print_loss(step, step_loss)
    print_weights(model)


if __name__ == "__main__":
    main()
