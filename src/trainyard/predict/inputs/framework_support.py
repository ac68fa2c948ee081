"""What each framework supports: its layouts, the storage of weights and state, and how to write its configuration.

A layout space has a row per layout and a column per axis (`LayoutSpace.columns`: axis -> its value in each layout). The
`_..._allows` and `_..._offloads` functions return a mask of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard import job_file
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.model import Model
from trainyard.predict.configs.deepspeed import deepspeed_json, deepspeed_notes
from trainyard.predict.configs.megatron import megatron_write
from trainyard.predict.configs.torchtitan import flavors, torchtitan_write
from trainyard.predict.inputs import recomputed_modules
from trainyard.predict.inputs.cases import ACTIVATION_CHECKPOINTS
from trainyard.predict.inputs.layout_space import (
    Keeps,
    LayoutSpace,
    PipelineSupport,
    PlannerInput,
    concatenate,
    enumerate_batches,
)
from trainyard.predict.inputs.padded_vocabulary import TO_MEGATRON_DIVISOR, TO_TP
from trainyard.predict.inputs.vision_models import VisionModel
from trainyard.predict.pipeline import partition, schedules

Mask = npt.NDArray[np.bool_]


class Framework(NamedTuple):
    """`display_name`: its name in sentences. `software`: the set of constants it is predicted with. `keeps`: bytes of
    its weights and state. `dtypes`: its compute dtypes. `offers`: its pipelines. `allows`: mask of the layouts with
    these pipelines that it supports. `write_config`: the file or arguments that launch a job; raises `BadJob` if
    trainyard cannot write them. `refuses`: the reason that it cannot train a model, else "". `offloads`: mask of the
    layouts that can offload to the host's memory, among those it `allows`. `outside_config`: a sentence for each
    setting of a job that the written configuration cannot carry; `has_comments`: whether the configuration has
    comments; `unsupported`: what follows its name in the reason for which it allows none of the layouts, if known.
    `places_layers`: whether it can divide a model's layers over that many stages so that the first and the last have
    that many fewer (`Layout.first_stage_less_layers`, `last_stage_less_layers`)."""

    display_name: str
    software: str
    keeps: Keeps
    dtypes: tuple[str, ...]
    offers: PipelineSupport
    allows: Callable[[PlannerInput, LayoutSpace], Mask]
    write_config: Callable[[Job], str]
    refuses: Callable[[Model | VisionModel], str]
    offloads: Callable[[PlannerInput, LayoutSpace], Mask]
    outside_config: Callable[[Job], tuple[str, ...]] = lambda _: ()
    has_comments: bool = True
    unsupported: str = ""
    places_layers: Callable[[Model | VisionModel, int, int, int], bool] = lambda *_: False

    def layouts(self, wanted: PlannerInput) -> LayoutSpace:
        """The layouts it allows, of all that divide the devices, heads, layers and batch of `wanted`."""
        return concatenate(batch.keep(self.allows(wanted, batch)) for batch in enumerate_batches(wanted, self.offers))


def micro_batches(wanted: PlannerInput, axes: Mapping[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Micro-batches per rank and step of each layout. `axes`: axis -> its value in each layout."""
    return wanted.samples // (axes["dp_replicate"] * axes["dp_shard"] * axes["micro_batch_size"])


def _fills_pipeline(wanted: PlannerInput, axes: dict[str, npt.NDArray[np.int64]]) -> Mask:
    """Mask of the layouts with enough micro-batches: torch's 1F1B needs at least one per stage. `axes`: axis -> its
    value in each layout."""
    is_1f1b = axes["schedule"] == schedules.SCHEDULES.index("1f1b")
    return ~is_1f1b | (axes["pp"] == 1) | (micro_batches(wanted, axes) >= axes["pp"])


def divides_sequence(wanted: PlannerInput, axes: dict[str, npt.NDArray[np.int64]]) -> Mask:
    """Mask of the layouts whose sequence parallelism divides the positions of each rank of cp evenly over tp. `axes`:
    axis -> its value in each layout."""
    return np.asarray(wanted.seq_len % (axes["tp"] * axes["cp"]) == 0) | (not isinstance(wanted.model, Model))


