"""A training script of one's own, for `trainyard gate convergence`: predicts the next byte of Python's library.

    trainyard run --tag head-0 --profile 0 -- python examples/convergence/train.py --seed 0 --dropout 0.1

The same seed is the same data and weights. `--split 2` trains the same in two micro-batches: sums in another order, so
that the run differs by rounding alone.
"""

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F

import trainyard

WIDTH, LENGTH, BATCH = 96, 32, 64


def model(dropout: float) -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout, batch_first=True, norm_first=True)
    return torch.nn.ModuleDict(
        {
            "bytes": torch.nn.Embedding(256, WIDTH),
            "places": torch.nn.Embedding(LENGTH, WIDTH),
            "layers": torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            "head": torch.nn.Linear(WIDTH, 256),
        }
    )


def loss_of(parts: torch.nn.Module, tokens_BT: torch.Tensor) -> torch.Tensor:
    inputs, targets = tokens_BT[:, :-1], tokens_BT[:, 1:]
    mask = torch.nn.Transformer.generate_square_subsequent_mask(LENGTH)
    x_BTD = parts["bytes"](inputs) + parts["places"](torch.arange(LENGTH))
    logits_BTV = parts["head"](parts["layers"](x_BTD, mask=mask, is_causal=True))
    return F.cross_entropy(logits_BTV.flatten(0, 1), targets.flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--split", type=int, default=1)
    args = parser.parse_args()
    folder = Path(json.__file__).parent.parent
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("a*.py")))
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    torch.manual_seed(args.seed)
    order = torch.Generator().manual_seed(args.seed)
    parts = model(args.dropout)
    optimizer = torch.optim.AdamW(parts.parameters(), args.lr)
    falling = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, args.steps)
    loss = None
    for _ in range(args.steps):
        with trainyard.step(tokens=BATCH * LENGTH, loss=loss):
            begins = torch.randint(len(data) - LENGTH - 1, (BATCH,), generator=order)
            tokens_BT = torch.stack([data[at : at + LENGTH + 1] for at in begins])
            optimizer.zero_grad()
            loss = 0.0
            for part in tokens_BT.chunk(args.split):
                share = loss_of(parts, part) / args.split
                share.backward()
                loss += share.item()
            optimizer.step()
            falling.step()


main()
