"""The batch script of a job for Slurm: `#SBATCH` options, variables with their reasons, one task per node by `srun`.

All values from the user are validated (`request_checks.py`) and quoted. The nodes meet at the address by which Slurm
itself reaches the first node, at a port that follows from the job's id, so that jobs on one host do not collide.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from trainyard.errors import BadInput
from trainyard.launch.launch_spec import EXIT_CODE, LEFT
from trainyard.launch.slurm.container_words import command_prefix, srun_options
from trainyard.launch.slurm.further_options import sbatch_lines
from trainyard.launch_request import Component, LaunchRequest, SchedulerOptions

STOP_FILE = "stop"
"""File in the launch's folder that prevents the job from requeueing itself after it has left on request."""
_TASK = 'exec "$@" --folder "$0/node$SLURM_NODEID" --nodes "$SLURM_NNODES" --node "$SLURM_NODEID"'
"""Script of the shell of each task, which knows the index of its node. Its arguments: folder of the nodes, command."""
_MAX_NOTICE_S = 65_535
"""Largest number of seconds that `--signal` takes."""
_CORES = {"cpus-per-task", "cpus-per-gpu"}
_MEMORY = {"mem", "mem-per-cpu", "mem-per-gpu"}
"""Options of sbatch that choose cores and memory; each of a set excludes the others."""


def render_batch_script(request: LaunchRequest) -> str:
    """The text of the batch script.

    Raises `BadInput` for an array of heterogeneous jobs, which Slurm does not have, and for a notice that is not
    shorter than the time limit.
    """
    _check_notice(request.scheduler)
    if request.scheduler.array and len(request.components) > 1:
        raise BadInput("Slurm has no arrays of heterogeneous jobs.", "Launch each element as a job of its own.")
    lines = ["#!/bin/bash", *_options(request), "", *_environment(request), *_folders(request), *_head(request), ""]
    lines += [*_step(request), *_requeue(request)]
    return "\n".join(lines) + "\n"


def _check_notice(options: SchedulerOptions) -> None:
    """Raises `BadInput` for a notice that Slurm cannot give, or that it would give at the start of the job."""
    if options.notice_s > _MAX_NOTICE_S:
        raise BadInput(f"Slurm gives notice at most {_MAX_NOTICE_S} s before the limit.", "Use a shorter --notice.")
    if 0 < options.time_limit_s <= options.notice_s:
        raise BadInput(
            f"the notice of {options.notice_s} s is not shorter than the time limit of {options.time_limit_s} s: the "
            f"job would be asked to leave as soon as it starts.",
            "Use a longer --time-limit or a shorter --notice.",
        )


def _options(request: LaunchRequest) -> Iterator[str]:
    """Yields the `#SBATCH` lines: those of the first component, then those of each further one after `hetjob`."""
    for index, component in enumerate(request.components):
        if index:
            yield "#SBATCH hetjob"
        yield from (f"#SBATCH {option}" for option in _component_options(request, component, index == 0))


def _component_options(request: LaunchRequest, component: Component, is_first: bool) -> Iterator[str]:
    """Yields the sbatch options of a component; those of the whole job only if it is the first."""
    options = request.scheduler
    if is_first:
        log = "slurm-%A_%a.log" if options.array else "slurm-%j.log"
        yield f"--job-name={request.name}"
        yield f'--output="{_slurm_path(request.folder)}/logs/{log}"'
        yield "--open-mode=append"
        if "propagate" not in options.options:
            yield "--propagate=NONE"  # a login node's limits, such as a small one of locked memory, harm RDMA
        yield "--requeue" if options.requeue else "--no-requeue"
        if options.array:
            yield f"--array={options.array}"
    yield f"--nodes={component.nodes}"
    yield "--ntasks-per-node=1"
    for name, value in (
        ("partition", component.partition or options.partition),
        ("account", options.account),
        ("qos", options.qos),
        ("constraint", component.constraint or options.constraint),
    ):
        if value:
            yield f'--{name}="{value}"' if name == "constraint" else f"--{name}={value}"
    if accelerators := component.accelerators_per_node or options.accelerators_per_node:
        yield f"--gpus-per-node={accelerators}"
    if options.exclusive:
        yield "--exclusive"
        if not options.options.keys() & _MEMORY:
            yield "--mem=0"
    if options.time_limit_s:
        yield f"--time={show_limit(options.time_limit_s)}"
        if options.notice_s:
            yield f"--signal=TERM@{options.notice_s}"
    if cpus := _default_cpus(request, component):
        yield f"--cpus-per-task={cpus}"
    yield from sbatch_lines(options.options)
    if is_first and _continues_on_fewer(request):
        yield "--no-kill"


def _environment(request: LaunchRequest) -> Iterator[str]:
    """Yields the variables, each after a comment with its reason. A variable of the user's environment wins."""
    for name, variable in request.environment.items():
        yield f"# {variable.reason}"
        yield f"export {name}=${{{name}-{shlex.quote(variable.value)}}}"
    if request.environment:
        yield ""


