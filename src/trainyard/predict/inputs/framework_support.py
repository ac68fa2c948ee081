"""Who is to run a plan: what each framework can lay out, how it keeps weights and state, and what it is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard import job_file, words
from trainyard.errors import BadJob
from trainyard.job import Job, Model
from trainyard.predict.configs.deepspeed import deepspeed_json
from trainyard.predict.configs.megatron import megatron_write
from trainyard.predict.configs.torchtitan import flavors, torchtitan_write
from trainyard.predict.inputs.cases import REMATS
from trainyard.predict.inputs.layout_space import USUAL, Keeps, LayoutSpace, PipelineSupport, PlannerInput, joined, lots
from trainyard.predict.inputs.vision_models import VisionModel
from trainyard.predict.pipeline import schedules

Mask = npt.NDArray[np.bool_]


class Framework(NamedTuple):
    """`software`: whose constants it is predicted with. `keeps`: its weights and state. `dtypes`: what it computes in.
    `allows`: which layouts it takes of those with the pipelines that it `offers`. `tells`: the file or arguments that
    launch a job; raises `BadJob` where there are none. `refuses`: why it trains no such model, or nothing. `offloads`:
    of which layouts, among those it `allows`, what it `keeps` may wait in the host's memory."""

    means: str
    software: str
    keeps: Keeps
    dtypes: tuple[str, ...]
    offers: PipelineSupport
    allows: Callable[[PlannerInput, LayoutSpace], Mask]
    tells: Callable[[Job], str]
    refuses: Callable[[Model | VisionModel], str]
    offloads: Callable[[PlannerInput, LayoutSpace], Mask]

    def layouts(self, wanted: PlannerInput) -> LayoutSpace:
        """Of those that divide everything, what it allows."""
        return joined(lot.keep(self.allows(wanted, lot)) for lot in lots(wanted, self.offers))


