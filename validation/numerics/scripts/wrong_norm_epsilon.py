"""One RMS norm with the default epsilon of its class instead of the configured one.

Rebuilt after huggingface/transformers#44585, "Fix missing rms_norm_eps in DeepseekV3 MLA layernorms": 1e-5 instead of
1e-6 in some norms.
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
        model.layer(1).mlp_norm.eps = 1e-5
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss(step: int) -> Tensor:
        batch = token_batch(options.seed, step)
        return token_loss(model(batch.inputs), batch.labels)

    train(options, model, optimizer, loss)


if __name__ == "__main__":
    main()
