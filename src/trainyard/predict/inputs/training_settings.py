"""Settings of a training that a search keeps the same in all layouts: recomputed modules, dispatch to experts, the
optimizer and when it updates weights, the loss, and offloaded activations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from trainyard.errors import BadInput, UnknownName, nearest
from trainyard.model import Model
from trainyard.predict.inputs import setting_layouts
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import MUON_MOMENTUM
from trainyard.predict.inputs.setting_layouts import LayoutCondition
from trainyard.predict.inputs.vision_models import VisionModel
from trainyard.predict.memory.activation_offload import BUFFERED_LAYERS
from trainyard.predict.time.orthogonalization import ITERATIONS
from trainyard.units import counted
from trainyard.words import RECOMPUTE_MODULES

DISPATCH_BYTES = {"float8": 1.0}
"""Format of a token on its way to its experts -> bytes of a value."""
MOMENT_BYTES = {"bfloat16": 4.0, "float8": 2.0}
"""Format of AdamW's moments -> bytes of the two of a weight, without the scales of blocks (1.6 % in float8)."""
_NEEDS = {"moe_act": "experts", "moe": "experts", "shared_experts": "shared_experts", "mla_up_proj": "kv_lora_rank"}
"""Modules that only some models have, with the field of `Model` that is not 0 in these."""


class TrainingSettings(NamedTuple):
    """`recompute_modules`: those of selective activation checkpointing, by Megatron Core's names; empty: the ones that
    are cheap for the memory they save. `expert_imbalance`: tokens of the rank whose experts get most of them, over the
    mean. `dispatch_dtype`: format of tokens on their way to experts; empty: the compute dtype. `overlap_dispatch`:
    tokens are sent to experts and back during the compute of another micro-batch, in layouts that can. `moments_dtype`:
    format of AdamW's moments; empty: float32. `chunked_loss`: the head and the loss are computed in chunks.
    `offloaded_layers`: layers whose activations are in the host's memory until their backward pass.
    `updates_in_backward`: weights are updated, and their gradients freed, during the backward pass. `optimizer`: muon;
    empty: AdamW."""

    recompute_modules: tuple[str, ...] = ()
    expert_imbalance: float = 1.0
    dispatch_dtype: str = ""
    overlap_dispatch: bool = False
    moments_dtype: str = ""
    chunked_loss: bool = False
    offloaded_layers: int = 0
    updates_in_backward: bool = False
    optimizer: str = ""

    @property
    def columns(self) -> dict[str, float]:
        """Columns of `Cases` that the settings add: name -> value."""
        columns: dict[str, float] = {}
        if self.expert_imbalance != 1:
            columns["expert_imbalance"] = self.expert_imbalance
        if self.dispatch_dtype:
            columns["dispatch_bytes"] = DISPATCH_BYTES[self.dispatch_dtype]
        if self.chunked_loss:
            columns["chunked_loss"] = 1.0
        if self.offloaded_layers:
            columns["offloaded_layers"] = self.offloaded_layers
        if self.updates_in_backward:
            columns["updates_in_backward"] = 1.0
        if self.optimizer == "muon":
            columns |= {"muon_iterations": ITERATIONS, "extra_table_state_bytes": MUON_MOMENTUM}
        return columns

    def conditions(self, framework: str) -> list[LayoutCondition]:
        """Conditions of the settings on the layouts of a framework."""
        settings = (
            (self.offloaded_layers, setting_layouts.OFFLOADS_ACTIVATIONS),
            (self.updates_in_backward, setting_layouts.UPDATES_IN_BACKWARD),
        )
        return [conditions[framework] for is_given, conditions in settings if is_given]


def with_settings(framework: Framework, name: str, settings: TrainingSettings, model: Model | VisionModel) -> Framework:
    """The framework `name` as it trains `model` with these settings, in the layouts that support them. Raises
    `BadInput` for a setting that the framework or the model does not have."""
    _check(settings, name, model)
    keeps = framework.keeps
    if settings.optimizer:
        if "adapters" in keeps.columns:
            raise BadInput(f"--optimizer {settings.optimizer}: adapters are predicted with AdamW.", "Leave it out.")
        keeps = keeps._replace(moments=MUON_MOMENTUM)
        framework = framework._replace(offloads=lambda _, space: np.zeros(len(space), bool))
    if settings.recompute_modules:
        keeps = keeps._replace(recompute_modules=lambda _: settings.recompute_modules)
    if settings.moments_dtype:
        keeps = keeps._replace(moments=MOMENT_BYTES[settings.moments_dtype])
    columns = {**keeps.columns, **settings.columns}
    keeps = keeps._replace(overlaps_dispatch=settings.overlap_dispatch, columns=columns)
    return setting_layouts.restrict(framework._replace(keeps=keeps), settings.conditions(name))


