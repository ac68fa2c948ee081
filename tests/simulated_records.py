"""Records of a simulated training, for tests of comparisons without torch.

The model is a chain of layers. The values of tensor t are random; a run differs from them by rounding errors that grow
along the chain. Each run is written by the code that a recorder writes with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from trainyard.numerics.record_files import FORMAT, RecordWriter
from trainyard.numerics.tensor_record import BUCKETS, RecordHeader, TensorRecord, sample_positions

F64 = npt.NDArray[np.float64]
Change = Callable[[TensorRecord, F64], F64 | None]
"""(record without numbers, values) -> the values of a faulty run; None for a tensor that it lacks."""

_SIGNS = np.random.default_rng(0).choice([-1.0, 1.0], 1_000_003)


def sketch(values: F64) -> F64:
    """The sketch of a tensor, as recorders compute it."""
    flat = values.ravel()
    padded = np.zeros(-(-max(1, flat.size) // BUCKETS) * BUCKETS)
    padded[: flat.size] = flat * np.resize(_SIGNS, flat.size)
    return padded.reshape(-1, BUCKETS).sum(axis=0)


def summarised(record: TensorRecord, values: F64) -> TensorRecord:
    """The record with the numbers of `values`."""
    flat = values.ravel()
    finite = np.where(np.isfinite(flat), flat, 0.0)
    return replace(
        record,
        shape=values.shape,
        hash=hashlib.sha256(record.dtype.encode() + flat.tobytes()).hexdigest()[:16],
        norm=float(np.linalg.norm(finite)),
        maximum=float(np.abs(finite).max(initial=0.0)),
        mean=float(finite.mean()) if flat.size else 0.0,
        sketch=sketch(finite).tobytes(),
        sample=finite[sample_positions(flat.size)].tobytes(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedModel:
    """`layers`: of the chain; each has an input, two operations and an output, a weight and its gradient. `elements`:
    shape of every activation. `rounding`: relative error of an operation. `dtype`: of all tensors."""

    layers: int = 4
    elements: tuple[int, ...] = (16, 32)
    steps: int = 2
    rounding: float = 2.0**-24
    dtype: str = "float32"
    seed: int = 0
    operations: Sequence[str] = field(default=("aten.mm", "aten.silu"))

    def tensors(self) -> list[TensorRecord]:
        """The records of a run in order, without numbers."""
        records: list[TensorRecord] = []

        def add(step: int, **fields: Any) -> None:
            index = sum(record.step == step for record in records)
            records.append(TensorRecord(index=index, step=step, dtype=self.dtype, shape=self.elements, **fields))

        for step in range(self.steps):
            add(step, phase="forward", role="data", name="tokens")
            for layer in range(self.layers):
                module = f"layers.{layer}"
                add(step, phase="forward", role="input", module=module)
                for line, operation in enumerate(self.operations):
                    location = f"model.py:{10 * layer + line}"
                    add(step, phase="forward", role="output", module=module, operation=operation, location=location)
                add(step, phase="forward", role="output", module=module)
            add(step, phase="forward", role="scalar", name="loss")
            for layer in reversed(range(self.layers)):
                add(step, phase="backward", role="output", module=f"layers.{layer}", operation="aten.mm_backward")
            for layer in range(self.layers):
                add(step, phase="optimizer", role="gradient", module=f"layers.{layer}", name="weight")
            for layer in range(self.layers):
                add(step, phase="optimizer", role="weight", module=f"layers.{layer}", name="weight")
        return records

    def write(self, folder: Path, variant: str, run: int, change: Change | None = None, **header: Any) -> Path:
        """Writes a run; `run`: the seed of its rounding errors, -1 for the reference without any."""
        rounding = np.random.default_rng([self.seed, 1000 + run])
        described = RecordHeader(format=FORMAT, variant=variant, rank=0, ranks=1, level="operations")
        with RecordWriter(folder, replace(described, **header)) as writer:
            for position, record in enumerate(self.tensors()):
                values = self.values(position, record)
                if run >= 0 and record.role != "data":
                    depth = 1 + record.index + 10 * record.step
                    scale = self.rounding * np.sqrt(depth)
                    values = values * (1 + scale * rounding.standard_normal(values.shape))
                changed = values if change is None else change(record, values)
                if changed is not None:
                    writer.write(summarised(record, changed))
        return folder

    def values(self, position: int, record: TensorRecord) -> F64:
        """The exact values of a tensor."""
        shape = () if record.role == "scalar" else self.elements
        return np.random.default_rng([self.seed, position]).standard_normal(prod(shape)).reshape(shape)

    def write_all(self, folder: Path, replicas: int = 4) -> Path:
        """Writes a plain run, its float64 reference and its replicas."""
        self.write(folder, "plain", 0)
        self.write(folder, "float64", -1)
        for replica in range(1, replicas + 1):
            self.write(folder, f"replica-{replica}", replica)
        return folder
