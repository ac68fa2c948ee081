"""Every way to split a model over so many devices, as cases: whole divisors only, and none left out. What of it may
wait in the host's memory is asked of each afterwards (`search/offload_variants.py`).

Left out is what cannot be better by this model: tensor parallelism without sequence parallelism takes as long and more
memory, as does an ungathered loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard import words
from trainyard.errors import BadJob
from trainyard.job import Job, Layout, Model, Recipe
from trainyard.predict.inputs import cases
from trainyard.predict.inputs.cases import REMATS, Cases
from trainyard.predict.inputs.vision_models import VisionModel
from trainyard.predict.pipeline import partition, schedules
from trainyard.predict.pipeline.partition import Ends
from trainyard.predict.time import offload

INTERLEAVED = 8
"""Most pipeline stages that a rank may have (Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2)."""


class PlannerInput(NamedTuple):
    """What is to be trained on how many devices: `samples` of `seq_len` tokens a step, or of pictures, each of which
    counts as one. `fixed`: axes that are given."""

    model: Model | VisionModel
    devices: int
    per_node: int
    samples: int
    seq_len: int
    dtype: str = "bfloat16"
    fixed: dict[str, int] = {}


class Keeps(NamedTuple):
    """Bytes of a weight, of its gradient, and of its optimizer's state; `own`: by our own runner. `remade`: as in
    `Cases`. `between`: ranks of tp divide what lies between the matrices, by sequence, and the loss, by vocabulary.
    `ends`: when the embedding and the head are counted where layers are divided over stages. `offload`: what waits in
    the host's memory, where anything does."""

    weight: int
    gradient: int
    state: int
    own: bool = False
    remade: float = 0.0
    between: bool = True
    ends: Ends = "uneven"
    offload: offload.Kind = ""

    def of(self, dtype: str) -> Keeps:
        """In float32 there are no other weights beside those that compute."""
        return self._replace(weight=4, gradient=4, state=8) if dtype == "float32" else self


def evenly(layers: int, stages: int) -> bool:
    """As many in each, or one less where the embedding and the head are."""
    return 0 in (layers % stages, (layers + 2) % stages)


class PipelineSupport(NamedTuple):
    """Pipelines that a runner takes: its schedules, and whether it divides so many layers over so many stages where a
    rank has several; one each it has of any number."""

    schedules: Sequence[str] = ("1f1b", "interleaved")
    divides: Callable[[int, int], bool] = evenly


USUAL = PipelineSupport()
"""Megatron Core's."""


TOGETHER = 1 << 14
"""Cases whose costs are reckoned at once, so that they stay in a processor's cache."""


