"""Checks of a launch request: names, paths and variables that go into files and command lines of a scheduler."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence

from trainyard.errors import BadInput
from trainyard.launch_request import Component, LaunchRequest, SchedulerOptions
from trainyard.redact import is_secret, redact
from trainyard.units import counted

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}\Z")
_EXPRESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+=/&|()*,:\[\]-]{0,255}\Z")
_INDICES = re.compile(r"[0-9][0-9,:%-]{0,127}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_IMAGE = re.compile(r"[A-Za-z0-9/~.][A-Za-z0-9/~._:@#+-]{0,511}\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_GIVEN: Mapping[str, Callable[[SchedulerOptions], object]] = {
    "--account": lambda options: options.account,
    "--array": lambda options: options.array,
    "--constraint": lambda options: options.constraint,
    "--host": lambda options: options.hosts,
    "--partition": lambda options: options.partition,
    "--qos": lambda options: options.qos,
    "--time-limit": lambda options: options.time_limit_s,
}
"""Option of `trainyard launch` -> its value in a request, which is false if it is not given."""


def check_request(request: LaunchRequest) -> None:
    """Raises `BadInput` for a request with a name, path or variable that a scheduler would not take as it is, with a
    secret in a variable, or whose nodes do not have the job's ranks."""
    check_name(request.name, "job name")
    options = request.scheduler
    for value, kind in ((options.partition, "partition"), (options.account, "account"), (options.qos, "QOS")):
        if value:
            _check(_NAME, value.replace(",", ""), kind, "letters, digits and . _ @ + -")
    constraints = [options.constraint, *(component.constraint for component in request.components)]
    for value in filter(None, constraints):
        _check(_EXPRESSION, value, "constraint", "letters, digits and . _ @ + = / - & | ( ) * , : [ ]")
    for value in filter(None, (component.partition for component in request.components)):
        _check(_NAME, value.replace(",", ""), "partition", "letters, digits and . _ @ + -")
    if options.array:
        _check(_INDICES, options.array, "list of array indices", "numbers, such as 0-3, 1,5 or 0-7%2")
    for name in options.hosts:
        check_name(name.rpartition("@")[2], "host name")
    for path in (request.folder, request.node_folder, request.shared_folder, *request.command):
        if _CONTROL.search(path):
            raise BadInput(f"{path!r} contains a control character.", "Use a path without line breaks and tabs.")
    if request.container:
        _check(_IMAGE, request.container.image, "container image", "letters, digits and / ~ . _ : @ # + -")
        for mount in request.container.mounts:
            if _CONTROL.search(mount) or not re.fullmatch(r"/[^:,]*(:/[^:,]*(:[a-z+,]+)?)?", mount):
                raise BadInput(f"the container mount {mount!r} is not HOST_PATH:CONTAINER_PATH.", "Use absolute paths.")
    for name, variable in request.environment.items():
        check_variable(name, variable.value)
    check_nodes(request.components, request.job.layout.ranks)


def check_equal_nodes(request: LaunchRequest, launcher: str) -> None:
    """Raises `BadInput` if the nodes have different numbers of ranks, for a launcher whose nodes are all equal.
    `launcher`: its name in messages."""
    if not request.has_equal_nodes:
        counts = ", ".join(str(component.ranks_per_node) for component in request.components)
        raise BadInput(
            f"the nodes have different numbers of ranks ({counts}), but {launcher} starts equal ones.",
            "Use the same number on all nodes, or --on slurm or ssh.",
        )


def check_checkpoint_folder(request: LaunchRequest) -> None:
    """Raises `BadInput` for a job on several nodes that saves checkpoints, but has no folder that the nodes share.

    For launchers whose nodes do not share the launch's folder: the job would be refused when it has begun.
    """
    interval = request.job.checkpoint.interval
    if interval and request.nodes > 1 and not request.shared_folder:
        raise BadInput(
            f"interval = {interval} at $.checkpoint, but the {request.nodes} nodes share no folder for checkpoints.",
            "Pass --shared-folder DIR, a folder that all nodes can write to, or set interval = 0.",
        )


def check_options(request: LaunchRequest, launcher: str, known: Collection[str], lacks: Collection[str]) -> None:
    """Raises `BadInput` for an option that the launcher does not have, and would ignore.

    `launcher`: its name in messages; `known`: names that `--option` can have; `lacks`: options of `trainyard launch`
    that the launcher does not have, of `_GIVEN`.
    """
    options = request.scheduler.options
    if unknown := options.keys() - set(known):
        raise BadInput(f"{launcher} has no option {min(unknown)!r}.", f"It has: {', '.join(sorted(known))}.")
    for flag in lacks:
        if _GIVEN[flag](request.scheduler):
            raise BadInput(f"{launcher} has nothing like {flag}.", f"Omit {flag}.")


def choose_port(id: str) -> int:
    """A port from 20,000 to 29,999 that follows from the id of a launch: jobs on the same hosts rarely collide."""
    return 20000 + zlib.crc32(id.encode()) % 10000


def check_name(name: str, kind: str) -> None:
    """Raises `BadInput` for a name with other characters than letters, digits and . _ @ + -. `kind`: the kind of
    name."""
    _check(_NAME, name, kind, "letters, digits and . _ @ + -")


def check_variable(name: str, value: str) -> None:
    """Raises `BadInput` for an environment variable with an impossible name, a control character, or a secret."""
    if not _VARIABLE.match(name):
        raise BadInput(f"{name!r} is not the name of an environment variable.", "Use letters, digits and _.")
    if _CONTROL.search(value):
        raise BadInput(f"the value of {name} contains a control character.", "Use one line of text.")
    if is_secret(name) or redact(value) != value:
        raise BadInput(
            f"the value of {name} looks like a secret, and would be written into the files of the launch.",
            "Set it in the environment from which you launch (slurm), in the hosts' own environment (ssh), or in a "
            "secret of the cluster (k8s, ray).",
        )


def _check(pattern: re.Pattern[str], value: str, kind: str, allowed: str) -> None:
    if not pattern.match(value):
        raise BadInput(f"{value!r} cannot be a {kind}.", f"Use {allowed}.")


def check_nodes(components: Sequence[Component], ranks: int) -> None:
    """Raises `BadInput` unless the components have nodes and ranks, in total `ranks`: those of the job."""
    if any(component.nodes < 1 or component.ranks_per_node < 1 for component in components):
        raise BadInput("a component of the job has no nodes or no ranks.", "Use at least 1 node with 1 rank.")
    total = sum(component.nodes * component.ranks_per_node for component in components)
    if components and total != ranks:
        terms = " + ".join(
            f"{counted(component.nodes, 'node')} x {counted(component.ranks_per_node, 'rank')}"
            for component in components
        )
        raise BadInput(
            f"the job's layout has {ranks} ranks, but {terms} = {total}.",
            f"Change [layout] to {total} ranks, or the nodes.",
        )
