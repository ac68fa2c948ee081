"""Peak memory of recording and comparing a deep decoder: `python -m benchmarks.numerics_memory [--layers 100]`.

A decoder of 100 small layers is trained for 3 steps on the CPU: alone; recorded as B, with another epsilon in a norm of
its middle layer; recorded as A with a float64 reference and 4 replicas; and recorded for more steps. Then A and B are
compared. Each is a process of its own, whose peak resident memory the kernel reports; for a recording it is the
largest of all its processes.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.process import once

_STEPS, _MORE_STEPS, _REPLICAS = 3, 9, 4
_DIFFERENT = 1
"""Exit code of a comparison that finds the other epsilon."""
_WIDTH, _HEADS, _LENGTH, _SAMPLES, _WORDS = 32, 4, 16, 4, 101
_TRAIN, _TRAINYARD = (sys.executable, "-m", "benchmarks.numerics_memory"), (sys.executable, "-m", "trainyard.cli.main")


def train(layers: int, steps: int, epsilon: float) -> None:
    """Trains a decoder with norms before attention and a gated MLP. `epsilon`: of a norm of the middle layer."""
    import torch
    from torch import Tensor, nn
    from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm, self.mlp_norm = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
            self.q, self.k, self.v, self.out = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))
            self.gate, self.up, self.down = (
                nn.Linear(_WIDTH, 2 * _WIDTH),
                nn.Linear(_WIDTH, 2 * _WIDTH),
                nn.Linear(2 * _WIDTH, _WIDTH),
            )

        def forward(self, x: Tensor) -> Tensor:
            normed = self.attention_norm(x)
            q, k, v = (
                project(normed).unflatten(-1, (_HEADS, -1)).transpose(1, 2) for project in (self.q, self.k, self.v)
            )
            x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            normed = self.mlp_norm(x)
            return x + self.down(silu(self.gate(normed)) * self.up(normed))

    torch.manual_seed(0)
    blocks = [Layer() for _ in range(layers)]
    blocks[layers // 2].mlp_norm.eps = epsilon
    model = nn.Sequential(nn.Embedding(_WORDS, _WIDTH), *blocks, nn.Linear(_WIDTH, _WORDS))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        tokens = torch.randint(_WORDS, (_SAMPLES, _LENGTH + 1))
        cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


def report(name: str, command: Sequence[str], detail: str = "", exit_code: int = 0) -> None:
    """Runs a command and prints its peak memory and CPU time."""
    cost = once(command, exit_code=exit_code)
    print(f"{name:<44} {cost.peak_bytes / 1e6:>7,.0f} MB {cost.cpu_s:>7.1f} CPU s  {detail}", flush=True)


def count_records(path: Path) -> str:
    """The number of records in the file of a rank."""
    with gzip.open(path) as lines:
        return f"{sum(1 for _ in lines) - 1:,} records, {path.stat().st_size / 1e6:.0f} MB"


def measure(layers: int, folder: Path) -> None:
    """Prints a line for each measurement. This process stays small: a child's peak starts at its own."""
    training = [*_TRAIN, "--layers", str(layers)]
    record = [*_TRAINYARD, "numerics", "record", "--steps"]
    a, b, longer = folder / "a", folder / "b", folder / "longer"
    trained = ["--train", str(_STEPS)]
    report("training", [*training, *trained])
    command = [*record, f"0-{_STEPS - 1}", "--replicas", "0", "--out", str(b), "--", *training, *trained]
    report("recording of the plain run", [*command, "--epsilon", "1e-2"])
    trained_longer = ["--train", str(_MORE_STEPS)]
    command = [*record, f"0-{_MORE_STEPS - 1}", "--replicas", "0", "--out", str(longer), "--", *training]
    report(f"training of {_MORE_STEPS} steps", [*training, *trained_longer])
    report(f"recording of the plain run, {_MORE_STEPS} steps", [*command, *trained_longer])
    command = [*record, f"0-{_STEPS - 1}", "--replicas", str(_REPLICAS), "--out", str(a), "--", *training, *trained]
    report("recording with float64 and 4 replicas", command)
    sizes = count_records(a / "plain" / "rank0.jsonl.gz")
    command = [*_TRAINYARD, "numerics", "compare", "--json", str(a), str(b)]
    report("numerics compare", command, f"each run {sizes}", exit_code=_DIFFERENT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--train", type=int, metavar="STEPS", help="only train, which the other processes do")
    parser.add_argument("--epsilon", type=float, default=1e-5)
    options = parser.parse_args()
    if options.train:
        train(options.layers, options.train, options.epsilon)
        return
    print(f"{options.layers} layers, {_STEPS} steps, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        measure(options.layers, Path(folder))


if __name__ == "__main__":
    main()
