"""The loss of multi-token prediction is summed over micro-batches, while the main loss is averaged.

Rebuilt after NVIDIA/Megatron-LM#1532, "mtp loss in multi-token prediction not averaged causing gradient explosion".
"""

from __future__ import annotations

import torch
from batches import VOCABULARY, token_batch, token_loss
from command_line import parse_options, print_loss, print_weights
from decoder import WIDTH, Decoder
from torch import Tensor, nn

MICRO_BATCHES = 4
WEIGHT = 0.3
"""Weight of the loss of the second next token."""


class TwoTokenDecoder(nn.Module):
    """A decoder with a head for the next token and one, `mtp_head`, for the token after it."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = Decoder()
        self.mtp_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.decoder.hidden_states(tokens)
        return self.decoder.output(x), self.mtp_head(x)


def main() -> None:
    options = parse_options(__doc__)
    model = TwoTokenDecoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def micro_batch_loss(inputs: Tensor, labels: Tensor) -> Tensor:
        next_logits, later_logits = model(inputs)
        main_loss = token_loss(next_logits, labels) / MICRO_BATCHES
        mtp_loss = WEIGHT * token_loss(later_logits[:, :-1], labels[:, 1:])
        return main_loss + (mtp_loss if options.faulty else mtp_loss / MICRO_BATCHES)

    for step in range(options.steps):
        optimizer.zero_grad()
        batch = token_batch(options.seed, step)
        step_loss = 0.0
        for inputs, labels in zip(batch.inputs.chunk(MICRO_BATCHES), batch.labels.chunk(MICRO_BATCHES)):
            loss = micro_batch_loss(inputs, labels)
            loss.backward()
            step_loss += loss.item()
        optimizer.step()
        print_loss(step, step_loss)
    print_weights(model)


if __name__ == "__main__":
    main()