def _accumulate(wanted: PlannerInput, axes: dict[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return wanted.samples // (axes["dp_replicate"] * axes["dp_shard"] * axes["microbatch"])


def _fills(wanted: PlannerInput, axes: dict[str, npt.NDArray[np.int64]]) -> Mask:
    """torch's 1F1B asks for a micro-batch a stage."""
    plain = axes["schedule"] == schedules.SCHEDULES.index("1f1b")
    return ~plain | (axes["pp"] == 1) | (_accumulate(wanted, axes) >= axes["pp"])


def _ours(wanted: PlannerInput, space: LayoutSpace) -> Mask:
    """As `train/rules` refuses; the rest of what those say is asked of the fastest alone. Ranks of cp shard weights as
    ZeRO-2 does where ZeRO-1 is said."""
    axes = space.columns
    others = axes["tp"] * axes["cp"] * axes["pp"] * axes["ep"]
    whole = (axes["zero"] != 1) | (others == 1)
    experts = (axes["dp_shard"] * axes["cp"]) % axes["ep"] == 0
    model = wanted.model
    tensor = (axes["tp"] == 1) if isinstance(model, Model) and (model.experts or model.kv_rank) else True
    tied = (axes["pp"] == 1) if isinstance(model, Model) and model.tied else True
    return whole & experts & _fills(wanted, axes) & tensor & tied


def _megatron(wanted: PlannerInput, space: LayoutSpace) -> Mask:
    """Experts are not spread in float16 (`megatron/training/arguments.py`), and a hybrid's stages are one a rank,
    of as many layers (`megatron/core/ssm/mamba_block.py`); of pictures only samples are divided
    (`pretrain_vision_classify.py`)."""
    axes = space.columns
    spread = (axes["ep"] == 1) if wanted.dtype == "float16" else True
    rounds = (axes["interleave"] == 1) | (_accumulate(wanted, axes) % axes["pp"] == 0)
    staged = (axes["interleave"] == 1) & (wanted.model.layers % axes["pp"] == 0) if _spaces(wanted.model) else True
    whole = True if isinstance(wanted.model, Model) else axes["tp"] == 1
    return rounds & ((axes["zero"] == 1) | (axes["dp_shard"] * axes["cp"] == 1)) & spread & staged & whole


def _torchtitan(wanted: PlannerInput, space: LayoutSpace) -> Mask:
    """Replicas alone are refused beside tensor and pipeline parallelism, and nothing but FSDP computes in two bytes
    there (`parallelize.py`, `distributed/utils.py`); experts take ranks that shard (`parallel_dims.py`)."""
    axes = space.columns
    sharded, alone = axes["dp_shard"] * axes["cp"] > 1, axes["tp"] * axes["pp"] == 1
    whole = (axes["dp_replicate"] == 1) & (wanted.dtype == "float32")
    experts = (axes["dp_shard"] * axes["cp"] * axes["tp"]) % axes["ep"] == 0
    flavor = flavors.find(wanted.model)
    alike = () if isinstance(wanted.model, Model) else ("tp",)  # of FLUX nothing but weights is divided
    takes = [axes[axis] == 1 for axis in (flavor.refuses if flavor else alike)]
    return np.logical_and.reduce([_fills(wanted, axes), axes["zero"] >= 2, sharded | alone | whole, experts, *takes])


def _told(layers: int, stages: int) -> bool:
    """torchtitan is told how many layers a stage has at most."""
    return -(-(layers + 2) // torchtitan_write.layers_of_largest_stage(layers, stages)) == stages


def _deepspeed(wanted: PlannerInput, space: LayoutSpace) -> Mask:
    """Weights are sharded over all ranks or none; a pipeline takes neither tensor parallelism nor more than ZeRO-1; a
    layer is computed again whole. Of other models than decoders it knows no parts."""
    axes = space.columns
    whole_model = _spaces(wanted.model) or not isinstance(wanted.model, Model)
    whole = (axes["dp_shard"] == 1) | (axes["dp_replicate"] == 1)
    staged = (axes["pp"] == 1) | ((axes["tp"] == 1) & ((axes["zero"] == 1) | (axes["dp_shard"] == 1)))
    others = (axes["cp"] == 1) & (axes["ep"] == 1) & (axes["interleave"] == 1)
    parts = (axes["tp"] * axes["pp"] == 1) if whole_model else True
    return whole & staged & others & parts & (axes["remat"] != REMATS.index("op"))


def _we_offload(wanted: PlannerInput, space: LayoutSpace) -> Mask:
    """Where FSDP alone divides weights (`train/rules/recipe_rules.py`), over all ranks and for each layer anew."""
    axes = space.columns
    return (axes["dp_shard"] == wanted.devices) & (axes["dp_shard"] > 1) & (axes["zero"] == 3) & (axes["ep"] == 1)


def _megatron_offloads(wanted: PlannerInput, space: LayoutSpace) -> Mask:
    """Its precision-aware optimizer, which the distributed one is (`megatron/training/arguments.py`). It is taken where
    there are other weights beside those that compute, and no loss is scaled."""
    axes = space.columns
    divides = (axes["dp_shard"] * axes["cp"] > 1) | (axes["dp_replicate"] == 1)
    return divides & (wanted.dtype not in ("float16", "float32"))


def _torchtitan_offloads(wanted: PlannerInput, space: LayoutSpace) -> Mask:
    """Where FSDP gathers weights anew for each micro-batch; its pipelines keep them."""
    axes = space.columns
    sharded = (axes["dp_shard"] * axes["cp"] > 1) & (axes["zero"] == 3) & (axes["pp"] == 1)
    return sharded & isinstance(wanted.model, Model)


def _deepspeed_offloads(wanted: PlannerInput, space: LayoutSpace) -> Mask:
    """Where ZeRO divides the state, or there is one rank to do it; no pipeline."""
    axes = space.columns
    return (axes["pp"] == 1) & ((axes["dp_shard"] * axes["cp"] > 1) | (axes["dp_replicate"] == 1))


def _spaces(model: Model | VisionModel) -> bool:
    return isinstance(model, Model) and bool(model.pattern)


def _we_refuse(model: Model | VisionModel) -> str:
    if isinstance(model, Model) and model.pattern:
        return f"pattern = {model.pattern[:20]!r}, but it trains no state-space layers."
    return ""


def _megatron_refuses(model: Model | VisionModel) -> str:
    if not isinstance(model, Model):
        return "" if model.workload == "vision" else f"it has no program that trains models of {model.workload}."
    if model.step_rank:
        return f"step_rank = {model.step_rank}, but its state spaces have one step for each head, not for each channel."
    return ""


def _torchtitan_refuses(model: Model | VisionModel) -> str:
    if isinstance(model, Model):
        return ""
    return "" if model.joined else "of models of pictures it has FLUX's alone (models/flux)."


def _unwritten(who: str, writes: Callable[[Job], str]) -> Callable[[Job], str]:
    """`writes`, but for models of pictures."""

    def tells(job: Job) -> str:
        if job.model is None:
            raise BadJob(
                f"what launches {job.name} with {who} is not written here: its sizes stand in a program of its own.",
                "Leave out --out: the layout is what is planned for.",
            )
        return writes(job)

    return tells


FRAMEWORKS: Mapping[str, Framework] = {
    "trainyard": Framework(
        means="our own runner (trainyard run)",
        software="fsdp",
        keeps=Keeps(4, 4, 8, own=True, ends="never", offload="all"),
        dtypes=tuple(words.DTYPES),
        offers=PipelineSupport(schedules.SCHEDULES, lambda layers, stages: stages <= layers),
        allows=_ours,
        tells=job_file.write,
        refuses=_we_refuse,
        offloads=_we_offload,
    ),
    "megatron": Framework(
        means="Megatron Core",
        software="megatron",
        keeps=Keeps(2, 4, 12, offload="state"),
        dtypes=("bfloat16", "float16", "float32", "float8", "float4"),
        offers=USUAL,
        allows=_megatron,
        tells=_unwritten("Megatron Core", megatron_write.write),
        refuses=_megatron_refuses,
        offloads=_megatron_offloads,
    ),
    "torchtitan": Framework(
        means="torchtitan",
        software="fsdp",
        keeps=Keeps(4, 4, 8, remade=0.5, ends="always", offload="all"),
        dtypes=("bfloat16", "float32", "float8"),
        offers=PipelineSupport(divides=_told),
        allows=_torchtitan,
        tells=_unwritten("torchtitan", torchtitan_write.write),
        refuses=_torchtitan_refuses,
        offloads=_torchtitan_offloads,
    ),
    "deepspeed": Framework(
        means="DeepSpeed",
        software="fsdp",
        keeps=Keeps(2, 2, 12, between=False, ends="never", offload="state"),
        dtypes=("bfloat16", "float16", "float32"),
        offers=PipelineSupport(("1f1b",)),
        allows=_deepspeed,
        tells=deepspeed_json.write,
        refuses=lambda _: "",
        offloads=_deepspeed_offloads,
    ),
}
