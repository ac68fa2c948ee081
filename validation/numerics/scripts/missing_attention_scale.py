"""Attention of one layer without the factor 1 / sqrt(head dimension).

Rebuilt after mlc-ai/mlc-llm#3426: the fallback path of attention was called with a scale of 1.
"""

from __future__ import annotations

import torch
from batches import token_batch, token_loss
from command_line import parse_options
from decoder import Decoder
from torch import Tensor
from training_loop import train


def main() -> None:
    options = parse_options(__doc__)
    model = Decoder()
    if options.faulty:
        model.layer(1).attention.scale = 1.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss(step: int) -> Tensor:
        batch = token_batch(options.seed, step)
        return token_loss(model(batch.inputs), batch.labels)

    train(options, model, optimizer, loss)


if __name__ == "__main__":
    main()