def settings_outside(settings: TrainingSettings, framework: str) -> Iterator[str]:
    """A sentence for each setting that a written configuration of the framework cannot carry."""
    if settings.dispatch_dtype:
        yield f"Dispatch in {settings.dispatch_dtype}: set it in the library that sends tokens to experts."
    if settings.moments_dtype:
        short = {"bfloat16": "bf16", "float8": "fp8"}[settings.moments_dtype]
        arguments = f"--use-precision-aware-optimizer --exp-avg-dtype {short} --exp-avg-sq-dtype {short}"
        where = f"add {arguments}." if framework == "megatron" else "pass such an optimizer in the script."
        yield f"Moments of AdamW in {settings.moments_dtype}: {where}"
    if settings.chunked_loss:
        yield "A chunked loss: the head and the cross-entropy are fused in the script, as by Liger's kernel."
    if settings.offloaded_layers:
        where = (
            f"add --cpu-offloading-num-layers {settings.offloaded_layers}."
            if framework == "megatron"
            else "the script wraps these layers in hooks for saved tensors that copy in streams of their own, as "
            "torchtune's OffloadActivations; torch's save_on_cpu waits for each copy."
        )
        yield f"Offloaded activations of {counted(settings.offloaded_layers, 'layer')}: {where}"
    if settings.updates_in_backward:
        yield "Updates in the backward pass: set [optimizer] early_step_in_backward = true. Gradients are not clipped."
    if settings.optimizer:
        yield "Muon: add --optimizer dist_muon, and remove --use-distributed-optimizer."


def _check(settings: TrainingSettings, framework: str, model: Model | VisionModel) -> None:
    """Raises `BadInput` for a setting that the framework or the model does not have, or a value out of range."""
    experts = isinstance(model, Model) and model.experts
    for flag, is_given in (
        ("--expert-imbalance", settings.expert_imbalance != 1),
        ("--dispatch-dtype", settings.dispatch_dtype),
        ("--overlap-dispatch", settings.overlap_dispatch),
    ):
        if is_given and not experts:
            raise BadInput(
                f"{flag} applies to mixtures of experts, but {model.name} has no experts.", f"Leave out {flag}."
            )
    for flag, is_given in (
        ("--recompute-modules", settings.recompute_modules), ("--overlap-dispatch", settings.overlap_dispatch),
    ):  # fmt: skip
        if is_given and framework != "megatron":
            raise BadInput(f"{flag} is a setting of Megatron Core, not of {framework}.", "Add --for megatron.")
    if settings.dispatch_dtype and framework == "trainyard":
        raise BadInput(
            f"--dispatch-dtype {settings.dispatch_dtype:.60}: trainyard's own trainer dispatches in the compute dtype.",
            "Add --for megatron or --for torchtitan.",
        )
    for flag, is_given in (("--moments-dtype", settings.moments_dtype), ("--chunked-loss", settings.chunked_loss)):
        if is_given and framework == "trainyard":
            raise BadInput(
                f"{flag}: trainyard's own trainer does not have it.", "Add --for megatron or --for torchtitan."
            )
    if settings.chunked_loss and not isinstance(model, Model):
        raise BadInput(f"--chunked-loss applies to models with a vocabulary, but {model.name} has none.")
    if settings.optimizer:
        _check_optimizer(settings, framework, model)
    if settings.updates_in_backward and framework not in setting_layouts.UPDATES_IN_BACKWARD:
        raise BadInput(
            f"--optimizer-in-backward: {framework} updates weights after the backward pass.",
            "Add --for torchtitan.",
        )
    if settings.offloaded_layers:
        _check_offloaded_layers(settings.offloaded_layers, framework, model)
    if settings.moments_dtype and settings.moments_dtype not in MOMENT_BYTES:
        raise UnknownName(
            f"--moments-dtype {settings.moments_dtype:.60}: there is no such format.",
            nearest(settings.moments_dtype, MOMENT_BYTES),
        )
    if isinstance(model, Model) and experts and not 1 <= settings.expert_imbalance <= experts / model.top_k:
        raise BadInput(
            f"--expert-imbalance {settings.expert_imbalance:g} is not from 1 to {experts / model.top_k:g}: each token "
            f"of {model.name} goes to {model.top_k} of {experts} experts.",
            "Pass the tokens of the rank whose experts get most of them, divided by the mean over ranks.",
        )
    if settings.dispatch_dtype and settings.dispatch_dtype not in DISPATCH_BYTES:
        raise UnknownName(
            f"--dispatch-dtype {settings.dispatch_dtype:.60}: there is no such format.",
            nearest(settings.dispatch_dtype, DISPATCH_BYTES),
        )
    for module in settings.recompute_modules:
        if module not in RECOMPUTE_MODULES:
            raise UnknownName(
                f"--recompute-modules: there is no module {module:.60}.", nearest(module, RECOMPUTE_MODULES)
            )
        field = _NEEDS.get(module)
        if field and not getattr(model, field, 0):
            raise BadInput(f"--recompute-modules {module}, but {model.name} has no such module ({field} = 0).")


