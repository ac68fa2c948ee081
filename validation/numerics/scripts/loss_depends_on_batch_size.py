"""The gradient of a load-balancing loss is smaller the more samples a micro-batch has.

Rebuilt after NVIDIA/Megatron-LM#5798, "Fix for sequence-level aux MoE loss being dependent on batch size": the loss is
multiplied by the tokens of one sample, not of the micro-batch, before all gradients are divided by the number of
tokens. The reported loss is right.
"""

from __future__ import annotations

import torch
from batches import token_batch, token_loss
from command_line import parse_options, print_loss, print_weights
from routed_experts import MoeDecoder

SAMPLES, MICRO_BATCHES = 8, 2


def main() -> None:
    options = parse_options(__doc__)

    def scale(samples: int, positions: int) -> float:
        return positions if options.faulty else samples * positions

    model = MoeDecoder(scale)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(options.steps):
        optimizer.zero_grad()
        batch = token_batch(options.seed, step, samples=SAMPLES)
        step_loss = 0.0
        for inputs, labels in zip(batch.inputs.chunk(MICRO_BATCHES), batch.labels.chunk(MICRO_BATCHES)):
            loss = token_loss(model(inputs), labels, reduction="sum")
            loss.backward()
            step_loss += loss.item() / batch.labels.numel()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= batch.labels.numel()
        optimizer.step()
        print_loss(step, step_loss)
    print_weights(model)


if __name__ == "__main__":
    main()
