"""Time that recording adds to a training step, next to torch's DebugMode with hashes of tensors.

`python -m benchmarks.numerics_record [--rounds 7] [--threads 1] [--level operations]`: a GPT of 3.7 million parameters,
in float32. Steps alternate between plain, DebugMode and the recorder, in one process; medians. The recorder also
records gradients, weights and optimizer state, which DebugMode leaves out, and writes its file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils._debug_mode import DebugMode

from trainyard.numerics.record.recorder import Level, Recorder
from trainyard.numerics.record_files import FORMAT, RecordWriter
from trainyard.numerics.tensor_record import RecordHeader, TensorRecord

_WIDTH, _LAYERS, _HEADS, _LENGTH, _SAMPLES, _WORDS = 256, 4, 4, 128, 8, 1000


class Seconds(NamedTuple):
    """Time of a step: on the clock, and of all threads on processors."""

    wall: float
    cpu: float


class Block(nn.Module):
    """A transformer block before its norms."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in self.qkv(self.attention_norm(x)).chunk(3, -1)
        )
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.mlp_norm(x))))


def training() -> Callable[[], None]:
    """A function that trains one step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(_WORDS, _WIDTH), *(Block() for _ in range(_LAYERS)), nn.Linear(_WIDTH, _WORDS))
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(_WORDS, (_SAMPLES, _LENGTH))

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()

    return step


@contextmanager
def debug_mode() -> Iterator[None]:
    """torch's own mode, with its default hash: the sum of absolute values in float64."""
    with DebugMode(), DebugMode.log_tensor_hashes():
        yield


@contextmanager
def recorder(level: Level) -> Iterator[None]:
    """Records to a temporary folder."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        header = RecordHeader(format=FORMAT, variant="plain", rank=0, ranks=1, level=level)
        writer = stack.enter_context(RecordWriter(folder, header))

        def write(records: Sequence[TensorRecord]) -> None:
            for record in records:
                writer.write(record)
            writer.flush()

        stack.enter_context(Recorder(write, range(10), level))
        yield


def time_step(step: Callable[[], None], context: AbstractContextManager[None]) -> Seconds:
    """Time of the second of two steps in a context."""
    with context:
        step()
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        return Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--level", choices=["operations", "modules", "steps"], default="operations")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    step = training()
    step()
    contexts: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "plain": nullcontext,
        "DebugMode": debug_mode,
        "recorder": lambda: recorder(options.level),
    }
    times: dict[str, list[Seconds]] = {name: [] for name in contexts}
    for _ in range(options.rounds):
        for name, context in contexts.items():
            times[name].append(time_step(step, context()))
    print(f"level {options.level}, {options.threads} threads, load {os.getloadavg()[0]:.1f}")
    for clock in Seconds._fields:
        plain, debug, record = (
            statistics.median(getattr(seconds, clock) for seconds in times[name]) * 1e3 for name in contexts
        )
        print(
            f"{clock}: plain {plain:.0f} ms, DebugMode +{debug - plain:.0f} ms, recorder +{record - plain:.0f} ms, "
            f"{(record - plain) / (debug - plain):.2f} of DebugMode's"
        )


if __name__ == "__main__":
    main()
