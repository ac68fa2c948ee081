"""Every way to split a model over so many devices, as cases: whole divisors only, and none left out.

Left out is what cannot be better by this model: tensor parallelism without sequence parallelism takes as long and more
memory, as does an ungathered loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product as combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard import words
from trainyard.job import Job, Layout, Model, Recipe
from trainyard.predict import cases
from trainyard.predict.cases import REMATS, Cases

INTERLEAVED = 8
"""Most pipeline stages that a rank may have."""


class Wanted(NamedTuple):
    """What is to be trained on how many devices: `samples` of `seq_len` tokens a step. `fixed`: axes that are given."""

    model: Model
    devices: int
    per_node: int
    samples: int
    seq_len: int
    dtype: str = "bfloat16"
    fixed: dict[str, int] = {}


class Keeps(NamedTuple):
    """Bytes of a weight, of its gradient, and of its optimizer's state; `own`: by our own runner."""

    weight: int
    gradient: int
    state: int
    own: bool = False


class Space(NamedTuple):
    """The columns of a case that differ, by name."""

    columns: dict[str, npt.NDArray[np.int64]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def keep(self, mask: npt.NDArray[np.bool_]) -> Space:
        return Space({name: values[mask] for name, values in self.columns.items()})

    def row(self, place: int) -> dict[str, int]:
        return {name: int(values[place]) for name, values in self.columns.items()}


AXES = (*words.AXES, "zero", "interleave", "microbatch", "remat", "offload")


def divisors(number: int) -> list[int]:
    small = [one for one in range(1, int(number**0.5) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})


def _allowed(wanted: Wanted, axis: str, values: list[int]) -> list[int]:
    given = wanted.fixed.get(axis)
    return values if given is None else [value for value in values if value == given]


def _splits(wanted: Wanted) -> Iterator[tuple[int, int, int, int, int, int]]:
    """The axes, in the order of `words.AXES`."""
    model = wanted.model
    tps = _allowed(wanted, "tp", [one for one in divisors(model.heads) if model.kv_heads % one == 0 or model.kv_rank])
    pps = _allowed(wanted, "pp", [one for one in range(1, model.layers + 1) if wanted.devices % one == 0])
    eps = _allowed(wanted, "ep", divisors(model.experts) if model.experts else [1])
    for tp, pp in combinations(tps, pps):
        if wanted.devices % (tp * pp):
            continue
        rest = wanted.devices // (tp * pp)
        for cp in _allowed(wanted, "cp", [one for one in divisors(rest) if wanted.seq_len % (2 * one * tp) == 0]):
            dp = rest // cp
            if wanted.samples % dp:
                continue
            shards = [
                one for one in divisors(dp) if one in (1, dp) or one == wanted.per_node // min(tp * cp, wanted.per_node)
            ]
            for shard, ep in combinations(_allowed(wanted, "dp_shard", shards), eps):
                if (dp * cp * tp) % ep == 0:
                    yield dp // shard, shard, tp, cp, pp, ep


def _interleaves(wanted: Wanted, pp: int, accumulate: int) -> list[int]:
    """Stages a rank may have: as many layers each, the embedding and the head counted as one each or not at all, and
    micro-batches that fill them (Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2)."""
    if pp == 1 or accumulate % pp:
        return [1]
    layers = wanted.model.layers
    more = [one for one in range(2, INTERLEAVED + 1) if 0 in (layers % (pp * one), (layers + 2) % (pp * one))]
    return [1, *more]


def space(wanted: Wanted) -> Space:
    """Empty where no layout divides devices, heads, layers and batch."""
    found: list[tuple[int, ...]] = []
    remats = _allowed(wanted, "remat", list(range(len(REMATS))))
    for split in _splits(wanted):
        replicate, shard, _, cp, pp, _ = split
        each = wanted.samples // (replicate * shard)
        zeros = [3] if shard * cp == 1 else [1, 2, 3] if pp == 1 else [1, 2]
        for microbatch in _allowed(wanted, "microbatch", divisors(each)):
            interleaves = _allowed(wanted, "interleave", _interleaves(wanted, pp, each // microbatch))
            for rest in combinations(_allowed(wanted, "zero", zeros), interleaves):
                for remat in remats:
                    found.append((*split, *rest, microbatch, remat, 0))
    table = np.array(found, np.int64).reshape(-1, len(AXES))
    return Space({axis: table[:, place] for place, axis in enumerate(AXES)})


def as_cases(wanted: Wanted, some: Space, keeps: Keeps) -> Cases:
    low = words.DTYPES[wanted.dtype] < 2
    fixed: dict[str, Any] = cases.of_model(wanted.model) | {
        "seq_len": wanted.seq_len, "samples": wanted.samples, "remat_every": 1, "sequence_parallel": 1,
        "loss_parallel": 1, "flash": 1, "low_precision": low, "width_bytes": max(2, words.DTYPES[wanted.dtype]),
        "weight_bytes": keeps.weight, "gradient_bytes": keeps.gradient, "state_bytes": keeps.state,
        "reduce_bytes": keeps.gradient, "own": keeps.own,
    }  # fmt: skip
    divided = (some.columns["dp_shard"] * some.columns["cp"] > 1).astype(np.float64)
    return cases.made(**fixed, **some.columns, divided=divided)


def job_of(wanted: Wanted, row: dict[str, int]) -> Job:
    """The job file that runs this case."""
    axes: dict[str, Any] = {name: row[name] for name in (*words.AXES, "interleave", "zero")}
    schedule = "none" if row["pp"] == 1 else "interleaved" if row["interleave"] > 1 else "1f1b"
    tensor = row["tp"] > 1
    return Job(
        name=wanted.model.name, model=wanted.model,
        layout=Layout(**axes, sequence_parallel=tensor, loss_parallel=tensor),
        recipe=Recipe(
            seq_len=wanted.seq_len, tokens_per_step=wanted.samples * wanted.seq_len, microbatch=row["microbatch"],
            dtype=wanted.dtype, remat=REMATS[row["remat"]], schedule=schedule,
        ),
    )  # fmt: skip
