"""Rotary embeddings with positions and angles in bfloat16, which has 8 bits for positions up to 511.

Rebuilt after huggingface/transformers#29285, "RoPE loses precision for Llama / Gemma". The model is bfloat16 in both
variants; good angles are computed in float32.
"""

from __future__ import annotations

import torch
from batches import token_batch, token_loss
from command_line import parse_options
from decoder import Decoder, Rotary
from torch import Tensor
from training_loop import train

LENGTH = 512


def main() -> None:
    options = parse_options(__doc__, dtype="bfloat16")
    model = Decoder()
    if options.faulty:
        for number in range(len(model.layers)):
            model.layer(number).attention.rotary = Rotary(angle_dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss(step: int) -> Tensor:
        batch = token_batch(options.seed, step, samples=1, length=LENGTH)
        return token_loss(model(batch.inputs), batch.labels)

    train(options, model, optimizer, loss)


if __name__ == "__main__":
    main()