def _native_allows(wanted: PlannerInput, space: LayoutSpace) -> Mask:
    """Mask of the layouts that `train/rules` accepts; the remaining rules are checked for the fastest layouts only.
    With cp, ZeRO-1 shards weights like ZeRO-2."""
    axes = space.columns
    other_ranks = axes["tp"] * axes["cp"] * axes["pp"] * axes["ep"]
    zero_allowed = (axes["zero"] != 1) | (other_ranks == 1)
    experts_divide = (axes["dp_shard"] * axes["cp"]) % axes["ep"] == 0
    model = wanted.model
    tp_allowed = (axes["tp"] == 1) if isinstance(model, Model) and (model.experts or model.kv_lora_rank) else True
    tied_allowed = (axes["pp"] == 1) if isinstance(model, Model) and model.tie_word_embeddings else True
    return (
        zero_allowed
        & experts_divide
        & _fills_pipeline(wanted, axes)
        & tp_allowed
        & tied_allowed
        & divides_sequence(wanted, axes)
    )


def _megatron_allows(wanted: PlannerInput, space: LayoutSpace) -> Mask:
    """Mask of the layouts that Megatron Core runs. float16 excludes expert parallelism
    (`megatron/training/arguments.py`); interleaving needs rounds of pp micro-batches; hybrids have one stage per rank,
    all with as many layers (`megatron/core/ssm/mamba_block.py`); vision models have data parallelism only
    (`pretrain_vision_classify.py`)."""
    axes = space.columns
    ep_allowed = (axes["ep"] == 1) if wanted.dtype == "float16" else True
    has_whole_rounds = (axes["interleave"] == 1) | (micro_batches(wanted, axes) % axes["pp"] == 0)
    has_even_stages = (
        (axes["interleave"] == 1) & (wanted.model.layers % axes["pp"] == 0) if _is_hybrid(wanted.model) else True
    )
    tp_allowed = True if isinstance(wanted.model, Model) else axes["tp"] == 1
    return (
        has_whole_rounds
        & ((axes["zero"] == 1) | (axes["dp_shard"] * axes["cp"] == 1))
        & ep_allowed
        & has_even_stages
        & tp_allowed
        & divides_sequence(wanted, axes)
    )


def _torchtitan_allows(wanted: PlannerInput, space: LayoutSpace) -> Mask:
    """Mask of the layouts that torchtitan runs. Replicated data parallelism excludes tensor and pipeline parallelism,
    and with these only FSDP computes in two bytes (`parallelize.py`, `distributed/utils.py`); ep uses the ranks that
    shard (`parallel_dims.py`)."""
    axes = space.columns
    is_sharded, data_parallel_only = axes["dp_shard"] * axes["cp"] > 1, axes["tp"] * axes["pp"] == 1
    may_replicate = (axes["dp_replicate"] == 1) & (wanted.dtype == "float32")
    experts_divide = (axes["dp_shard"] * axes["cp"] * axes["tp"]) % axes["ep"] == 0
    flavor = flavors.find(wanted.model)
    refused_axes = () if isinstance(wanted.model, Model) else ("tp",)  # FLUX has no tensor parallelism
    flavor_allows = [axes[axis] == 1 for axis in (flavor.refuses if flavor else refused_axes)]
    return np.logical_and.reduce(
        [
            _fills_pipeline(wanted, axes),
            axes["zero"] >= 2,
            is_sharded | data_parallel_only | may_replicate,
            experts_divide,
            divides_sequence(wanted, axes),
            *flavor_allows,
        ]
    )


