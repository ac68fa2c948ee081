"""A node of a job other than the head: prepares this host for its ranks, and packs its part of the run at the end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from trainyard import job_file, plugins
from trainyard.errors import EnvironmentFailed
from trainyard.formats.atomic import replacing_own
from trainyard.launch.local import check_torch
from trainyard.launch.supervisor.messages import JobStart
from trainyard.launch.supervisor.part_transfer import FOLDER
from trainyard.run.local.host_devices import capacity, find_devices
from trainyard.run.local.rank_environment import PRELOAD, environment, variable_values
from trainyard.run.local.usable_devices import check_usable
from trainyard.run.nodes.hosts import MARK, Hosts, check_shared
from trainyard.run.nodes.reduce_rank_traces import reduce_rank_traces
from trainyard.run.parts.archive import pack, rank_of
from trainyard.run.parts.part import Part, write_part
from trainyard.run.session import Reduce
from trainyard.store.disk_space import write_whole, writing
from trainyard.store.run_folder import PARTS
from trainyard.store.store import now


def run(hosts: Hosts, index: int, folder: Path, say: Callable[[str], object], reduce: Reduce) -> int:
    """Take part in a job as node `index`, 1 and up, until it is over; return its exit code.

    `folder`: this node's, for its share of runs; `say`: prints a line; `reduce`: as in `Session`. Raises
    `MissingLibrary` without torch, and the errors of `remote.run`.
    """
    check_torch()
    # Without it torch writes a C++ stack trace for each lost connection, which this node reports itself.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from trainyard.launch.agents import remote
    from trainyard.launch.agents.preload import preload

    with writing(folder, next_step="Pass --folder with a folder that you can write to."):
        folder.mkdir(parents=True, exist_ok=True)
    preload(PRELOAD)  # once, for all agents that are forked from here
    node = remote.Node(
        index=index,
        host=hosts.host,
        port=hosts.port,
        folder=folder,
        job_id=hosts.job_id,
        token=hosts.token,
        wait_s=hosts.gather_s,
        prepare=partial(_prepare, hosts, index, folder),
        pack=partial(_pack, hosts, index, reduce, say),
        say=say,
    )
    return remote.run(node)


def _prepare(hosts: Hosts, index: int, root: Path, start: JobStart, own_address: str) -> tuple[Mapping[str, str], Path]:
    """Prepare this host for its ranks; return variables for their environment (name -> value) and the run's folder.

    `index`: of this node; `root`: folder of its runs; `own_address`: of this host in the connection to the head. Raises
    `BadJob` if this host has too few devices, and the errors of `check_shared` and `check_usable`.
    """
    folder = root / start.run
    with writing(folder):
        for name in PARTS:
            (folder / name).mkdir(parents=True, exist_ok=True)
        _write_files(folder, start.files)
    check_shared(folder, hosts.shared, start.files.get(MARK))
    vendors = plugins.load_all("vendors")
    job = job_file.load(folder / "job.toml")
    devices = find_devices(vendors)
    check_usable(devices, start.spec.node_ranks(index), job.recipe.dtype, "$.recipe")
    job.check_node_fits(index, capacity(devices), f"this host ({socket.gethostname()}, {devices[0].name})")
    variables = environment(start.spec.node_ranks(index), vendors, devices[0].vendor, own_address)
    return variable_values(variables), folder


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files of a run, name -> contents, into its folder on this host. Raises `EnvironmentFailed` for a name
    that leads out of the folder."""
    for name, text in files.items():
        path = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise EnvironmentFailed(f"{name!r} leads out of the run's folder.", "Use the same version on all nodes.")
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing_own(path) as part:
            part.write_text(text, "utf-8")


def _pack(hosts: Hosts, index: int, reduce: Reduce, say: Callable[[str], object], folder: Path) -> tuple[bytes, str]:
    """Reduce the traces of the run in `folder` and pack this node's part: its archive, and its name in the shared
    folder if it was left there. Empty for a node that ran no rank."""
    ranks = sorted({rank for path in folder.glob("*/rank*") if (rank := rank_of(path.name)) is not None})
    if not ranks:
        return b"", ""
    job = job_file.load(folder / "job.toml")
    reduce_rank_traces(folder, hosts.job_id, job.layout.ranks, reduce, say)
    part = Part(
        job_id=hosts.job_id,
        node=socket.gethostname(),
        ranks=tuple(ranks),
        world_size=job.layout.ranks,
        started=now(),
        run=folder.name,
    )
    write_part(folder, part)
    archive = pack(folder, ranks)
    if hosts.shared is None:
        return archive, ""
    path = hosts.shared / folder.name / FOLDER / f"node{index}.part"
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, archive)
    return archive, path.name
