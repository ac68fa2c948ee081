"""Attention dropout that stays active in evaluation mode.

Rebuilt after huggingface/transformers#33844: attention passes its dropout probability on without looking at
`self.training`. Each step evaluates the model on held-out tokens before it trains.
"""

from __future__ import annotations

import torch
from batches import token_batch, token_loss
from command_line import parse_options
from decoder import Decoder
from torch import Tensor
from training_loop import train

HELD_OUT_SEED = 977


def main() -> None:
    options = parse_options(__doc__)
    model = Decoder(dropout=0.1)
    for number in range(len(model.layers)):
        model.layer(number).attention.drops_in_eval = options.faulty
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def evaluate() -> float:
        held_out = token_batch(HELD_OUT_SEED, 0)
        model.eval()
        with torch.no_grad():
            loss = token_loss(model(held_out.inputs), held_out.labels)
        model.train()
        return loss.item()

    def loss(step: int) -> Tensor:
        print(f"evaluation before step {step}: {evaluate()!r}", flush=True)
        batch = token_batch(options.seed, step)
        return token_loss(model(batch.inputs), batch.labels)

    train(options, model, optimizer, loss)


if __name__ == "__main__":
    main()