def _folders(request: LaunchRequest) -> Iterator[str]:
    """Yields the lines that set the folders of the nodes and of checkpoints, and the id of the job."""
    if request.store:
        yield "# The store of the launch, in which node 0 stores the run."
        yield f"export TRAINYARD_STORE={shlex.quote(request.store)}"
    yield f"node_folder={shlex.quote(request.node_folder or f'{request.folder}/nodes')}"
    yield f"shared_folder={shlex.quote(request.shared_folder or f'{request.folder}/shared')}"
    yield f"id={shlex.quote(request.id)}"
    if request.scheduler.array:
        yield "# Each element of the array is a job of its own, with its own id and folders."
        yield 'node_folder="$node_folder/$SLURM_ARRAY_TASK_ID"'
        yield 'shared_folder="$shared_folder/$SLURM_ARRAY_TASK_ID"'
        yield 'id="$id-$SLURM_ARRAY_TASK_ID"'


def _head(request: LaunchRequest) -> Iterator[str]:
    """Yields the lines that set `head`, the address of the first node as Slurm knows it, and `port`."""
    yield 'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    yield "# The address by which Slurm reaches the node, which also works if the name of the node does not resolve."
    yield r"""head=$(scontrol show node "$first" --oneliner | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')"""
    if request.port is None:
        yield "# Jobs that share a host get different ports."
        yield "port=$((20000 + SLURM_JOB_ID % 10000))"
    else:
        yield f"port={request.port}"


def _step(request: LaunchRequest) -> Iterator[str]:
    """Yields the srun command: one task per node, which adds its own index to the common command line."""
    nodes = _all_nodes(request)
    if request.container and (request.node_folder or request.shared_folder):
        yield "# What is mounted in a container must exist on each node."
        yield f'srun {" ".join(nodes)} mkdir -p -- "$node_folder" "$shared_folder" || exit'
    yield f'exit_code="$node_folder/node0/{EXIT_CODE}"'
    yield 'rm -f -- "$exit_code"'
    yield "# One task per node, which may use all cores that the job has there. If a node is lost, the supervisor"
    yield "# of the job decides whether the job ends."
    log = "node%t-%a.log" if request.scheduler.array else "node%t.log"
    options = [
        *nodes,
        "--export=ALL",  # also if SLURM_EXPORT_ENV=NONE
        "--cpu-bind=none",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--open-mode=append",
        f"--output={shlex.quote(_slurm_path(request.folder))}/logs/{log}",
    ]
    cpus = request.scheduler.options.get("cpus-per-task", "")
    if request.has_equal_nodes:  # otherwise each task gets all cores that the job has on its node
        cpus = cpus or _default_cpus(request, request.components[0])
    if cpus:
        options.append(f"--cpus-per-task={shlex.quote(cpus)}")  # srun does not inherit it from sbatch
    options += map(shlex.quote, srun_options(request))
    yield "srun \\"
    yield from (f"  {option} \\" for option in options)
    yield f'  sh -c {shlex.quote(_TASK)} "$node_folder" \\'
    yield f"  {shlex.join([*command_prefix(request), *request.command, '--job', f'{request.folder}/job.toml'])} \\"
    yield '  --job-id "$id" --shared "$shared_folder" --head "$head:$port"'


def _all_nodes(request: LaunchRequest) -> list[str]:
    """The options of srun for one task on each node of the job."""
    options = ["--ntasks-per-node=1"]
    if len(request.components) > 1:
        options.append(f"--het-group=0-{len(request.components) - 1}")
    if _continues_on_fewer(request):
        options.append("--no-kill")
    return options


def _requeue(request: LaunchRequest) -> Iterator[str]:
    """Yields the end of the script: the exit code of the head, and the requeue of a job that left on notice."""
    yield "code=$?"
    yield "# srun's exit code is the highest of all nodes: that of a killed node would hide the head's."
    yield '[ ! -s "$exit_code" ] || code=$(cat "$exit_code")'
    if request.scheduler.requeue:
        stop = shlex.quote(f"{request.folder}/{STOP_FILE}")
        yield f'if [ "$code" -eq {LEFT} ] && [ ! -e {stop} ]; then'
        yield "  # The job saved its state before its time limit or a preemption: it continues from there."
        if request.scheduler.array:
            yield "  # An element's job id may be that of the whole array."
            yield '  scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"'
        else:
            yield '  scontrol requeue "$SLURM_JOB_ID"'
        yield "fi"
    yield 'exit "$code"'


def _default_cpus(request: LaunchRequest, component: Component) -> str:
    """Number of cores to request for the task of a component's node: one for each rank on shared nodes; empty if the
    nodes are not shared, or if the user chose it."""
    options = request.scheduler
    if options.exclusive or options.options.keys() & _CORES:
        return ""
    return str(component.ranks_per_node)


def _continues_on_fewer(request: LaunchRequest) -> bool:
    """Whether the job may continue after it has lost a node, so that Slurm must not end it."""
    return 0 < request.job.recovery.min_nodes < request.nodes


def _slurm_path(path: str) -> str:
    """A path in which Slurm replaces nothing. Raises `BadInput` for quotes and backslashes, which it interprets."""
    if any(character in path for character in '"\\'):
        raise BadInput(
            f"Slurm cannot write logs into the folder {path!r}.", "Use a path without quotes and backslashes."
        )
    return path.replace("%", "%%")


def show_limit(seconds: int) -> str:
    """A time limit as Slurm writes it, rounded up to minutes: `1-02:30:00` for 95,400 s."""
    minutes = -(-seconds // 60)
    days, minutes = divmod(minutes, 24 * 60)
    return f"{f'{days}-' if days else ''}{minutes // 60:02}:{minutes % 60:02}:00"
