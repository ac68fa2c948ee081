"""Commands that start a written launch configuration on its framework, and compare its measurement with the plan."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from math import ceil

from trainyard.job import Job
from trainyard.predict.configs.megatron import megatron_write

SUFFIXES = {"trainyard": ".toml", "megatron": ".args", "torchtitan": ".toml", "deepspeed": ".json"}
"""Framework -> suffix of its launch configuration."""
PLAN_SUFFIX = ".plan.json"
"""Added to the name of a candidate for the file with its plan alone."""


def launch_commands(framework: str, job: Job, name: str, file: str, ranks_per_node: int) -> tuple[str, ...]:
    """The command that starts the configuration `file` of `job` and, on another framework than ours, the one that
    compares traces of it with its plan. `name`: the tag of the run; `ranks_per_node`: of the machine."""
    nodes = ceil(job.layout.ranks / ranks_per_node)
    ranks = min(job.layout.ranks, ranks_per_node)
    path = shlex.quote(file)
    if framework == "trainyard":
        if nodes == 1:
            return (f"trainyard run {path} --tag {name}",)
        return (f"trainyard launch {path} --on slurm --nodes {nodes} --tag {name}",)
    torchrun = f"torchrun --nnodes {nodes} --nproc-per-node {ranks}"
    start = {
        "megatron": f"grep -v '^#' {path} | xargs {torchrun} {megatron_write.training_program(job)}",
        "torchtitan": f"{torchrun} -m torchtitan.train --job.config_file {path}",
        "deepspeed": f"deepspeed --num_nodes {nodes} --num_gpus {ranks} train.py --deepspeed_config {path}",
    }[framework]
    plan = shlex.quote(file.removesuffix(SUFFIXES[framework]) + PLAN_SUFFIX)
    return start, f"trainyard diff {plan} TRACES"


def fit_command(names: Sequence[str], machine: str) -> str:
    """The command that fits a machine to the runs `names`. `machine`: a name or a file."""
    return f"trainyard probe fit {' '.join(names)} --machine {shlex.quote(machine)} --out fitted.toml"


def explain_feedback(framework: str) -> tuple[str, ...]:
    """Sentences on how measurements of the candidates return to the planner."""
    if framework == "trainyard":
        return ("When all have run, fit the constants of the machine to them:",)
    return (
        *(
            ("train.py is your own program: the notes list the settings that it has to make.",)
            * (framework == "deepspeed")
        ),
        "TRACES are files of the framework's profiler: `trainyard trace TRACES` books their time, and `trainyard diff` "
        "compares it with the plan, account by account. Or let trainyard time and profile the steps: put "
        "`trainyard run --tag NAME --` before the program that starts the ranks, and compare NAME.",
        "`trainyard probe fit` takes runs of trainyard's own jobs only, so these measurements cannot be fitted.",
    )
