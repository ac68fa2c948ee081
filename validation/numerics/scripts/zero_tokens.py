"""A batch without any label: the loss is 0 / 0, and its gradient turns all weights into NaN.

Rebuilt after allenai/OLMo-core#657, "Fix NaN loss when all labels on a rank are label_ignore_index". The batch of step
`EMPTY_STEP` has no labels.
"""

from __future__ import annotations

import torch
from batches import IGNORED, masked_token_batch, token_loss
from command_line import parse_options
from decoder import Decoder
from torch import Tensor
from training_loop import train

EMPTY_STEP = 1


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

    def loss(step: int) -> Tensor:
        inputs, labels = masked_token_batch(options.seed, step)
        if step == EMPTY_STEP:
            labels = torch.full_like(labels, IGNORED)
        return masked_loss(model(inputs), labels)

    train(options, model, optimizer, loss)


if __name__ == "__main__":
    main()
