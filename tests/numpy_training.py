"""A small training in numpy, recorded tensor by tensor, for tests of comparisons without torch.

A chain of residual layers x + silu(rms_norm(x) W) is trained with the squared error and gradient descent. Runs compute
in float64, float32 or bfloat16, with matrix products whole or in parts, with jitter in the last place, and with faults.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from trainyard.numerics.record_files import FORMAT, RecordWriter
from trainyard.numerics.tensor_record import (
    BUCKETS,
    NonFinite,
    RecordHeader,
    Shard,
    TensorKey,
    TensorRecord,
    sample_positions,
)

Values = npt.NDArray[Any]
Fault = Callable[[TensorKey, Values], Values | None]
"""(key of an operation's result or a gradient, its values) -> the faulty values; None for a missing gradient."""

EPSILON = 1e-5
_SIGNS = np.random.default_rng(0).choice([-1.0, 1.0], 1_000_003)
_LINES = {"aten.rms_norm": 11, "aten.mm": 12, "aten.mul": 13, "aten.silu": 14, "aten.add": 15}


def sketch(values: Values, offset: int = 0) -> npt.NDArray[np.float64]:
    """The sketch of a tensor's elements from position `offset` on, as recorders compute it."""
    at = offset + np.arange(values.size)
    signed = np.asarray(values, np.float64).ravel() * _SIGNS[at % len(_SIGNS)]
    return np.bincount(at % BUCKETS, signed, BUCKETS).astype(np.float64)


def summarised(record: TensorRecord, values: Values, offset: int = 0) -> TensorRecord:
    """The record with the numbers of `values`, the elements of a tensor from position `offset` on."""
    flat = np.asarray(values, np.float64).ravel()
    finite = np.where(np.isfinite(flat), flat, 0.0)
    counts = NonFinite(
        nan=int(np.isnan(flat).sum()), positive=int((flat == np.inf).sum()), negative=int((flat == -np.inf).sum())
    )
    return replace(
        record,
        shape=record.shape or values.shape,
        hash=hashlib.sha256(f"{record.dtype} {offset}".encode() + flat.tobytes()).hexdigest()[:16],
        norm=float(np.linalg.norm(finite)),
        maximum=float(np.abs(finite).max(initial=0.0)),
        mean=float(finite.mean()) if flat.size else 0.0,
        nonfinite=counts if len(finite) and not np.isfinite(flat).all() else None,
        sketch=sketch(finite, offset).tobytes(),
        sample=finite[sample_positions(flat.size)].tobytes(),
    )


@dataclass(frozen=True, kw_only=True)
class NumpyTraining:
    """`dtype`: float64, float32 or bfloat16, which is computed in float32 and rounded. `parts`: of the sums of matrix
    products. `jitter`: seed of the directions in which results move by up to 2 units in the last place, None for none.
    `scaled`: multiply before the activation. `prefix`: of the modules' paths. `fault`: changes results."""

    seed: int = 0
    layers: int = 3
    width: int = 24
    batch: int = 16
    steps: int = 2
    learning_rate: float = 0.1
    dtype: str = "float32"
    parts: int = 1
    jitter: int | None = None
    epsilon: float = EPSILON
    scaled: bool = True
    prefix: str = "layers."
    fault: Fault | None = None

    def records(self) -> list[tuple[TensorRecord, Values]]:
        """The records of a run, and the values that each summarises."""
        return _Run(self).train()

    def write(self, folder: Path, variant: str = "plain", **header: Any) -> Path:
        """Writes a run as the variant of a record."""
        described = RecordHeader(format=FORMAT, variant=variant, rank=0, ranks=1, level="operations")
        with RecordWriter(folder, replace(described, **header)) as writer:
            for record, values in self.records():
                writer.write(summarised(record, values))
        return folder

    def write_sharded(self, folder: Path, ranks: int, variant: str = "plain") -> Path:
        """Writes a run whose gradients and weights are divided over ranks by rows; activations are on all ranks."""
        records = self.records()
        for rank in range(ranks):
            header = RecordHeader(
                format=FORMAT, variant=variant, rank=rank, ranks=ranks, level="operations", layout=f"dp_shard={ranks}"
            )
            with RecordWriter(folder, header) as writer:
                for record, values in records:
                    writer.write(_shard(record, values, rank, ranks) if values.ndim else summarised(record, values))
        return folder

    def write_all(self, folder: Path, replicas: int = 4) -> Path:
        """Writes a plain run, its float64 reference and its jittered replicas."""
        self.write(folder)
        _replace(self, dtype="float64").write(folder, "float64")
        for replica in range(1, replicas + 1):
            _replace(self, jitter=1000 * self.seed + replica).write(folder, f"replica-{replica}")
        return folder


def _replace(training: NumpyTraining, **changes: Any) -> NumpyTraining:
    return dataclasses.replace(training, **changes)


def _shard(record: TensorRecord, values: Values, rank: int, ranks: int) -> TensorRecord:
    """The record of the rows that a rank holds."""
    if record.role not in ("gradient", "weight"):
        return summarised(record, values)
    rows = np.array_split(np.arange(len(values)), ranks)[rank]
    part = values[rows]
    shard = Shard(offset=(int(rows[0]), 0), shape=part.shape)
    return summarised(replace(record, shape=values.shape, shard=shard), part, int(rows[0]) * values.shape[1])


class _Run:
    """One run of a training."""

    def __init__(self, training: NumpyTraining) -> None:
        self.training = training
        self.type = np.float64 if training.dtype == "float64" else np.float32
        self.random = None if training.jitter is None else np.random.default_rng(training.jitter)
        self.recorded: list[tuple[TensorRecord, Values]] = []
        self.step = 0
        self.index = 0
        self.calls: Counter[tuple[object, ...]] = Counter()

    def train(self) -> list[tuple[TensorRecord, Values]]:
        t = self.training
        random = np.random.default_rng(t.seed)
        weights = [self.rounded(random.standard_normal((t.width, t.width)) / np.sqrt(t.width)) for _ in range(t.layers)]
        for self.step in range(t.steps):
            self.index = 0
            self.calls.clear()
            batch = random.standard_normal((2, t.batch, t.width)).astype(np.float32)
            x, target = self.rounded(batch[0]), self.rounded(batch[1])
            self.record(batch[0], "forward", "data", name="samples", dtype="float32")
            gradients = self.gradients(x, target, weights)
            for layer, gradient in enumerate(gradients):
                kept = self.changed(gradient, "optimizer", "gradient", self.module(layer), name="weight")
                if kept is None:
                    continue
                self.record(kept, "optimizer", "gradient", self.module(layer), name="weight")
                weights[layer] = self.rounded(weights[layer] - self.type(t.learning_rate) * kept)
            for layer, weight in enumerate(weights):
                self.record(weight, "optimizer", "weight", self.module(layer), name="weight")
        return self.recorded

    def gradients(self, x: Values, target: Values, weights: list[Values]) -> list[Values]:
        """One forward and one backward pass; the gradient of each weight."""
        t, saved = self.training, []
        for layer, weight in enumerate(weights):
            module = self.module(layer)
            self.record(x, "forward", "input", module)
            inverse = 1 / np.sqrt((x * x).mean(axis=1, keepdims=True) + self.type(t.epsilon))
            h = self.operation(x * inverse, "forward", module, "aten.rms_norm")
            z = self.operation(self.product(h, weight), "forward", module, "aten.mm")
            z = self.operation(z * self.type(0.5), "forward", module, "aten.mul") if t.scaled else z
            g = self.operation(z / (1 + np.exp(-z)), "forward", module, "aten.silu")
            saved.append((inverse, h, z))
            x = self.operation(x + g, "forward", module, "aten.add")
            self.record(x, "forward", "output", module)
        error = self.operation(x - target, "forward", "", "aten.sub")
        self.record((error * error).mean(), "forward", "scalar", name="loss")
        dx = self.operation(2 * error / self.type(error.size), "backward", "", "aten.mse_backward")
        gradients: list[Values] = []
        for layer in reversed(range(t.layers)):
            module, (inverse, h, z) = self.module(layer), saved[layer]
            sigmoid = 1 / (1 + np.exp(-z))
            dz = self.operation(dx * sigmoid * (1 + z * (1 - sigmoid)), "backward", module, "aten.silu_backward")
            dz = self.operation(dz * self.type(0.5), "backward", module, "aten.mul") if t.scaled else dz
            gradients.append(self.operation(self.product(h.T, dz), "backward", module, "aten.mm"))
            dh = self.operation(self.product(dz, weights[layer].T), "backward", module, "aten.mm")
            through = inverse * (dh - h * (dh * h).mean(axis=1, keepdims=True))
            dx = self.operation(dx + through, "backward", module, "aten.add")
        return gradients[::-1]

    def product(self, left: Values, right: Values) -> Values:
        """A matrix product whose sum is computed in parts."""
        bounds = np.array_split(np.arange(left.shape[1]), self.training.parts)
        return np.sum([left[:, part] @ right[part] for part in bounds], axis=0)

    def operation(self, values: Values, phase: str, module: str, operation: str) -> Values:
        """The result of an operation: rounded, jittered, changed by the fault, recorded."""
        values = self.rounded(values)
        if self.random is not None:
            unit = 2.0**-7 if self.training.dtype == "bfloat16" else 2.0**-23
            values = self.rounded(values * (1 + unit * self.random.uniform(-2, 2, values.shape).astype(self.type)))
        changed = self.changed(values, phase, "output", module, operation)
        assert changed is not None
        self.record(changed, phase, "output", module, operation)
        return changed

    def changed(self, values: Values, phase: str, role: str, module: str, operation: str = "", name: str = "") -> Any:
        """The values after the fault, in the run's dtype."""
        key = self.key(phase, role, module, operation, name)
        fault = self.training.fault
        changed = values if fault is None else fault(key, values)
        return None if changed is None else self.rounded(changed)

    def key(self, phase: str, role: str, module: str, operation: str, name: str) -> TensorKey:
        """The key of the next record."""
        call = self.calls[phase, role, module, operation, name]
        return TensorKey(self.step, phase, module, operation, role, name, call, 0)  # pyright: ignore[reportArgumentType]

    def record(
        self,
        values: Values,
        phase: str,
        role: str,
        module: str = "",
        operation: str = "",
        name: str = "",
        dtype: str = "",
    ) -> None:
        key = self.key(phase, role, module, operation, name)
        line = _LINES.get(operation) if phase == "forward" else None
        record = TensorRecord(
            **key._asdict(),
            index=self.index,
            dtype=dtype or ("float32" if self.training.dtype == "float64" else self.training.dtype),
            shape=values.shape,
            location=f"model.py:{line}" if line else "",
        )
        self.recorded.append((record, np.array(values)))
        self.index += 1
        self.calls[phase, role, module, operation, name] += 1

    def module(self, layer: int) -> str:
        return f"{self.training.prefix}{layer}"

    def rounded(self, values: Values) -> Values:
        """The values in the dtype of the run."""
        values = np.asarray(values, self.type)
        if self.training.dtype != "bfloat16":
            return values
        bits = values.astype(np.float32).view(np.uint32)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isfinite(values), bits.view(np.float32), values)
