"""All layouts of a model over a number of devices, as cases: every combination of divisors. Offloading to the host's
memory is added to them later (`search/offload_variants.py`).

Omitted are options that this cost model never prefers: tensor parallelism without sequence parallelism, or without a
vocabulary-parallel loss, takes as long and more memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard import words
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.inputs import cases
from trainyard.predict.inputs.cases import ACTIVATION_CHECKPOINTS, Cases
from trainyard.predict.inputs.padded_vocabulary import UNEVEN, VocabularyPadding
from trainyard.predict.inputs.vision_models import VisionModel
from trainyard.predict.pipeline import partition, schedules
from trainyard.predict.pipeline.partition import Ends
from trainyard.predict.time import offload
from trainyard.recipe import Recipe

MAX_INTERLEAVE = 8
"""Most pipeline stages that a rank may have (Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2)."""


class PlannerInput(NamedTuple):
    """A model to be trained on `devices`: `samples` per step of `seq_len` tokens, or of images, each of which counts as
    one token. `fixed`: the values of axes that the user fixed."""

    model: Model | VisionModel
    devices: int
    per_node: int
    samples: int
    seq_len: int
    dtype: str = "bfloat16"
    fixed: dict[str, int] = {}

    @property
    def shards_replicas(self) -> bool:
        """Whether the user fixed a ZeRO stage, so that data parallelism must shard, but not over how many ranks."""
        return "zero" in self.fixed and not {"dp_shard", "dp_replicate"} & self.fixed.keys()


FLOAT32_MOMENTS = 8.0
"""Bytes of AdamW's two moments of a weight in float32."""
MUON_MOMENTUM = 4.0
"""Bytes of Muon's momentum of a weight in float32."""


class Keeps(NamedTuple):
    """How a framework keeps tensors: bytes of a weight, of its gradient and of its optimizer's state with moments in
    float32. `moments`: bytes of the two moments. `native`: it is trainyard's own trainer. `recomputed_share`: as in
    `Cases`. `splits_activations`: tp divides activations outside matrix products by sequence, and the loss by
    vocabulary. `ends`: when the embedding and the head count as layers in the partition over stages. `vocabulary`: how
    the framework divides the vocabulary over tp. `offload`: the tensors in the host's memory if a layout offloads.
    `recompute_modules`: the modules of a model that selective activation checkpointing recomputes; None: all but
    attention and `1 - recomputed_share` of the products. `overlaps_dispatch`: layouts with ep dispatch tokens during
    the compute of another micro-batch, where they can. `low_precision_inputs`: as in `Cases`. `columns`: columns of
    `Cases` (name -> value) that the user's settings add."""

    weight: int
    gradient: int
    state: int
    moments: float = FLOAT32_MOMENTS
    native: bool = False
    recomputed_share: float = 0.0
    splits_activations: bool = True
    ends: Ends = "uneven"
    offload: offload.Kind = ""
    vocabulary: VocabularyPadding = UNEVEN
    recompute_modules: Callable[[Model], tuple[str, ...]] | None = None
    overlaps_dispatch: bool = False
    low_precision_inputs: bool = True
    columns: Mapping[str, float] = {}

    @property
    def state_bytes(self) -> float:
        """Bytes of the optimizer's state for each weight."""
        return self.state - FLOAT32_MOMENTS + self.moments

    def modules_of(self, model: Model | VisionModel) -> tuple[str, ...]:
        """The modules of `model` that selective activation checkpointing recomputes; empty: those of a policy."""
        return self.recompute_modules(model) if self.recompute_modules and isinstance(model, Model) else ()

    def in_dtype(self, dtype: str) -> Keeps:
        """The bytes with compute dtype `dtype`: float32 needs no separate main weights."""
        return self._replace(weight=4, gradient=4, state=8) if dtype == "float32" else self


_SPLITTING = Keeps(weight=4, gradient=4, state=8)
"""Tensor parallelism divides activations and the loss, and the vocabulary unevenly."""