def check_fixed(settings: TrainingSettings, fixed: Mapping[str, int | str]) -> None:
    """Raises `BadInput` for a setting without effect in all layouts with the `fixed` values of axes."""
    checkpointing, needs_ep = fixed.get("activation_checkpoint", "selective"), "needs expert parallelism"
    for flag, is_given, needs, axis in (
        ("--recompute-modules", settings.recompute_modules and checkpointing != "selective",
         "applies to selective activation checkpointing", "activation_checkpoint"),
        ("--overlap-dispatch", settings.overlap_dispatch and checkpointing == "full",
         "does not apply to layouts that recompute whole layers", "activation_checkpoint"),
        ("--expert-imbalance", settings.expert_imbalance != 1 and fixed.get("ep") == 1, needs_ep, "ep"),
        ("--dispatch-dtype", settings.dispatch_dtype and fixed.get("ep") == 1, needs_ep, "ep"),
        ("--overlap-dispatch", settings.overlap_dispatch and fixed.get("ep") == 1, needs_ep, "ep"),
        ("--optimizer muon", settings.optimizer == "muon" and fixed.get("offload") == 1,
         "updates weights on the devices", "offload"),
    ):  # fmt: skip
        if is_given:
            raise BadInput(f"{flag} {needs}, but --fix {axis}={fixed[axis]}.", f"Leave out {flag} or --fix {axis}.")


def _check_offloaded_layers(layers: int, framework: str, model: Model | VisionModel) -> None:
    """Raises `BadInput` if the framework does not offload activations, or not of so many layers of `model`."""
    flag = f"--offload-activations {layers}"
    if framework not in setting_layouts.OFFLOADS_ACTIVATIONS:
        raise BadInput(
            f"{flag}: {framework} does not offload activations during other compute.",
            "Add --for megatron or --for torchtitan.",
        )
    if not BUFFERED_LAYERS < layers < model.layers:
        raise BadInput(
            f"{flag}: {model.name} has {model.layers} layers, the last of which is needed at once, and "
            f"{BUFFERED_LAYERS} of the offloaded layers are on the device at a time.",
            f"Pass a number from {BUFFERED_LAYERS + 1} to {model.layers - 1}.",
        )


def _check_optimizer(settings: TrainingSettings, framework: str, model: Model | VisionModel) -> None:
    """Raises `BadInput` if the framework does not train `model` with this optimizer, or not with the other settings."""
    flag = f"--optimizer {settings.optimizer:.60}"
    if settings.optimizer != "muon":
        raise UnknownName(f"{flag}: there is no such optimizer.", nearest(settings.optimizer, ("adamw", "muon")))
    if framework != "megatron":
        raise BadInput(f"{flag} is predicted for Megatron Core, not for {framework}.", "Add --for megatron.")
    if not isinstance(model, Model):
        raise BadInput(f"{flag} is predicted for decoders, but {model.name} is a model of images.")
    if settings.moments_dtype:
        raise BadInput(
            f"{flag} with --moments-dtype {settings.moments_dtype:.60}: the precision-aware optimizer of Megatron Core "
            "does not support Muon.",
            "Leave out one of them.",
        )
