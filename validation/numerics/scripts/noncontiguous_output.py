"""An in-place operation that writes to a copy of a non-contiguous output, so that a weight is never updated.

Rebuilt after pytorch/pytorch#118115, "addcdiv computes incorrect results on MPS with noncontiguous tensors". The
encoder's weight is initialised as the transpose of the decoder's, and its update is lost.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from batches import image_batch
from command_line import parse_options
from torch import Tensor, nn
from training_loop import train

PIXELS, CODE = 432, 32
BETA1, BETA2, EPS = 0.9, 0.99, 1e-8


class Adam(torch.optim.Optimizer):
    """Adam (Kingma and Ba 2015) on its own kernel. `drops_strided`: the kernel does not write to strided outputs."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, drops_strided: bool) -> None:
        super().__init__(parameters, {"lr": lr})
        self.drops_strided = drops_strided

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self._update(parameter, group["lr"])

    def _update(self, parameter: Tensor, lr: float) -> None:
        state = self.state[parameter]
        if not state:
            state["step"], state["mean"], state["square"] = 0, torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        state["mean"].lerp_(parameter.grad, 1 - BETA1)
        state["square"].mul_(BETA2).addcmul_(parameter.grad, parameter.grad, value=1 - BETA2)
        mean, square = state["mean"] / (1 - BETA1 ** state["step"]), state["square"] / (1 - BETA2 ** state["step"])
        output = parameter.contiguous() if self.drops_strided else parameter  # a copy if the parameter is strided
        output.addcdiv_(mean, square.sqrt() + EPS, value=-lr)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(PIXELS, CODE), nn.Linear(CODE, PIXELS)
        self.encoder.weight = nn.Parameter(self.decoder.weight.detach().mT.clone())  # keeps the strides

    def forward(self, pixels: Tensor) -> Tensor:
        return self.decoder(self.encoder(pixels.flatten(1)).tanh())


def main() -> None:
    options = parse_options(__doc__)
    model = Autoencoder()
    optimizer = Adam(model.parameters(), lr=1e-3, drops_strided=options.faulty)

    def loss(step: int) -> Tensor:
        pixels = image_batch(options.seed, step).pixels
        return F.mse_loss(model(pixels), pixels.flatten(1))

    train(options, model, optimizer, loss)


if __name__ == "__main__":
    main()