def divides_evenly(layers: int, stages: int) -> bool:
    """Whether stages have as many layers each, or one less in those with the embedding and the head."""
    return 0 in (layers % stages, (layers + 2) % stages)


class PipelineSupport(NamedTuple):
    """Pipelines that a framework supports: its schedules, and whether it can divide layers over stages if a rank has
    several stages. With one stage per rank any number of layers is supported. `uneven`: if no number of stages per rank
    divides the layers, they are divided unevenly."""

    schedules: Sequence[str] = ("1f1b", "interleaved")
    divides: Callable[[int, int], bool] = divides_evenly
    uneven: bool = False


USUAL = PipelineSupport()
"""Megatron Core's."""


CASES_PER_PIECE = 1 << 14
"""Cases whose costs are computed at once, so that they stay in a processor's cache."""


class LayoutSpace(NamedTuple):
    """Layouts as columns: axis of `AXES` -> its value in each layout. Axes that name a choice (`schedule`,
    `activation_checkpoint`) have its index."""

    columns: dict[str, npt.NDArray[np.int64]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def pieces(self) -> Iterator[LayoutSpace]:
        """The layouts in order, in pieces of `CASES_PER_PIECE` and the rest."""
        for start in range(0, len(self), CASES_PER_PIECE):
            yield LayoutSpace({name: values[start : start + CASES_PER_PIECE] for name, values in self.columns.items()})

    def keep(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> LayoutSpace:
        """The layouts selected by a mask, or by indices."""
        indices = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows  # faster than a mask for each column
        return LayoutSpace({name: values.take(indices) for name, values in self.columns.items()})

    def offloaded(self) -> LayoutSpace:
        """The same layouts with offloading."""
        return LayoutSpace(self.columns | {"offload": np.ones(len(self), np.int64)})

    def concat(self, other: LayoutSpace) -> LayoutSpace:
        """These layouts, then those of `other`."""
        return concatenate((self, other))

    def row(self, index: int) -> dict[str, int]:
        """The layout at `index`: axis -> value."""
        return {name: int(values[index]) for name, values in self.columns.items()}


AXES = (*words.AXES, "zero", "interleave", "micro_batch_size", "activation_checkpoint", "offload", "schedule")


MOST_LAYOUTS = 1 << 26
"""Most layouts dividing devices, batch and model: DeepSeek-V3 has 10 million on 16,384 devices and 15,360 samples."""
MOST_ALLOWED = 1 << 21
"""Most layouts that a framework supports, all of which are costed: in that example 660,000, in 5 s and 300 MB."""


def too_many_layouts(count: int, most: int) -> BadJob:
    """The error for a space that would take minutes and gigabytes to search. `count`: its layouts, at least; `most`:
    the limit."""
    return BadJob(
        f"more than {most:,} layouts divide the devices, the batch and the model ({count:,} so far).",
        "Fix some of the axes, as --fix pp=8 --fix micro_batch_size=1.",
    )


@lru_cache(maxsize=1 << 12)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a number, ascending."""
    small_divisors = [factor for factor in range(1, isqrt(number) + 1) if number % factor == 0]
    return tuple(sorted({*small_divisors, *(number // factor for factor in small_divisors)}))


def _filter_fixed(fixed: Mapping[str, int], axis: str, values: Iterable[int]) -> list[int]:
    """The values of an axis that the user allows: all, or the fixed one if it is among them."""
    fixed_value = fixed.get(axis)
    return [value for value in values if fixed_value is None or value == fixed_value]


def tp_divided_sizes(model: Model | VisionModel) -> dict[str, int]:
    """The dimensions that tp must divide evenly: name in messages -> size."""
    if not isinstance(model, Model):
        return model.divides
    keys = {} if model.kv_lora_rank else {"heads of keys and values": model.kv_heads}
    spaces = {"groups of state spaces": model.ssm_groups, "heads of state spaces": model.ssm_heads}
    return {"heads": model.heads, **keys, **(spaces if model.hybrid_pattern else {})}


def _context_sizes(wanted: PlannerInput, tp: int, ranks: int) -> list[int]:
    """Possible values of cp, if cp x dp is `ranks`: each rank has an early and a late part of the sequence, and some
    whole heads of a state space. Images are not divided, and a sequence of any length is trained without cp."""
    model = wanted.model
    if not isinstance(model, Model):
        return [1]
    ssm_heads = model.ssm_heads if model.hybrid_pattern else 0
    return [cp for cp in divisors(ranks) if (cp == 1 or wanted.seq_len % (2 * cp) == 0) and ssm_heads % (cp * tp) == 0]


def _enumerate_axes(wanted: PlannerInput) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Combinations (dp_replicate, dp_shard, tp, cp, pp, ep) of parallelism axes that divide the model, the devices and
    the samples of a step. Sharding is over all data-parallel ranks, none, or those of a node."""
    model, divided_sizes = wanted.model, tp_divided_sizes(wanted.model).values()
    tp_values = _filter_fixed(
        wanted.fixed, "tp", [tp for tp in divisors(model.heads) if not any(part % tp for part in divided_sizes)]
    )
    max_pp = model.layers if isinstance(model, Model) else 1
    pp_values = _filter_fixed(wanted.fixed, "pp", [pp for pp in range(1, max_pp + 1) if wanted.devices % pp == 0])
    experts = model.experts if isinstance(model, Model) else 0
    ep_values = _filter_fixed(wanted.fixed, "ep", divisors(experts) if experts else [1])
    for tp, pp in product(tp_values, pp_values):
        if wanted.devices % (tp * pp):
            continue
        ranks = wanted.devices // (tp * pp)
        ep_values_here = [ep for ep in ep_values if wanted.devices // pp % ep == 0]
        for cp in _filter_fixed(wanted.fixed, "cp", _context_sizes(wanted, tp, ranks)):
            dp = ranks // cp
            if wanted.samples % dp:
                continue
            for shard, ep in product(_shard_sizes(wanted, dp, tp * cp), ep_values_here):
                if wanted.shards_replicas and shard * cp == 1 < dp:
                    continue
                yield dp // shard, shard, tp, cp, pp, ep


def _shard_sizes(wanted: PlannerInput, dp: int, inner: int) -> list[int]:
    """The numbers of ranks over which weights are sharded: one, those of `dp` in one node, or all of `dp`; any divisor
    if the user fixes `dp_shard` or `dp_replicate`. `inner`: ranks of the axes inside of data parallelism."""
    fixed_shard, fixed_replicate = (wanted.fixed.get(axis) for axis in ("dp_shard", "dp_replicate"))
    if fixed_shard is None and fixed_replicate is None:
        return [size for size in divisors(dp) if size in (1, dp, wanted.per_node // min(inner, wanted.per_node))]
    return [size for size in divisors(dp) if fixed_shard in (None, size) and fixed_replicate in (None, dp // size)]


def _enumerate_pipelines(layers: int, offers: PipelineSupport, pp: int, micro_batches: int) -> list[tuple[int, int]]:
    """(index into `schedules.SCHEDULES`, stages of a rank) of each pipeline with `pp` ranks and `micro_batches` per
    rank and step. GPipe is not faster than 1F1B and needs more memory: it is listed for fewer micro-batches than stages
    only."""
    if pp == 1:
        return [(0, 1)]
    choices: list[tuple[int, int]] = []
    for index, name in enumerate(schedules.SCHEDULES):
        if name not in offers.schedules or not schedules.takes(name, pp, micro_batches):
            continue
        if name in schedules.ONE_STAGE:
            choices += [(index, 1)] if name == "1f1b" or micro_batches < pp else []
            continue
        choices += [(index, stages) for stages in _stages_per_rank(layers, offers, pp, name)]
    return choices


@lru_cache(maxsize=1 << 12)
def _stages_per_rank(layers: int, offers: PipelineSupport, pp: int, schedule: str) -> tuple[int, ...]:
    """The numbers of stages that a rank may have in a schedule with several of them. A cache, since a search enumerates
    pipelines for thousands of numbers of micro-batches."""
    interleaves = (
        [2] if schedule in schedules.V_SHAPED else range(1 if schedule in schedules.SPLIT else 2, MAX_INTERLEAVE + 1)
    )
    fitting = [stages for stages in interleaves if offers.divides(layers, pp * stages)]
    if not fitting and offers.uneven:
        fitting = [stages for stages in interleaves if pp * stages <= layers]
    return tuple(fitting)


_SPLITS_BACKWARD = np.array([name in schedules.SPLIT for name in schedules.SCHEDULES])
"""Whether each schedule of `schedules.SCHEDULES` splits the backward pass."""


def space(wanted: PlannerInput, offers: PipelineSupport = USUAL) -> LayoutSpace:
    """All layouts; empty if none divides devices, heads, layers and batch."""
    return concatenate(enumerate_batches(wanted, offers))


def enumerate_batches(wanted: PlannerInput, offers: PipelineSupport) -> Iterator[LayoutSpace]:
    """All layouts, in batches of `CASES_PER_PIECE` or slightly more, so that the caller can keep the few that a
    framework supports. A layout is a row of outer axes (`words.AXES`, the parallelism degrees) with a row of inner axes
    (the others of `AXES`). Raises `BadJob` above `MOST_LAYOUTS`."""
    outer_axes: list[tuple[int, ...]] = []
    inner_axes: list[npt.NDArray[np.int64]] = []  # for each row of `outer_axes`, [axis, row]
    pending_layouts = total_layouts = 0
    fixed = tuple(wanted.fixed.items())
    for split in _enumerate_axes(wanted):
        replicate, shard, _, cp, pp, _ = split
        outer_axes.append(split)
        inner_axes.append(
            _inner_axes(wanted.model.layers, offers, fixed, wanted.samples // (replicate * shard), pp, shard * cp == 1)
        )
        pending_layouts += inner_axes[-1].shape[1]
        total_layouts += inner_axes[-1].shape[1]
        if total_layouts > MOST_LAYOUTS:
            raise too_many_layouts(total_layouts, MOST_LAYOUTS)
        if pending_layouts >= CASES_PER_PIECE:
            yield _combine_batch(outer_axes, inner_axes)
            outer_axes, inner_axes, pending_layouts = [], [], 0
    if outer_axes:
        yield _combine_batch(outer_axes, inner_axes)


def _combine_batch(outer_axes: list[tuple[int, ...]], inner_axes: list[npt.NDArray[np.int64]]) -> LayoutSpace:
    """Layouts of each combination of outer axes (the order of `words.AXES`) with its table of inner axes, [axis,
    row]."""
    outer_columns = np.repeat(np.array(outer_axes, np.int64).T, [rows.shape[1] for rows in inner_axes], axis=1)
    return LayoutSpace(dict(zip(AXES, [*outer_columns, *np.concatenate(inner_axes, axis=1)], strict=True)))


def concatenate(batches: Iterable[LayoutSpace]) -> LayoutSpace:
    """One layout space of all batches. Raises `BadJob` above `MOST_ALLOWED` layouts."""
    collected: list[LayoutSpace] = []
    count = 0
    for batch in batches:
        collected.append(batch)
        count += len(batch)
        if count > MOST_ALLOWED:
            raise too_many_layouts(count, MOST_ALLOWED)
    collected = collected or [LayoutSpace({axis: np.zeros(0, np.int64) for axis in AXES})]
    return LayoutSpace({axis: np.concatenate([batch.columns[axis] for batch in collected]) for axis in AXES})


@lru_cache(maxsize=1 << 10)
def _inner_axes(
    layers: int,
    offers: PipelineSupport,
    fixed: tuple[tuple[str, int], ...],
    samples_per_replica: int,
    pp: int,
    unsharded: bool,
) -> npt.NDArray[np.int64]:
    """The inner axes (ZeRO stage, interleave, micro-batch, recomputation, offload, schedule) of all layouts with the
    same outer axes, [axis, layout], in the order of `AXES`. `fixed`: items of `PlannerInput.fixed`; `unsharded`: there
    is one rank to shard over, so that all ZeRO stages are the same; `samples_per_replica`: of a step, which the
    micro-batch size must divide. A cache, since the thousands of outer axes on several numbers of devices share a few
    hundred of these tables."""
    fixed_values = dict(fixed)
    checkpoints = _filter_fixed(fixed_values, "activation_checkpoint", range(len(ACTIVATION_CHECKPOINTS)))
    zero_stages = _filter_fixed(fixed_values, "zero", [3] if unsharded else [1, 2, 3] if pp == 1 else [1, 2])
    settings = [
        (interleave, micro_batch_size, schedule)
        for micro_batch_size in _filter_fixed(fixed_values, "micro_batch_size", divisors(samples_per_replica))
        for schedule, interleave in _enumerate_pipelines(layers, offers, pp, samples_per_replica // micro_batch_size)
        if fixed_values.get("interleave", interleave) == interleave
        and (pp > 1 or "schedule" not in fixed_values)
        and fixed_values.get("schedule", schedule) == schedule
    ]
    # Each setting is a row for each of these.
    choices = np.array(list(product(zero_stages, checkpoints)), np.int64).reshape(-1, 2)
    repeated = np.repeat(np.array(settings, np.int64).reshape(-1, 3), len(choices), axis=0)
    interleave, micro_batch_size, schedule = repeated.T
    zero, activation_checkpoint = np.tile(choices, (len(settings), 1)).T
    table = np.stack([zero, interleave, micro_batch_size, activation_checkpoint, np.zeros_like(zero), schedule])
    # A split backward pass would recompute a block for each of its weights.
    return table[:, (activation_checkpoint == 0) | ~_SPLITS_BACKWARD[schedule]]


def fixed_in_words(fixed: Mapping[str, int]) -> dict[str, int | str]:
    """Fixed axes with their values as the user writes them: the names of modes instead of their indices."""
    names: dict[str, Sequence[str]] = {
        "schedule": schedules.SCHEDULES,
        "activation_checkpoint": ACTIVATION_CHECKPOINTS,
    }
    return {axis: names[axis][value] if axis in names else value for axis, value in fixed.items()}


def lacks_sharding(wanted: PlannerInput, layouts: LayoutSpace) -> bool:
    """Whether a fixed ZeRO stage requires sharding, but none of the layouts shards over several ranks."""
    axes = layouts.columns
    return wanted.shards_replicas and wanted.devices > 1 and not (axes["dp_shard"] * axes["cp"] > 1).any()


def can_overlap_dispatch(axes: Mapping[str, Any]) -> Any:
    """Whether layouts can dispatch tokens to experts during the compute of another micro-batch, as Megatron Core does:
    with several stages per rank in a pipeline, and without recomputation of whole layers (`megatron/training/arguments
    .py`). `axes`: axis -> its value in each layout, or in one."""
    has_chunks = (axes["pp"] == 1) | (axes["interleave"] > 1)
    return (axes["ep"] > 1) & has_chunks & (axes["activation_checkpoint"] != cases.FULL)


def starts_group(layouts: LayoutSpace) -> npt.NDArray[np.bool_]:
    """Mask of the layouts that differ from the one before in more than activation checkpointing, the modes of which are
    enumerated last and in the order of what they recompute."""
    is_first = np.ones(len(layouts), bool)
    axes = [values for axis, values in layouts.columns.items() if axis != "activation_checkpoint"]
    is_first[1:] = np.logical_or.reduce([values[1:] != values[:-1] for values in axes])
    return is_first


def as_cases(wanted: PlannerInput, layouts: LayoutSpace, keeps: Keeps) -> Cases:
    """The layouts as cases, a row per layout: the columns of the layouts, and those of the model and the recipe, which
    are equal in all. `keeps`: how the framework keeps tensors."""
    is_low_precision = words.DTYPES[wanted.dtype] < 2
    keeps = keeps.in_dtype(wanted.dtype)
    fixed: dict[str, Any] = {
        "seq_len": wanted.seq_len,
        "samples": wanted.samples,
        "activation_checkpoint_every": 1,
        "sequence_parallel": keeps.splits_activations,
        "loss_parallel": keeps.splits_activations,
        "flash": 1,
        "low_precision": is_low_precision,
        "width_bytes": max(2, words.DTYPES[wanted.dtype]),
        "weight_bytes": keeps.weight,
        "gradient_bytes": keeps.gradient,
        "state_bytes": keeps.state_bytes,
        "reduce_bytes": keeps.gradient,
        "recomputed_share": keeps.recomputed_share,
        "recompute_modules": cases.module_bits(keeps.modules_of(wanted.model)),
        "native": keeps.native,
        "low_precision_inputs": keeps.low_precision_inputs,
    } | cases.of_subject(wanted.model)
    fixed |= keeps.columns
    columns = layouts.columns
    if keeps.overlaps_dispatch:
        fixed["overlaps_dispatch"] = can_overlap_dispatch(columns)
    if isinstance(wanted.model, Model):
        fixed["vocab"] = keeps.vocabulary.padded(wanted.model.vocab, columns["tp"])
    is_sharded = (columns["dp_shard"] * columns["cp"] > 1).astype(np.float64)
    stages = cases.column(columns["pp"] * columns["interleave"])
    ends = partition.counted(keeps.ends, wanted.model.layers, stages)
    offload_kind = columns["offload"] * offload.KINDS.index(keeps.offload)  # 0 in layouts without offloading
    return cases.build(
        **fixed, **columns | {"offload": offload_kind}, is_sharded=is_sharded, first_less=ends, last_less=ends
    )


def job_of(wanted: PlannerInput, row: dict[str, int], keeps: Keeps = _SPLITTING) -> Job:
    """The job of a layout. `row`: axis -> value, as from `LayoutSpace.row`; `keeps`: how the framework keeps tensors.
    The job's model has the vocabulary as the framework pads it, if it does."""
    axes: dict[str, Any] = {name: row[name] for name in (*words.AXES, "interleave", "zero")}
    schedule: Any = "none" if row["pp"] == 1 else schedules.SCHEDULES[row["schedule"]]
    model = wanted.model
    is_selective = row["activation_checkpoint"] == cases.SELECTIVE
    splits = keeps.splits_activations and row["tp"] > 1 and isinstance(model, Model)
    layout = Layout(**axes, sequence_parallel=splits, loss_parallel=splits)
    recipe = Recipe(
        seq_len=wanted.seq_len,
        tokens_per_step=wanted.samples * wanted.seq_len,
        micro_batch_size=row["micro_batch_size"],
        dtype=wanted.dtype,
        activation_checkpoint=ACTIVATION_CHECKPOINTS[row["activation_checkpoint"]],
        schedule=schedule,
        offload=bool(row["offload"]),
        recompute_modules=keeps.modules_of(model) if is_selective else (),
        overlap_dispatch=keeps.overlaps_dispatch and bool(can_overlap_dispatch(row)),
    )
    if isinstance(model, Model):
        model = keeps.vocabulary.padded_model(model, row["tp"])
        return Job(name=model.name, model=model, layout=layout, recipe=recipe)
    return model.job(layout, recipe)
