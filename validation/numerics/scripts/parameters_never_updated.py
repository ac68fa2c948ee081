"""Blocks in a Python list: the model has them, `model.parameters()` does not, so the optimizer never updates them.

Rebuilt after pytorch/pytorch#59925, "Implicit module registration permits silent programming errors". Outputs of the
first step are right; the adapters keep their initial weights.
"""

from __future__ import annotations

import torch
from batches import token_batch, token_loss
from command_line import parse_options
from decoder import WIDTH, Decoder
from torch import Tensor, nn
from training_loop import train


class AdaptedDecoder(nn.Module):
    """A decoder whose last hidden states pass through residual adapters. `registered`: as an `nn.ModuleList`."""

    def __init__(self, registered: bool) -> None:
        super().__init__()
        self.decoder = Decoder()
        adapters = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
        self.adapters = nn.ModuleList(adapters) if registered else adapters

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.decoder.hidden_states(tokens)
        for adapter in self.adapters:
            x = x + adapter(x).tanh()
        return self.decoder.output(x)


def main() -> None:
    options = parse_options(__doc__)
    model = AdaptedDecoder(registered=not options.faulty)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss(step: int) -> Tensor:
        batch = token_batch(options.seed, step)
        return token_loss(model(batch.inputs), batch.labels)

    train(options, model, optimizer, loss)


if __name__ == "__main__":
    main()
