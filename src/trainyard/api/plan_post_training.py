"""`plan_rollout`: a step of reinforcement learning (GRPO, PPO) as two plans that share a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

from trainyard import limits
from trainyard.api.plan_layouts import PlanOptions, check_numbers, load_machine, planner_input_of, refuse_unsupported
from trainyard.api.plan_notes import input_notes
from trainyard.api.plan_request import read_request
from trainyard.api.rollout_notes import rollout_notes
from trainyard.errors import BadInput, BadJob, UnknownName, nearest
from trainyard.machine import Machine
from trainyard.model import Model
from trainyard.predict.inputs import cluster_size
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.inputs.vision_models import VisionModel
from trainyard.predict.post_training import decode_cost
from trainyard.predict.post_training.generation_search import MOST_SIMULATED, EngineOptions, check_engine
from trainyard.predict.post_training.rollout_defaults import LENGTH_CV, MAX_NUM_SEQS, MEMORY_SHARE
from trainyard.predict.post_training.rollout_workload import RolloutWorkload
from trainyard.predict.post_training.step_modes import STEP_INTERVAL, ModeName, RolloutStep, StepPlanner, StepSettings
from trainyard.predict.post_training.training_phase import update_input
from trainyard.predict.search import remedies
from trainyard.report.plans.describe_candidates import name_layout
from trainyard.report.plans.rollout_plan import (
    GenerationPlan,
    RolloutMode,
    RolloutPart,
    RolloutPlan,
    TrainingPlan,
)
from trainyard.units import counted

Path = str | os.PathLike[str]
_LIMITS = (
    "Not calibrated: nothing is fitted to post-training. The interval, 0.7 to 3.5 times the step, is assumed: seven "
    "published steps took 1.1 to 3.1 times the prediction.",
    "Lengths are quantiles of a lognormal distribution, cut off at the maximum, and known to the engine: no request is "
    "preempted. Not included: rewards, tools, tokenisation, repacking of weights on the host, speculative decoding, "
    "expert and pipeline parallelism, sliding windows and formats below 16 bits in generation.",
)
_LONGEST_DEFAULT = 2
"""Default of the maximum length over the mean."""


def plan_rollout(
    model: Path,
    *,
    machine: Path,
    devices: int | None = None,
    prompts: int,
    samples: int,
    prompt_tokens: int,
    response_tokens: int,
    max_response_tokens: int | None = None,
    length_cv: float = LENGTH_CV,
    train_batch: int | None = None,
    old_log_probs: bool = True,
    reference: bool = True,
    critic: bool = False,
    max_num_seqs: int = MAX_NUM_SEQS,
    memory_share: float = MEMORY_SHARE,
    generation_tp: int | None = None,
    generation_devices: int | None = None,
    framework: Literal["", "trainyard", "megatron", "torchtitan", "deepspeed"] = "",
    fix: Sequence[str] = (),
    progress: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> RolloutPlan:
    """Plans a step of reinforcement learning (GRPO, PPO): generation of responses, passes for log-probabilities,
    training, and the transfer of weights between them, in three modes.

    A step has `prompts` prompts of `prompt_tokens` tokens with `samples` responses each, of `response_tokens` tokens on
    average and `max_response_tokens` at most (default: twice the mean); `length_cv`: standard deviation of the lengths
    over their mean. `train_batch`: sequences of an optimizer update (default: all of the step). `old_log_probs`,
    `reference`, `critic`: passes of the step besides generation and training. `max_num_seqs`: most concurrent requests
    of a replica; `memory_share`: of the device memory for weights and KV cache; `generation_tp`: tensor parallelism of
    generation (default: the fastest); `generation_devices`: of the disaggregated modes (default: the fastest split of
    the nodes). `framework`: of training (default: that of the model's configuration, else Megatron Core); `fix`: axes
    of its layout, as for `plan`. `progress`: maps a message to a context for whose duration it is shown.

    ```python
    result = api.plan_rollout(
        "llama3-8b", machine="h100", devices=64, prompts=512, samples=16, prompt_tokens=1024, response_tokens=8192
    )
    for mode in result.modes:
        print(mode.name, mode.step_ns, {part.name: part.ns for part in mode.parts})
    ```

    Raises `UnknownName` for an unknown machine, model or framework, `BadInput` for numbers that contradict each other
    or a model that is not a decoder with attention, and `BadJob` if it does not fit in any mode.
    """
    workload = RolloutWorkload(
        prompts=prompts, samples=samples, prompt_tokens=prompt_tokens, response_tokens=response_tokens,
        max_response_tokens=_LONGEST_DEFAULT * response_tokens if max_response_tokens is None else max_response_tokens,
        length_cv=length_cv, train_batch=train_batch or 0,
    )  # fmt: skip
    engine = _engine_options(max_num_seqs, memory_share, generation_tp)
    check_numbers(PlanOptions(devices=devices))
    if framework and framework not in FRAMEWORKS:
        raise UnknownName(f"there is no framework {framework!r}.", nearest(framework, FRAMEWORKS))
    if "," in os.fspath(machine):
        raise BadInput(
            f"--machine {os.fspath(machine)}: post-training is planned for machines of one kind.", "Pass one machine."
        )
    target = load_machine(os.fspath(machine))
    request = read_request(os.fspath(model), None, None, None)
    decoder = require_decoder(request.model)
    runner = framework or (request.framework if request.job else "megatron")
    options = PlanOptions(devices=devices, batch=workload.sequences, seq_len=workload.longest, fix=fix)
    wanted = planner_input_of(request, target, options)
    cluster_size.check_ranks(target, wanted.devices)
    generation_ranks = (generation_devices or 0) * target.device.ranks
    _check_split(target, wanted.devices, generation_ranks)
    planner = StepPlanner(
        model=decoder, wanted=wanted,
        machine=decode_cost.generation_model(target, FRAMEWORKS[runner].software, wanted.dtype),
        framework=FRAMEWORKS[runner], workload=workload, engine=engine,
        settings=StepSettings(old_log_probs=old_log_probs, reference=reference, critic=critic),
        refuses=refuse_unsupported if runner == "trainyard" else lambda _: None,
    )  # fmt: skip
    check_engine(decoder, planner.machine, wanted.devices, workload, engine)
    with progress("Planning generation and training"):
        modes = [*_colocated(planner, target), *_disaggregated(planner, target, generation_ranks)]
    if not any(mode.step_ns for mode in modes):
        raise BadJob(modes[0].reason, _suggest_step(planner, target))
    modes.sort(key=lambda mode: mode.step_ns or float("inf"))
    return RolloutPlan(
        model=decoder.name, machine=target.name, device=target.device.name,
        devices=wanted.devices // target.device.ranks, framework=runner, constants=planner.machine.tuned.name,
        workload=workload, modes=tuple(modes),
        notes=(*input_notes(request, wanted, runner, [target]), *rollout_notes(workload, modes, target)),
        assumptions=(decode_cost.WEIGHT_BANDWIDTH, decode_cost.CACHE_BANDWIDTH, *planner.machine.tuned.claims),
        calibrated=STEP_INTERVAL.calibrated, limits=_LIMITS,
    )  # fmt: skip


def _suggest_step(planner: StepPlanner, machine: Machine) -> str:
    """The next step if no mode has a step: fixed axes to leave out if no layout of training fits with them."""
    update = update_input(planner.wanted, planner.workload)

    def count(changed: PlannerInput) -> int:
        """The number of layouts of training that fit."""
        return remedies.count_fitting(changed, planner.framework, machine)

    if not count(update) and (step := remedies.leave_out(update, count)):
        return step
    return (
        "Pass more --devices, a smaller model, a smaller --max-response-tokens, a larger --memory-share or another "
        "--generation-tp."
    )


def _engine_options(max_num_seqs: int, memory_share: float, tp: int | None) -> EngineOptions:
    """The settings of the inference engine. Raises `BadInput` for values out of range."""
    if not 1 <= max_num_seqs <= MOST_SIMULATED:
        raise BadInput(
            f"--max-num-seqs {max_num_seqs:,} is not between 1 and {MOST_SIMULATED:,}.",
            f"Pass the engine's limit of concurrent requests; default: {MAX_NUM_SEQS:,}.",
        )
    if not 0 < memory_share <= 1:
        raise BadInput(
            f"--memory-share {memory_share:g} must be more than 0 and at most 1.",
            f"Pass the share of the device memory for weights and KV cache; default: {MEMORY_SHARE}.",
        )
    limits.check_value("--generation-tp", tp or 0, limits.DEVICES)
    return EngineOptions(max_num_seqs=max_num_seqs, memory_share=memory_share, tp=tp or 0)


def require_decoder(model: Model | VisionModel) -> Model:
    """The model. Raises `BadInput` unless it is a decoder whose layers all have attention."""
    if not isinstance(model, Model):
        raise BadInput("Responses are generated by decoders only, but this is a model of images.", "Pass a decoder.")
    if model.hybrid_pattern:
        raise BadInput(
            f"{model.name} has state-space layers, whose generation is not predicted.",
            "Pass a model whose layers all have attention.",
        )
    return model


def _check_split(machine: Machine, ranks: int, generation_ranks: int) -> None:
    """Raises `BadInput` if the requested generation ranks are not whole nodes that leave some for training."""
    per_node, per_device = machine.ranks_per_node, machine.device.ranks
    if not generation_ranks or (
        ranks % per_node == generation_ranks % per_node == 0 and per_node <= generation_ranks <= ranks - per_node
    ):
        return
    least, most = machine.per_node, (ranks - per_node) // per_device
    if cluster_size.max_ranks(machine) < 2 * per_node:
        next_step = "Leave out --generation-devices: the colocated mode is planned for one node."
    elif ranks % per_node or most < least:
        next_step = (
            f"Pass --devices with a multiple of {least:,} from {2 * least:,} up, or leave out --generation-devices for "
            "the colocated mode."
        )
    elif most == least:
        next_step = f"Pass --generation-devices {least:,}."
    else:
        next_step = f"Pass --generation-devices with a multiple of {least:,} from {least:,} to {most:,}."
    raise BadInput(
        f"--generation-devices {generation_ranks // per_device:,} of {counted(ranks // per_device, 'device')}: the "
        f"disaggregated modes need whole nodes of {counted(least, 'device')}, at least one for generation and one for "
        "training.",
        next_step,
    )


def _colocated(planner: StepPlanner, machine: Machine) -> tuple[RolloutMode, ...]:
    """The colocated mode, with a reason if it does not fit."""
    try:
        return (_describe(planner, machine, planner.colocated()),)
    except BadJob as error:
        return (RolloutMode(name="colocated", reason=error.message),)


def _disaggregated(planner: StepPlanner, machine: Machine, generation_ranks: int) -> tuple[RolloutMode, ...]:
    """The disaggregated modes, with a reason if they do not fit. `generation_ranks`: 0 for the fastest split."""
    ranks, per_node = planner.wanted.devices, machine.ranks_per_node
    names: tuple[ModeName, ...] = ("disaggregated", "one-step-off")
    if ranks % per_node or ranks < 2 * per_node:
        devices = ranks // machine.device.ranks
        reason = (
            f"{counted(devices, 'device')} {'is' if devices == 1 else 'are'} not two or more whole nodes of "
            f"{machine.per_node}, which generation and training would divide."
        )
        return tuple(RolloutMode(name=name, reason=reason) for name in names)
    try:
        steps = planner.disaggregated(generation_ranks) if generation_ranks else planner.best_splits()
    except BadJob as error:
        return tuple(RolloutMode(name=name, reason=error.message) for name in names)
    return tuple(_describe(planner, machine, step) for step in steps)


def _describe(planner: StepPlanner, machine: Machine, step: RolloutStep) -> RolloutMode:
    """A planned step as plain data."""
    low, high = STEP_INTERVAL.bounds(step.wall_ns)
    generation, training, per_device = step.generation, step.training, machine.device.ranks
    job = training.cost.plan.job
    return RolloutMode(
        name=step.mode,
        step_ns=step.wall_ns,
        low_ns=low,
        high_ns=high,
        parts=tuple(RolloutPart(name=part.name, ns=part.ns, hidden_ns=part.hidden_ns) for part in step.parts),
        generation=GenerationPlan(
            devices=step.generation_ranks // per_device, tp=generation.tp, replicas=generation.replicas,
            requests=generation.requests, concurrent=generation.simulated.most_running,
            mean_concurrent=generation.simulated.mean_running, prefill_ns=round(generation.prefill_s * 1e9),
            tail_ns=round(generation.tail_s * 1e9), weight_bytes=round(generation.weight_bytes),
            cache_bytes=round(generation.cache_bytes), capacity_tokens=generation.capacity,
        ),
        training=TrainingPlan(
            devices=step.training_ranks // per_device, job=job, layout=name_layout(job), updates=training.updates,
            update_ns=round(training.update_ns), rows=training.rows, row_tokens=training.row_tokens,
            reserved_bytes=training.cost.reserved, state_bytes=training.state_bytes,
        ),
        offloaded_bytes=step.offloaded_bytes,
        tokens_per_s=planner.workload.tokens / (step.wall_ns / 1e9),
        busy_share=step.busy_share,
    )  # fmt: skip
