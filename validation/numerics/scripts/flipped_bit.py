"""One flipped bit in one element of a weight, a gradient or an activation, in step `STEP`.

Silent data corruption by defective cores: Dixit et al. 2021 (arXiv:2102.11245), Hochschild et al. 2021 ("Cores that
don't count"); in training: Ma et al. 2025 (arXiv:2502.12340). The flipped bit of the fraction is worth 2^-10 of the
element's binade.
"""

from __future__ import annotations

from typing import cast

import torch
from batches import token_batch, token_loss
from command_line import parse_options, print_loss, print_weights
from decoder import Decoder, FeedForward
from torch import Tensor

STEP = 1
WORTH = 10
ELEMENT = 37
INTEGERS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.bfloat16: torch.int16}
FRACTION_BITS = {torch.float64: 52, torch.float32: 23, torch.bfloat16: 7}


def flip_bit(values: Tensor) -> None:
    """Flips a bit of one element in place."""
    bits = values.detach().view(INTEGERS[values.dtype]).view(-1)
    bits[ELEMENT] ^= 1 << (FRACTION_BITS[values.dtype] - WORTH)


class CorruptedFeedForward(FeedForward):
    """Flips a bit of its output if `corrupted`."""

    corrupted = False

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        if self.corrupted:
            flip_bit(output)
        return output


def main() -> None:
    options = parse_options(__doc__, targets=("weight", "gradient", "activation"))
    model = Decoder()
    feed_forward = CorruptedFeedForward()
    feed_forward.load_state_dict(model.layer(1).mlp.state_dict())
    model.layer(1).mlp = feed_forward
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(options.steps):
        optimizer.zero_grad()
        corrupted = options.target if options.faulty and step == STEP else ""
        if corrupted == "weight":
            flip_bit(feed_forward.down.weight)
        feed_forward.corrupted = corrupted == "activation"
        batch = token_batch(options.seed, step)
        loss = token_loss(model(batch.inputs), batch.labels)
        loss.backward()
        if corrupted == "gradient":
            flip_bit(cast(Tensor, model.layer(0).attention.wq.weight.grad))
        optimizer.step()
        print_loss(step, loss)
    print_weights(model)


if __name__ == "__main__":
    main()
