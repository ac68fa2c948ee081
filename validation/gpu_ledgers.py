"""Forward passes in real GPU traces next to their predictions, account by account: `python -m validation.gpu_ledgers`.

The public traces of a Transformer of known sizes are of inference: the marked step is one forward pass through the 24
layers of Qwen1.5 0.5B, without its head, of 16 sequences of 559 tokens in bfloat16, in eager PyTorch. The predictions
have the constants of sharded data parallelism; nothing was fitted to the traces. Needs the public data next to the
checkout.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from trainyard import machine
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.inputs import cases, constant_sets, hardware
from trainyard.predict.inputs.cases import Cases
from trainyard.predict.time import layer
from trainyard.recipe import Recipe
from trainyard.report.render.terminal import print_table
from trainyard.report.view.view import Column, Table
from trainyard.trace.measure import measure_files

TRACES = Path(__file__).parents[2] / "shared" / "data" / "traces"
MACHINES = {"h100_qwen_0.5b.json.gz": "h100", "mi300_qwen_0.5b.json.gz": "mi300x"}
"""Trace -> the machine it was recorded on."""
_QWEN = Model(layers=24, hidden_size=1024, ffn_hidden_size=2816, heads=16, kv_heads=16, head_dim=64, vocab=151936)
_SEQUENCES, _SEQ_LEN = 16, 559
_ACCOUNTS = {
    "matmul": ("compute/matmul",),
    "attention": ("compute/attention",),
    "elementwise": ("compute/elementwise", "compute/reduction", "compute/softmax"),
}
"""Account of the prediction -> accounts of the trace."""


class Compared(NamedTuple):
    """Milliseconds of an account in a forward pass."""

    machine: str
    account: str
    predicted_ms: float
    measured_ms: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_ms / self.measured_ms - 1


def compare() -> Iterator[Compared]:
    """Each account of each trace."""
    for name, machine_name in MACHINES.items():
        device = machine.load(machine_name)
        tuned = constant_sets.choose(device, "fsdp-23").values()  # eager, as the traces
        forward, _ = layer.layer(_case(), hardware.of_machine(device, "bfloat16"), tuned)
        measured = measure_files([TRACES / name], engine="serial").comparable.mean.by_account()
        measured_ms = {str(account): time_ns / 1e6 for account, time_ns in measured.items()}
        for account, labels in _ACCOUNTS.items():
            predicted_ms = 1e3 * _QWEN.layers * float(np.ravel(getattr(forward, account))[0])
            yield Compared(machine_name, account, predicted_ms, sum(measured_ms.get(label, 0.0) for label in labels))


def _case() -> Cases:
    """The forward pass as a micro-batch of a job in another framework than our own."""
    recipe = Recipe(
        seq_len=_SEQ_LEN, tokens_per_step=_SEQUENCES * _SEQ_LEN, micro_batch_size=_SEQUENCES, dtype="bfloat16"
    )
    job = Job(name="qwen1.5-0.5b", model=_QWEN, layout=Layout(), recipe=recipe)
    return replace(cases.of_jobs([job]), native=cases.column(0))


def table(compared: Sequence[Compared]) -> Table:
    """A row for each account of each trace."""
    columns = (
        Column(title="machine"), Column(title="account"), Column(title="predicted, ms", digits=1),
        Column(title="measured, ms", digits=1), Column(title="error, %", digits=0),
    )  # fmt: skip
    lines = [(each.machine, each.account, each.predicted_ms, each.measured_ms, 100 * each.error) for each in compared]
    return Table(title="Forward pass of Qwen1.5 0.5B", notes=(), columns=columns, rows=tuple(lines))


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print_table(table(list(compare())), Console(width=100))


if __name__ == "__main__":
    main()
