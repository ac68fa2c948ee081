"""Frameworks that train adapters: DeepSpeed with Hugging Face PEFT, and Megatron-Bridge.

trainyard's own runner does not train adapters, nor does torchtitan 0.2.2 (pytorch/torchtitan#2515).
"""

from __future__ import annotations

from collections.abc import Callable

from trainyard.errors import BadInput
from trainyard.job import Job
from trainyard.predict.inputs.fine_tuning import FineTuning
from trainyard.predict.inputs.framework_support import FRAMEWORKS, Framework, Mask
from trainyard.predict.inputs.layout_space import LayoutSpace, PlannerInput

DEFAULT = "deepspeed"
"""The framework that adapters are planned for if none is named."""
_PEFT_MODULES = {
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}
"""Names of matrices in Hugging Face's models of the Llama family."""
_MEGATRON_MODULES = {"attention": ("linear_qkv", "linear_proj"), "mlp": ("linear_fc1", "linear_fc2")}


def trains(name: str, settings: FineTuning | None) -> bool:
    """Whether the framework `name` fine-tunes with `settings`; True without them."""
    if settings is None or not settings.trains_adapters:
        return True
    return name == "deepspeed" or (name == "megatron" and settings.method == "lora")


def fine_tuned(name: str, settings: FineTuning | None, runs: Callable[[str], bool] = lambda _: True) -> Framework:
    """The framework `name` as it fine-tunes with `settings`; as it is without them, or if all weights are trained.
    Raises `BadInput` if it does not train such adapters, with those that do and that run (`runs`) on the devices."""
    framework = FRAMEWORKS[name]
    if settings is None or not settings.trains_adapters:
        return framework
    if not trains(name, settings):
        raise BadInput(*_explain_untrained(name, settings, runs))
    if name == "deepspeed":
        reason = "trains adapters with data parallelism only, whose ranks the batch must divide"
        return _with_adapters(framework, settings, split=True, allows=_peft_allows, notes=_peft_notes, reason=reason)
    reason = f"splits adapters over tp, which must divide --lora-rank {settings.rank}"
    return _with_adapters(framework, settings, split=False, allows=_bridge_allows, notes=_bridge_notes, reason=reason)


_LIBRARIES = {"deepspeed": "Hugging Face PEFT", "megatron": "Megatron-Bridge"}
"""Framework that trains adapters -> the library that it trains them with."""


def _explain_untrained(name: str, settings: FineTuning, runs: Callable[[str], bool]) -> tuple[str, str]:
    """(message, next step) if the framework `name` does not train adapters with `settings`. `runs`: as in
    `fine_tuned`."""
    reason = (
        "Megatron-Bridge keeps frozen weights in the compute dtype, not in NF4"
        if name == "megatron"
        else f"{FRAMEWORKS[name].display_name} does not train adapters"
    )
    others = [other for other in _LIBRARIES if trains(other, settings)]
    running = list(filter(runs, others))
    flags = " or ".join(f"--for {other} ({_LIBRARIES[other]})" for other in running or others)
    of_port = "" if running else ", whose layouts are those of a port: no framework trains adapters on these devices"
    return (
        f"--fine-tune {settings.method} for {name}: {reason}.",
        f"Search layouts with trainyard plan {flags}{of_port}.",
    )


def _with_adapters(
    framework: Framework,
    settings: FineTuning,
    split: bool,
    allows: Callable[[FineTuning, PlannerInput, LayoutSpace], Mask],
    notes: Callable[[FineTuning], tuple[str, ...]],
    reason: str,
) -> Framework:
    """The framework if it trains adapters. `split`: as in `FineTuning.columns`; `allows`: mask of the layouts that
    adapters support, of those that the framework does; `notes`: settings that its configuration cannot carry;
    `reason`: why layouts are not supported."""
    supported = ("bfloat16", "float16") if settings.method == "qlora" else ("bfloat16", "float16", "float32", "float8")

    def allows_both(wanted: PlannerInput, space: LayoutSpace) -> Mask:
        """Mask of the layouts that the framework and the adapters support."""
        return framework.allows(wanted, space) & allows(settings, wanted, space)

    def settings_outside(job: Job) -> tuple[str, ...]:
        """A sentence for each setting that the written configuration cannot carry."""
        return (*framework.outside_config(job), *notes(settings))

    return framework._replace(
        keeps=framework.keeps._replace(columns=settings.columns(split)),
        dtypes=tuple(dtype for dtype in framework.dtypes if dtype in supported),
        allows=allows_both,
        outside_config=settings_outside,
        has_comments=False,
        unsupported=reason,
    )


def _peft_allows(_settings: FineTuning, _wanted: PlannerInput, space: LayoutSpace) -> Mask:
    """Mask of the layouts with data parallelism only: the PEFT library supports ZeRO 1 to 3 (its guide of DeepSpeed),
    but neither AutoTP nor PipelineModule."""
    return space.columns["tp"] * space.columns["pp"] == 1


def _bridge_allows(settings: FineTuning, _wanted: PlannerInput, space: LayoutSpace) -> Mask:
    """Mask of the layouts whose tensor parallelism divides the rank, over which Megatron-Bridge splits the first matrix
    of an adapter (`megatron/bridge/peft/utils.py`)."""
    return settings.rank % space.columns["tp"] == 0


def _modules(settings: FineTuning, names: dict[str, tuple[str, ...]]) -> str:
    """The names of the matrices with adapters, separated by commas."""
    return ", ".join(name for part, modules in names.items() if settings.targets in ("all", part) for name in modules)


def _peft_notes(settings: FineTuning) -> tuple[str, ...]:
    """Settings of the training script, with the names of Hugging Face PEFT 0.18 for models of the Llama family."""
    adapters = (
        f"Adapters: the script wraps the model in get_peft_model with LoraConfig(r={settings.rank}), target_modules "
        f"{_modules(settings, _PEFT_MODULES)}, lora_dropout 0. All other weights are frozen."
    )
    if settings.method == "lora":
        return (adapters,)
    return (
        adapters,
        "NF4 weights: the script loads the model with BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4', "
        "bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16, "
        "bnb_4bit_quant_storage=torch.bfloat16); ZeRO-3 needs the last one.",
    )


def _bridge_notes(settings: FineTuning) -> tuple[str, ...]:
    """Settings of a recipe of Megatron-Bridge."""
    return (
        "Adapters: pretrain_gpt.py does not train them. Set the sizes of this file in a recipe of Megatron-Bridge with "
        f"megatron.bridge.peft.lora.LoRA(dim={settings.rank}), target_modules {_modules(settings, _MEGATRON_MODULES)}.",
    )
