"""A linear layer to which autocast is not applied: it computes in float32 instead of bfloat16.

Rebuilt after Lightning-AI/lightning-thunder#725: after a change of the dispatch, autocast reached only some of the
operations in its region. Results are more accurate, slower and larger than intended; only the dtype shows it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from batches import token_batch, token_loss
from command_line import parse_options
from decoder import HIDDEN, WIDTH, Decoder
from torch import Tensor, nn
from training_loop import train


class UncastLinear(nn.Linear):
    """A linear layer that autocast does not see."""

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return F.linear(input.to(self.weight.dtype), self.weight)


def main() -> None:
    options = parse_options(__doc__)
    model = Decoder()
    if options.faulty:
        down = UncastLinear(HIDDEN, WIDTH, bias=False)
        down.load_state_dict(model.layer(1).mlp.down.state_dict())
        model.layer(1).mlp.down = down
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss(step: int) -> Tensor:
        batch = token_batch(options.seed, step)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(batch.inputs)
        return token_loss(logits, batch.labels)

    train(options, model, optimizer, loss)


if __name__ == "__main__":
    main()
