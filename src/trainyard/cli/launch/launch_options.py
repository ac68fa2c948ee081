"""Options of `trainyard launch` and `trainyard launch render`. A function with (context, parameter, value) is click's
callback of an option: it checks the value and returns the value that the command gets."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainyard.cli.support.pipes import InputFile
from trainyard.errors import BadInput

if TYPE_CHECKING:
    from trainyard.launch_request import Component
    from trainyard.run.launches.launch_job import LaunchOptions

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_COMPONENT = re.compile(r"(\d+)x(\d+)((?:,[a-z]+=[^,]+)*)\Z")

JOB = click.argument("job", metavar="JOB.toml", type=InputFile())
LAUNCH = click.argument("launch", metavar="LAUNCH")
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def parse_duration(text: str) -> int:
    """Seconds of a duration such as `90m`, `4h`, `1d12h` or `3600`. Raises `BadInput` for other text."""
    parts = re.findall(r"(\d+)([smhd]?)", text.strip())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        raise BadInput(f"{text!r} is not a duration.", "Write 90m, 4h, 1d12h or a number of seconds.")
    return sum(int(number[:9]) * _UNITS_S[unit or "s"] for number, unit in parts)


def _duration(context: click.Context, parameter: click.Parameter, text: str | None) -> int:
    """Seconds of a duration; 0 if it was not given."""
    return parse_duration(text) if text else 0


def _variables(context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> dict[str, str]:
    """Name -> value of variables that are written NAME=VALUE."""
    for word in words:
        if "=" not in word:
            raise BadInput(f"{word!r} is not NAME=VALUE.", "Write --env NCCL_DEBUG=INFO.")
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _components(context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> tuple[Component, ...]:
    """Components that are written NODESxRANKS[,constraint=X][,partition=X]."""
    from trainyard.launch_request import Component

    components: list[Component] = []
    for word in words:
        match = _COMPONENT.match(word)
        options: dict[str, Any] = dict(part.split("=", 1) for part in match[3].split(",")[1:]) if match else {}
        if match is None or options.keys() - {"constraint", "partition"}:
            raise BadInput(
                f"{word!r} is not a component.",
                "Write NODESxRANKS_PER_NODE, such as 2x8,constraint=h100,partition=gpu.",
            )
        components.append(Component(nodes=int(match[1][:9]), ranks_per_node=int(match[2][:9]), **options))
    return tuple(components)


_OPTIONS = (
    click.option("--on", required=True, metavar="LAUNCHER", help="Launcher: slurm, ssh, ray or k8s."),
    click.option("--nodes", type=click.IntRange(min=1), help="Number of nodes. Default: as many as the ranks need."),
    click.option(
        "--component",
        "components",
        multiple=True,
        metavar="NODESxRANKS[,...]",
        callback=_components,
        help="Nodes of a kind: 2x8,constraint=h100,partition=gpu; repeatable, in place of --nodes.",
    ),
    click.option("--accelerators", type=click.IntRange(min=0), help="Accelerators to request on each node."),
    click.option(
        "--time-limit", callback=_duration, metavar="TIME", help="Longest duration of the job: 90m, 4h, 1d12h."
    ),
    click.option(
        "--notice",
        callback=_duration,
        default="2m",
        show_default=True,
        metavar="TIME",
        help="How long before the limit the job is asked to save and leave; 0 for never.",
    ),
    click.option("--partition", default="", help="Partition of the scheduler; the queue of Kueue (k8s)."),
    click.option("--account", default="", help="Account that the job is charged to."),
    click.option("--qos", default="", help="Quality of service."),
    click.option("--constraint", default="", help="Features that the nodes must have."),
    click.option("--exclusive/--no-exclusive", default=True, show_default=True, help="Use whole nodes."),
    click.option(
        "--requeue/--no-requeue", default=True, show_default=True, help="Start again after a lost node or notice."
    ),
    click.option("--array", default="", metavar="INDICES", help="Run the job once for each index: 0-3 (slurm)."),
    click.option("--host", "hosts", multiple=True, metavar="[USER@]HOST", help="A host to run on; repeatable (ssh)."),
    click.option("--hostfile", type=InputFile(Path), help="File with one host per line (ssh)."),
    click.option("--image", default="", help="Container image in which each node's processes run."),
    click.option(
        "--container",
        "runtime",
        type=click.Choice(["pyxis", "apptainer"]),
        default="pyxis",
        show_default=True,
        help="What runs the container (slurm).",
    ),
    click.option("--mount", "mounts", multiple=True, metavar="HOST:INSIDE", help="Folder to mount; repeatable."),
    click.option(
        "--env", "variables", multiple=True, metavar="NAME=VALUE", callback=_variables, help="A variable; repeatable."
    ),
    click.option(
        "--option", "further", multiple=True, metavar="NAME=VALUE", callback=_variables, help="Launcher's own."
    ),
    click.option(
        "--gather",
        callback=_duration,
        metavar="TIME",
        help="How long the nodes wait for each other. Default: 30m with --image, else 5m.",
    ),
    click.option(
        "--fabric",
        type=click.Choice(["ib", "roce", "efa", "slingshot", "none"]),
        default=None,
        help="Network between the hosts. Default: that of the job's machine, if it has no other.",
    ),
    click.option("--port", type=click.IntRange(1, 65535), help="Port at which the nodes meet."),
    click.option("--shared-folder", default="", help="Folder that all nodes share, for checkpoints."),
    click.option("--node-folder", default="", help="Folder on each node for its files."),
    click.option(
        "--python",
        default="",
        help="Python on the nodes. Default: this one; python3 in a container, that of Ray's workers.",
    ),
    click.option("--tag", default="", help="Name of the run."),
)


def launch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options that describe a launch; `options_of` builds `LaunchOptions` of them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def options_of(given: dict[str, Any]) -> LaunchOptions:
    """The options of a launch. `given`: name of a command's parameter -> its value."""
    from trainyard.launch_request import Container, SchedulerOptions
    from trainyard.run.launches.launch_job import LaunchOptions

    hosts = (*given["hosts"], *(read_hosts(given["hostfile"]) if given["hostfile"] else ()))
    scheduler = SchedulerOptions(
        partition=given["partition"], account=given["account"], qos=given["qos"], constraint=given["constraint"],
        time_limit_s=given["time_limit"], notice_s=given["notice"], exclusive=given["exclusive"],
        requeue=given["requeue"], array=given["array"], hosts=hosts, options=given["further"],
    )  # fmt: skip
    container = None
    if given["image"]:
        container = Container(image=given["image"], runtime=given["runtime"], mounts=given["mounts"])
    return LaunchOptions(
        nodes=given["nodes"] or len(hosts), components=given["components"], scheduler=scheduler,
        accelerators_per_node=given["accelerators"], container=container, environment=given["variables"],
        port=given["port"], shared_folder=given["shared_folder"], node_folder=given["node_folder"],
        python=given["python"], tag=given["tag"], gather_s=given["gather"], fabric=given["fabric"] or "",
    )  # fmt: skip


def read_hosts(path: Path) -> tuple[str, ...]:
    """The hosts in a hostfile: the first word of each line; `#` begins a comment. Raises `BadInput` for a file without
    hosts, `BadFile` for a path that cannot be read."""
    from trainyard.formats.regular_files import read_bytes

    lines = [line.partition("#")[0].split() for line in read_bytes(path).decode("utf-8", "replace").splitlines()]
    hosts = tuple(words[0] for words in lines if words)
    if not hosts:
        raise BadInput(f"{path} names no hosts.", "Write one host per line.")
    return hosts
