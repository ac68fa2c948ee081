"""A micro-batch without any label: its loss is 0 / 0, and its gradient turns all weights into NaN.

Rebuilt after allenai/OLMo-core#657, "Fix NaN loss when all labels on a rank are label_ignore_index". The second
micro-batch of step `EMPTY_STEP` has no labels.
"""

from __future__ import annotations

import torch
from batches import IGNORED, masked_token_batch, token_loss
from command_line import parse_options, print_loss, print_weights
from decoder import Decoder
from torch import Tensor

EMPTY_STEP = 1
MICRO_BATCHES = 2


def main() -> None:
    options = parse_options(__doc__)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def masked_loss(logits: Tensor, labels: Tensor) -> Tensor:
        """The mean over the labels that are not ignored."""
        mask = labels != IGNORED
        count = mask.sum()
        losses = token_loss(logits, labels.clamp(min=0), reduction="none")
        return (losses * mask.flatten()).sum() / (count if options.faulty else count.clamp(min=1))

    for step in range(options.steps):
        optimizer.zero_grad()
        batch = masked_token_batch(options.seed, step)
        parts = list(zip(batch.inputs.chunk(MICRO_BATCHES), batch.labels.chunk(MICRO_BATCHES)))
        if step == EMPTY_STEP:
            inputs, labels = parts.pop()
            parts.append((inputs, torch.full_like(labels, IGNORED)))
        step_loss = 0.0
        for inputs, labels in parts:
            loss = masked_loss(model(inputs), labels) / MICRO_BATCHES
            loss.backward()
            step_loss += loss.item()
        optimizer.step()
        print_loss(step, step_loss)
    print_weights(model)


if __name__ == "__main__":
    main()
