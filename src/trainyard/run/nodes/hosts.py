"""The hosts of a job: where its nodes meet, and the folder that they share."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.errors import BadInput, EnvironmentFailed
from trainyard.run.parts.part import joined_run_id
from trainyard.store.disk_space import write_whole, writing
from trainyard.train.checkpoint import checkpoint_store

MARK = "shared-folder.mark"
"""File in the run's folder and in its shared folder, with the same random text: proof that a folder is shared."""
_MARK_WAIT_S = 60.0
"""Longest time until a file of another host is visible in a shared folder, as file systems cache names."""
_POLL_S = 0.5


@dataclass(frozen=True)
class Hosts:
    """The hosts of a job.

    `job_id`: id of the job, the same on all nodes and in later attempts; `nodes`: number of nodes; `host`, `port`: the
    address of the head; `token`: known to the job's processes only; the head's supervisor reads it from the environment
    (`launch_spec.TOKEN`). `shared`: a folder that all nodes share, for
    checkpoints and parts; None if there is none. `gather_s`: seconds to wait for nodes.
    """

    job_id: str
    nodes: int
    host: str
    port: int
    token: str = field(repr=False)
    shared: Path | None = None
    gather_s: float = 300.0

    @property
    def run_id(self) -> str:
        """The id of the run, which follows from the job's id."""
        return joined_run_id(self.job_id)


def parse_address(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT` or `[IPV6]:PORT`. Raises `BadInput`."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadInput(
            f"{text!r} is not an address: HOST:PORT with a port from 1 to 65535.", "For example node0:29400."
        )
    return host, int(port)


def mark_shared(folder: Path, shared: Path | None) -> None:
    """Prepare the shared folder of a run on the head, and let the run's checkpoints be stored there.

    `folder`: the run's; `shared`: the job's, None if there is none. Raises the errors of `disk_space.writing`.
    """
    if shared is None:
        return
    own_shared = shared / folder.name
    text = secrets.token_hex(16)
    with writing(own_shared):
        own_shared.mkdir(parents=True, exist_ok=True)
    write_whole(own_shared / MARK, text.encode())
    write_whole(folder / MARK, text.encode())
    link_checkpoints(folder, shared)


def link_checkpoints(folder: Path, shared: Path) -> None:
    """Let the checkpoints of the run in `folder` be those of the folder `shared`. Raises the errors of
    `disk_space.writing`, and `BadInput` if the run has some of its own."""
    link, target = folder / checkpoint_store.FOLDER, shared / folder.name / checkpoint_store.FOLDER
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
    if link.is_symlink():
        link.unlink()
    elif link.exists():
        raise BadInput(
            f"{link} has checkpoints that are not in the shared folder {shared}.",
            f"Move them to {target}, or omit --shared.",
        )
    with writing(link):
        link.symlink_to(target.absolute(), target_is_directory=True)


def check_shared(folder: Path, shared: Path | None, mark: str | None) -> None:
    """Check, on a node other than the head, that `shared` is the head's shared folder, and use its checkpoints.

    `folder`: the run's on this host; `mark`: the contents of the head's mark, None if the head has no shared folder.
    Waits up to a minute for the mark to appear. Raises `EnvironmentFailed`.
    """
    if mark is None:
        return
    if shared is None:
        raise EnvironmentFailed(
            "the head has a shared folder, but this node was started without one.", "Pass --shared DIR on all nodes."
        )
    path, deadline_s = shared / folder.name / MARK, time.monotonic() + _MARK_WAIT_S
    while _read(path) != mark:
        if time.monotonic() >= deadline_s:
            raise EnvironmentFailed(
                f"{shared} on this host is not the shared folder of the head: {path} is missing or differs.",
                "Pass a folder on a file system that all nodes mount.",
            )
        time.sleep(_POLL_S)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise EnvironmentFailed(f"{path.parent} cannot be written on this host.", "Check the permissions of --shared.")
    link_checkpoints(folder, shared)


def _read(path: Path) -> str:
    """The contents of a file; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