def _makes_stages(layers: int, stages: int) -> bool:
    """Whether torchtitan makes `stages` stages of `layers` layers if its only setting, the layers of the largest stage,
    has the value that trainyard writes."""
    return -(-(layers + 2) // torchtitan_write.layers_of_largest_stage(layers, stages)) == stages


def _megatron_places_layers(model: Model | VisionModel, stages: int, first_less: int, last_less: int) -> bool:
    """Whether Megatron Core makes these stages: an explicit layout of the pipeline allows any, also without layers,
    but not for hybrids (`megatron/core/ssm/mamba_block.py`)."""
    first_layers, last_layers, *_ = partition.stage_sizes(model.layers, stages, first_less, last_less)
    return isinstance(model, Model) and not _is_hybrid(model) and min(first_layers, last_layers) >= 0


def _torchtitan_places_layers(model: Model | VisionModel, stages: int, first_less: int, last_less: int) -> bool:
    """Whether torchtitan makes these stages. The layers fewer may not exceed those of an even stage
    (`generate_llm_fqn_per_model_part`)."""
    counted_layers = model.layers + first_less + last_less
    each = counted_layers // stages
    makes_stages = -(-counted_layers // -(-counted_layers // stages)) == stages
    return isinstance(model, Model) and makes_stages and max(first_less, last_less) <= each


def _deepspeed_allows(wanted: PlannerInput, space: LayoutSpace) -> Mask:
    """Mask of the layouts that DeepSpeed runs. Weights are sharded over all ranks or none; a pipeline supports neither
    tensor parallelism nor more than ZeRO-1; layers are recomputed as a whole. Models other than decoders have neither
    tensor nor pipeline parallelism."""
    axes = space.columns
    whole_model = _is_hybrid(wanted.model) or not isinstance(wanted.model, Model)
    one_sharding = (axes["dp_shard"] == 1) | (axes["dp_replicate"] == 1)
    pipeline_allowed = (axes["pp"] == 1) | ((axes["tp"] == 1) & ((axes["zero"] == 1) | (axes["dp_shard"] == 1)))
    no_other_axes = (axes["cp"] == 1) & (axes["ep"] == 1) & (axes["interleave"] == 1)
    no_model_parallelism = (axes["tp"] * axes["pp"] == 1) if whole_model else True
    return (
        one_sharding
        & pipeline_allowed
        & no_other_axes
        & no_model_parallelism
        & (axes["activation_checkpoint"] != ACTIVATION_CHECKPOINTS.index("selective"))
    )


def _native_offloads(wanted: PlannerInput, space: LayoutSpace) -> Mask:
    """Mask of the layouts that can offload: only FSDP may shard weights (`train/rules/recipe_rules.py`), over all
    ranks, and gathers them for each layer."""
    axes = space.columns
    return (axes["dp_shard"] == wanted.devices) & (axes["dp_shard"] > 1) & (axes["zero"] == 3) & (axes["ep"] == 1)


def _megatron_offloads(wanted: PlannerInput, space: LayoutSpace) -> Mask:
    """Mask of the layouts that can offload, which needs the precision-aware optimizer; that requires the distributed
    one (`megatron/training/arguments.py`), separate main weights, and no loss scaling."""
    axes = space.columns
    divides = (axes["dp_shard"] * axes["cp"] > 1) | (axes["dp_replicate"] == 1)
    return divides & (wanted.dtype not in ("float16", "float32"))


def _torchtitan_offloads(wanted: PlannerInput, space: LayoutSpace) -> Mask:
    """Mask of the layouts that can offload: FSDP must gather weights again for each micro-batch (ZeRO-3), which
    torchtitan's pipelines do not do."""
    axes = space.columns
    sharded = (axes["dp_shard"] * axes["cp"] > 1) & (axes["zero"] == 3) & (axes["pp"] == 1)
    return sharded & isinstance(wanted.model, Model)


def _deepspeed_offloads(wanted: PlannerInput, space: LayoutSpace) -> Mask:
    """Mask of the layouts that can offload: without a pipeline, and with the state sharded by ZeRO or a single
    data-parallel rank."""
    axes = space.columns
    return (axes["pp"] == 1) & ((axes["dp_shard"] * axes["cp"] > 1) | (axes["dp_replicate"] == 1))


def _is_hybrid(model: Model | VisionModel) -> bool:
    """Whether the model has state-space layers."""
    return isinstance(model, Model) and bool(model.hybrid_pattern)


def _native_refuses(model: Model | VisionModel) -> str:
    """The reason that trainyard's own trainer cannot train the model, else ""."""
    if isinstance(model, Model) and model.hybrid_pattern:
        return f"hybrid_pattern = {model.hybrid_pattern[:20]!r}, but it cannot train state-space layers."
    return ""


def _megatron_refuses(model: Model | VisionModel) -> str:
    """The reason that Megatron Core cannot train the model, else ""."""
    if not isinstance(model, Model):
        return "" if model.workload == "vision" else f"it has no training program for {model.workload} models."
    if model.ssm_dt_rank:
        return f"ssm_dt_rank = {model.ssm_dt_rank}, but its state spaces have one step size per head (Mamba-2)."
    return ""


def _torchtitan_refuses(model: Model | VisionModel) -> str:
    """The reason that torchtitan cannot train the model, else ""."""
    if isinstance(model, Model):
        return ""
    return "" if model.joined else "FLUX is its only image model (models/flux)."


def _decoders_only(framework: str, write_decoder: Callable[[Job], str]) -> Callable[[Job], str]:
    """Wraps `write_decoder`, which returns the configuration's text for a decoder: the result raises `BadJob` for
    vision and diffusion models. `framework`: its name in the message."""

    def write_config(job: Job) -> str:
        """The configuration's text. Raises `BadJob` if the job's model is defined by a program."""
        if job.model is None:
            raise BadJob(
                f"trainyard cannot write a {framework} configuration for {job.name}: its sizes are set in a program.",
                "Leave out --out, and set the planned layout in that program.",
            )
        return write_decoder(job)

    return write_config


FRAMEWORKS: Mapping[str, Framework] = {
    "trainyard": Framework(
        display_name="our own runner (trainyard run)",
        software="fsdp-25",
        keeps=Keeps(weight=4, gradient=4, state=8, native=True, ends="never", offload="all", vocabulary=TO_TP),
        dtypes=("float32", "tf32", "bfloat16", "float16", "float8"),
        offers=PipelineSupport(schedules.SCHEDULES, lambda layers, stages: stages <= layers),
        allows=_native_allows,
        write_config=job_file.write,
        refuses=_native_refuses,
        offloads=_native_offloads,
    ),
    "megatron": Framework(
        display_name="Megatron Core",
        software="megatron",
        keeps=Keeps(
            weight=2,
            gradient=4,
            state=12,
            offload="state",
            vocabulary=TO_MEGATRON_DIVISOR,
            recompute_modules=recomputed_modules.usual,
        ),
        dtypes=("bfloat16", "float16", "float32", "float8", "float4"),
        offers=PipelineSupport(uneven=True),
        allows=_megatron_allows,
        write_config=_decoders_only("Megatron Core", megatron_write.write),
        places_layers=_megatron_places_layers,
        refuses=_megatron_refuses,
        offloads=_megatron_offloads,
    ),
    "torchtitan": Framework(
        display_name="torchtitan",
        software="fsdp-25",
        keeps=Keeps(
            weight=4,
            gradient=4,
            state=8,
            recomputed_share=0.5,
            ends="always",
            offload="all",
            low_precision_inputs=False,
        ),
        dtypes=("bfloat16", "float32", "float8"),
        offers=PipelineSupport(divides=_makes_stages),
        allows=_torchtitan_allows,
        write_config=_decoders_only("torchtitan", torchtitan_write.write),
        places_layers=_torchtitan_places_layers,
        refuses=_torchtitan_refuses,
        offloads=_torchtitan_offloads,
        outside_config=torchtitan_write.missing_flavor,
    ),
    "deepspeed": Framework(
        display_name="DeepSpeed",
        software="fsdp-23",
        keeps=Keeps(weight=2, gradient=2, state=12, splits_activations=False, ends="never", offload="state"),
        dtypes=("bfloat16", "float16", "float32"),
        offers=PipelineSupport(("1f1b",)),
        allows=_deepspeed_allows,
        write_config=deepspeed_json.write,
        refuses=lambda _: "",
        offloads=_deepspeed_offloads,
        outside_config=deepspeed_notes.settings_outside_json,
        has_comments=False,
    ),
}
