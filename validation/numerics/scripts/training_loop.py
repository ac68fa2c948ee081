"""The training loop of most scripts: forward, backward and optimizer once per step."""

from __future__ import annotations

from collections.abc import Callable

from command_line import Options, print_loss, print_weights
from torch import Tensor, nn
from torch.optim import Optimizer


def train(
    options: Options,
    model: nn.Module,
    optimizer: Optimizer,
    compute_loss: Callable[[int], Tensor],
    clip_gradients: Callable[[], None] = lambda: None,
) -> None:
    """Trains for `options.steps` steps. `compute_loss`: step -> loss of its batch. `clip_gradients`: called before each
    step of the optimizer."""
    for step in range(options.steps):
        optimizer.zero_grad()
        loss = compute_loss(step)
        loss.backward()
        clip_gradients()
        optimizer.step()
        print_loss(step, loss)
    print_weights(model)
