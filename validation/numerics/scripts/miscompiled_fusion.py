"""A compiled kernel whose last, incomplete vector has the elements of another one.

Rebuilt after pytorch/pytorch#196681, where Inductor's tail block on the CPU stored a full vector. Here, Inductor's
lowering of the exponential is patched: if the last dimension is not a multiple of the vector's length, its tail is
read from the start of the row. The feed-forward networks are compiled in both variants; their width is 40.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from batches import token_batch, token_loss
from command_line import parse_options
from decoder import Decoder
from torch import Tensor
from torch._inductor import config, lowering
from torch._inductor.ir import Pointwise
from torch.utils._sympy.functions import ModularIndexing
from training_loop import train

HIDDEN = 40
VECTOR = 16
"""Numbers in a vector register."""


def break_tail(lower: Callable[..., Any]) -> Callable[..., Any]:
    """The lowering of a pointwise operation on one tensor, which reads the tail of each row from its start."""

    def lower_broken(x: Any) -> Any:
        whole = lower(x)
        sizes = whole.get_size()
        full = sizes[-1] // VECTOR * VECTOR
        load = whole.make_loader()

        def read(index: Sequence[Any]) -> Any:
            return load([*index[:-1], ModularIndexing(index[-1], 1, full)])

        return Pointwise.create(device=x.get_device(), dtype=x.get_dtype(), inner_fn=read, ranges=list(sizes))

    return lower_broken


def main() -> None:
    options = parse_options(__doc__)
    config.force_disable_caches = True  # a cached kernel would not see the patch
    if options.faulty:
        operation = torch.ops.aten.exp.default
        lowering.lowerings[operation] = break_tail(lowering.lowerings[operation])
    model = Decoder(hidden=HIDDEN)
    for number in range(len(model.layers)):
        model.layer(number).mlp.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss(step: int) -> Tensor:
        batch = token_batch(options.seed, step)
        return token_loss(model(batch.inputs), batch.labels)

    train(options, model, optimizer, loss)


if __name__ == "__main__":
    main()