class LayoutSpace(NamedTuple):
    """The columns of a case that differ, by name."""

    columns: dict[str, npt.NDArray[np.int64]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def pieces(self) -> Iterator[LayoutSpace]:
        """In order, each of `TOGETHER` or the rest."""
        for start in range(0, len(self), TOGETHER):
            yield LayoutSpace({name: values[start : start + TOGETHER] for name, values in self.columns.items()})

    def keep(self, mask: npt.NDArray[np.bool_]) -> LayoutSpace:
        return LayoutSpace({name: values[mask] for name, values in self.columns.items()})

    def offloaded(self) -> LayoutSpace:
        return LayoutSpace(self.columns | {"offload": np.ones(len(self), np.int64)})

    def beside(self, other: LayoutSpace) -> LayoutSpace:
        """Both, these first."""
        return joined((self, other))

    def row(self, place: int) -> dict[str, int]:
        return {name: int(values[place]) for name, values in self.columns.items()}


AXES = (*words.AXES, "zero", "interleave", "microbatch", "remat", "offload", "schedule")


MOST_LAYOUTS = 1 << 26
"""Layouts that divide everything: DeepSeek-V3 on 16,384 devices with 15,360 samples has 10 million."""
MOST_ALLOWED = 1 << 21
"""Layouts that a framework takes, each of which is costed: there it is 660,000, which take 5 s and 300 MB."""


def too_many(count: int, most: int) -> BadJob:
    """The error for a space that would take minutes and gigabytes to search."""
    return BadJob(
        f"more than {most:,} layouts divide the devices, the batch and the model ({count:,} so far).",
        "Fix some of the axes, as --fix pp=8 --fix microbatch=1.",
    )


@lru_cache(maxsize=1 << 12)
def divisors(number: int) -> tuple[int, ...]:
    small = [factor for factor in range(1, isqrt(number) + 1) if number % factor == 0]
    return tuple(sorted({*small, *(number // factor for factor in small)}))


def _allowed(wanted: PlannerInput, axis: str, values: Iterable[int]) -> list[int]:
    given = wanted.fixed.get(axis)
    return [value for value in values if given is None or value == given]


def shared(model: Model | VisionModel) -> dict[str, int]:
    """What ranks of tp have a whole and equal number of, by name."""
    if not isinstance(model, Model):
        return model.divides
    keys = {} if model.kv_rank else {"heads of keys and values": model.kv_heads}
    spaces = {"groups of state spaces": model.space_groups, "heads of state spaces": model.space_heads}
    return {"heads": model.heads, **keys, **(spaces if model.pattern else {})}


def _contexts(wanted: PlannerInput, tp: int, ranks: int) -> list[int]:
    """Ways to divide a sequence: each rank has an early and a late part of it, and all of some heads of a state space.
    Pictures are not divided."""
    model = wanted.model
    if not isinstance(model, Model):
        return [1]
    spaces = model.space_heads if model.pattern else 0
    return [one for one in divisors(ranks) if wanted.seq_len % (2 * one * tp) == 0 and spaces % (one * tp) == 0]


def _splits(wanted: PlannerInput) -> Iterator[tuple[int, int, int, int, int, int]]:
    """The axes, in the order of `words.AXES`."""
    model, parts = wanted.model, shared(wanted.model).values()
    tps = _allowed(wanted, "tp", [one for one in divisors(model.heads) if not any(part % one for part in parts)])
    deepest = model.layers if isinstance(model, Model) else 1
    pps = _allowed(wanted, "pp", [one for one in range(1, deepest + 1) if wanted.devices % one == 0])
    experts = model.experts if isinstance(model, Model) else 0
    eps = _allowed(wanted, "ep", divisors(experts) if experts else [1])
    for tp, pp in product(tps, pps):
        if wanted.devices % (tp * pp):
            continue
        rest = wanted.devices // (tp * pp)
        whole_eps = [ep for ep in eps if wanted.devices // pp % ep == 0]
        for cp in _allowed(wanted, "cp", _contexts(wanted, tp, rest)):
            dp = rest // cp
            if wanted.samples % dp:
                continue
            shards = [
                one for one in divisors(dp) if one in (1, dp) or one == wanted.per_node // min(tp * cp, wanted.per_node)
            ]
            for shard, ep in product(_allowed(wanted, "dp_shard", shards), whole_eps):
                yield dp // shard, shard, tp, cp, pp, ep


def _runs(wanted: PlannerInput, offers: PipelineSupport, pp: int, accumulate: int) -> list[tuple[int, int]]:
    """Schedules, each by its place, and the stages a rank then has. GPipe is no faster than 1F1B and needs more memory:
    it is for fewer micro-batches than stages."""
    if pp == 1:
        return [(0, 1)]
    found: list[tuple[int, int]] = []
    for place, name in enumerate(schedules.SCHEDULES):
        if name not in offers.schedules or not schedules.takes(name, pp, accumulate):
            continue
        if name in schedules.ONE_STAGE:
            found += [(place, 1)] if name == "1f1b" or accumulate < pp else []
            continue
        more = [2] if name in schedules.V_SHAPED else range(1 if name in schedules.SPLIT else 2, INTERLEAVED + 1)
        found += [(place, one) for one in more if offers.divides(wanted.model.layers, pp * one)]
    return found


def space(wanted: PlannerInput, offers: PipelineSupport = USUAL) -> LayoutSpace:
    """Empty where no layout divides devices, heads, layers and batch."""
    return joined(lots(wanted, offers))


def lots(wanted: PlannerInput, offers: PipelineSupport) -> Iterator[LayoutSpace]:
    """The space, `TOGETHER` or some more at a time: most of it may be nothing that a framework takes."""
    splits: list[tuple[int, ...]] = []
    below: list[npt.NDArray[np.int64]] = []
    held = count = 0
    # Thousands of splits share a few hundred of what is below them.
    known: dict[tuple[int, int, bool], npt.NDArray[np.int64]] = {}
    for split in _splits(wanted):
        replicate, shard, _, cp, pp, _ = split
        key = wanted.samples // (replicate * shard), pp, shard * cp == 1
        if key not in known:
            known[key] = _below(wanted, offers, *key)
        splits.append(split)
        below.append(known[key])
        held += below[-1].shape[1]
        count += below[-1].shape[1]
        if count > MOST_LAYOUTS:
            raise too_many(count, MOST_LAYOUTS)
        if held >= TOGETHER:
            yield _lot(splits, below)
            splits, below, held = [], [], 0
    if splits:
        yield _lot(splits, below)


def _lot(splits: list[tuple[int, ...]], below: list[npt.NDArray[np.int64]]) -> LayoutSpace:
    above = np.repeat(np.array(splits, np.int64).T, [rows.shape[1] for rows in below], axis=1)
    return LayoutSpace(dict(zip(AXES, [*above, *np.concatenate(below, axis=1)], strict=True)))


def joined(lots: Iterable[LayoutSpace]) -> LayoutSpace:
    every: list[LayoutSpace] = []
    count = 0
    for lot in lots:
        every.append(lot)
        count += len(lot)
        if count > MOST_ALLOWED:
            raise too_many(count, MOST_ALLOWED)
    every = every or [LayoutSpace({axis: np.zeros(0, np.int64) for axis in AXES})]
    return LayoutSpace({axis: np.concatenate([lot.columns[axis] for lot in every]) for axis in AXES})


def _below(wanted: PlannerInput, offers: PipelineSupport, each: int, pp: int, alone: bool) -> npt.NDArray[np.int64]:
    """What may differ where axes are split alike, of `each` samples a replica: a row an axis, ordered as `AXES`."""
    found: list[tuple[int, ...]] = []
    remats = _allowed(wanted, "remat", list(range(len(REMATS))))
    zeros = _allowed(wanted, "zero", [3] if alone else [1, 2, 3] if pp == 1 else [1, 2])
    splits = [schedules.SCHEDULES.index(name) for name in schedules.SPLIT]
    for microbatch in _allowed(wanted, "microbatch", divisors(each)):
        for schedule, interleave in _runs(wanted, offers, pp, each // microbatch):
            if wanted.fixed.get("interleave", interleave) == interleave:
                # A backward pass in two halves would compute a block again for each of its weights.
                again = [one for one in remats if not one or schedule not in splits]
                found.extend(
                    (zero, interleave, microbatch, remat, 0, schedule) for zero, remat in product(zeros, again)
                )
    table = np.array(found, np.int64).reshape(-1, len(AXES) - len(words.AXES))
    wished = wanted.fixed.get("schedule")
    return np.ascontiguousarray((table if wished is None else table[(table[:, -1] == wished) & (pp > 1)]).T)


def as_cases(wanted: PlannerInput, some: LayoutSpace, keeps: Keeps) -> Cases:
    low = words.DTYPES[wanted.dtype] < 2
    keeps = keeps.of(wanted.dtype)
    fixed: dict[str, Any] = {
        "seq_len": wanted.seq_len,
        "samples": wanted.samples,
        "remat_every": 1,
        "sequence_parallel": keeps.between,
        "loss_parallel": keeps.between,
        "flash": 1,
        "low_precision": low,
        "width_bytes": max(2, words.DTYPES[wanted.dtype]),
        "weight_bytes": keeps.weight,
        "gradient_bytes": keeps.gradient,
        "state_bytes": keeps.state,
        "reduce_bytes": keeps.gradient,
        "adapters": 0,
        "remade": keeps.remade,
        "own": keeps.own,
    } | cases.of_subject(wanted.model)
    columns = some.columns
    divided = (columns["dp_shard"] * columns["cp"] > 1).astype(np.float64)
    stages = cases.column(columns["pp"] * columns["interleave"])
    ends = partition.counted(keeps.ends, wanted.model.layers, stages)
    away = columns["offload"] * offload.KINDS.index(keeps.offload)
    return cases.made(**fixed, **columns | {"offload": away}, divided=divided, ends=ends)


def job_of(wanted: PlannerInput, row: dict[str, int], between: bool = True) -> Job:
    """The job file that runs this case. `between`: as in `Keeps`."""
    axes: dict[str, Any] = {name: row[name] for name in (*words.AXES, "interleave", "zero")}
    schedule: Any = "none" if row["pp"] == 1 else schedules.SCHEDULES[row["schedule"]]
    model = wanted.model
    tensor = between and row["tp"] > 1 and isinstance(model, Model)
    layout = Layout(**axes, sequence_parallel=tensor, loss_parallel=tensor)
    recipe = Recipe(
        seq_len=wanted.seq_len,
        tokens_per_step=wanted.samples * wanted.seq_len,
        microbatch=row["microbatch"],
        dtype=wanted.dtype,
        remat=REMATS[row["remat"]],
        schedule=schedule,
        offload=bool(row["offload"]),
    )
    if isinstance(model, Model):
        return Job(name=model.name, model=model, layout=layout, recipe=recipe)
    return model.job(layout, recipe)
