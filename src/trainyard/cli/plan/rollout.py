"""`trainyard plan rollout MODEL`: a step of reinforcement learning, with generation and training on one cluster."""

from __future__ import annotations

from typing import Literal

import click

from trainyard.cli.plan.number_types import Count, Number, WholeNumber
from trainyard.cli.plan.plan_options import DEVICES, FIX, MACHINE
from trainyard.cli.support.checked_options import CheckedOptions
from trainyard.cli.support.pipes import InputFile
from trainyard.predict.post_training.rollout_defaults import LENGTH_CV, MAX_NUM_SEQS, MEMORY_SHARE


@click.command(cls=CheckedOptions)
@click.argument("model", type=InputFile())
@MACHINE
@DEVICES
@click.option("--prompts", type=WholeNumber(), required=True, metavar="N", help="Prompts per step.")
@click.option("--samples", type=WholeNumber(), required=True, metavar="N", help="Responses per prompt (group size).")
@click.option("--prompt-tokens", type=WholeNumber(), required=True, metavar="N", help="Tokens of a prompt.")
@click.option("--response-tokens", type=WholeNumber(), required=True, metavar="N", help="Mean tokens of a response.")
@click.option("--max-response-tokens", type=WholeNumber(), metavar="N",
              help="Length at which a response is cut off; default: twice the mean.")  # fmt: skip
@click.option("--length-cv", type=Number(), default=LENGTH_CV, metavar="RATIO",
              help="Standard deviation of response lengths over their mean; default: 0.6, assumed.")  # fmt: skip
@click.option("--train-batch", type=Count(), metavar="N",
              help="Sequences per optimizer update (mini-batch); default: all of the step.")  # fmt: skip
@click.option("--old-log-probs/--no-old-log-probs", default=True,
              help="Compute log-probabilities of the policy that generated; default: yes.")  # fmt: skip
@click.option("--reference/--no-reference", default=True,
              help="Compute those of a frozen reference model; default: yes.")  # fmt: skip
@click.option("--critic", is_flag=True, help="Apply and train a value model as large as the policy (PPO).")
@click.option("--max-num-seqs", type=WholeNumber(), default=MAX_NUM_SEQS, metavar="N",
              help="Most concurrent requests of a replica; default: 1,024.")  # fmt: skip
@click.option("--memory-share", type=Number(), default=MEMORY_SHARE, metavar="SHARE",
              help="Share of the device memory for weights and KV cache in generation; default: 0.9.")  # fmt: skip
@click.option("--generation-tp", type=Count(), metavar="N",
              help="Tensor parallelism of generation; default: the fastest.")  # fmt: skip
@click.option("--generation-devices", type=Count(), metavar="N",
              help="Devices that generate in the disaggregated modes; default: the fastest split.")  # fmt: skip
@click.option("--for", "framework", default="", metavar="NAME",
              help="Framework of training: megatron (default), torchtitan, deepspeed, trainyard.")  # fmt: skip
@FIX
@click.option("--full", is_flag=True, help="Print all assumptions too.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(
    model: str, machine: str, devices: int | None, prompts: int, samples: int, prompt_tokens: int,
    response_tokens: int, max_response_tokens: int | None, length_cv: float, train_batch: int | None,
    old_log_probs: bool, reference: bool, critic: bool, max_num_seqs: int, memory_share: float,
    generation_tp: int | None, generation_devices: int | None,
    framework: Literal["", "trainyard", "megatron", "torchtitan", "deepspeed"], fix: tuple[str, ...], full: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Plan a step of reinforcement learning (GRPO, PPO) of MODEL: generation and training on one cluster.

    Generation is bound by memory bandwidth and the KV cache; training is searched as by plan, with --for and --fix.
    Modes: colocated (all devices generate, then all train), disaggregated (some nodes generate, the others train), and
    disaggregated one step off (both at the same time; training uses the responses of the previous weights). The parts
    of a step sum to it. Nothing is calibrated: see the printed limits.

    Exit codes: 0 a mode fits the machine, 2 bad input, or none fits.
    """
    from trainyard import api
    from trainyard.cli.plan.print_rollout import print_rollout
    from trainyard.cli.support.output import busy

    result = api.plan_rollout(
        model, machine=machine, devices=devices, prompts=prompts, samples=samples, prompt_tokens=prompt_tokens,
        response_tokens=response_tokens, max_response_tokens=max_response_tokens, length_cv=length_cv,
        train_batch=train_batch, old_log_probs=old_log_probs, reference=reference, critic=critic,
        max_num_seqs=max_num_seqs, memory_share=memory_share, generation_tp=generation_tp,
        generation_devices=generation_devices, framework=framework, fix=fix, progress=busy,
    )  # fmt: skip
    print_rollout(result, full=full, as_json=as_json)
