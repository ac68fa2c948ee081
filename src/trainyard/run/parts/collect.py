"""Collects the parts of a job at its end: through a shared folder or URL, or by the network to rank 0's node.

The node with rank 0 joins; the others send their part and end. Whatever fails, each node keeps its part on its disk.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from trainyard.errors import BadFile, BadInput
from trainyard.run.parts import archive, network
from trainyard.run.parts.part import Part, joined_run_id
from trainyard.store.disk_space import writing
from trainyard.store.exchange.remote_store import Remote
from trainyard.units import counted, show_ranks, show_size, show_time

TIMEOUT = "TRAINYARD_COLLECT_S"
"""Environment variable: seconds that the node with rank 0 waits for the other parts, and the others for that node."""
_DEFAULT_TIMEOUT_S, _POLL_S = 120.0, 0.5
_PACKED_NAME = re.compile(r"parts/rank\d{1,8}-[0-9a-f]{8}\.part\Z")


def timeout_s() -> float:
    """$TRAINYARD_COLLECT_S, or 120. Raises `BadInput` for anything but a number of seconds."""
    text = os.environ.get(TIMEOUT, "")
    if not text:
        return _DEFAULT_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86_400:
        raise BadInput(f"{TIMEOUT}={text!r} is not a number of seconds up to 86,400.")
    return seconds


def check_location(location: str) -> None:
    """Creates the folder at which parts are collected, and checks that it can be written, so that the job does not
    start in vain. Nothing is checked for a URL, nor for an empty location. Raises `PlaceUnwritable`."""
    if not location or "://" in location:
        return
    folder = Path(location)
    with writing(folder, next_step="Pass --collect with a folder that all nodes can write to."):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


def send_part(folder: Path, part: Part, location: str, collector: str, say: Callable[[str], None]) -> None:
    """Pack a node's part and send it to where the node with rank 0 collects.

    `folder`: the part's run folder; `location`: folder or URL, empty for the network; `collector`: as in `RankRecord`,
    for the network. Raises `RemoteFailed` and the errors of `Remote` if it cannot be sent.
    """
    start = time.perf_counter_ns()
    data = archive.pack(folder, part.ranks)
    if location:
        id, name = joined_run_id(part.job_id), f"parts/rank{part.ranks[0]}-{part.run}.part"
        remote = Remote(location)
        remote.write(id, name, data)
        target = remote.path(id, name)
    else:
        network.send(collector, data, timeout_s())
        target = "the node of rank 0"
    seconds = show_time(time.perf_counter_ns() - start)
    say(f"sent {show_ranks(part.ranks)} to {target}: {show_size(len(data))} in {seconds}")


def receive_parts(
    part: Part,
    location: str,
    receiver: network.Receiver,
    into: Path,
    say: Callable[[str], None],
    limit_s: float,
) -> list[Path]:
    """Wait for the other parts of the job, on the node with rank 0; return the folders in `into` to which they were
    unpacked.

    Ends when no rank is missing, or after `limit_s` seconds. `part`: of this node; `location`: folder or URL, empty for
    the network; `receiver`: of this node. Archives that are damaged, hostile or of another job are reported and left
    out.
    """
    start = time.perf_counter_ns()
    missing, folders, total = set(range(part.world_size)) - set(part.ranks), list[Path](), 0
    if not missing:
        return []
    say(f"waiting up to {limit_s:g} s for the parts of {show_ranks(sorted(missing))}")
    archives = _poll(Remote(location), part, limit_s, say) if location else receiver.receive(limit_s)
    for data in archives:
        target = into / str(len(folders))
        try:
            other = archive.unpack(data, target, f"a part of {show_size(len(data))}")
        except (BadFile, BadInput) as error:
            say(f"left out: {error}")
            continue
        if reason := _mismatch(part, other, missing):
            say(f"left out: {reason}")
            target.rename(into / f"refused-{len(list(into.iterdir()))}")
            continue
        folders.append(target)
        missing -= set(other.ranks)
        total += len(data)
        if not missing:
            break
    seconds = show_time(time.perf_counter_ns() - start)
    say(f"collected {counted(len(folders), 'part')}, {show_size(total)} in {seconds}")
    return folders


def _mismatch(part: Part, other: Part, missing: set[int]) -> str:
    """Why a part that arrived is not joined with this node's, as a sentence; empty if it is. `missing`: ranks that have
    not arrived."""
    shown = f"the part of {show_ranks(other.ranks)} on node {other.node}"
    if other.job_id != part.job_id or other.world_size != part.world_size:
        return (
            f"{shown} is of job {other.job_id} of {other.world_size:,} ranks, not {part.job_id} of {part.world_size:,}."
        )
    if set(other.ranks) - missing:
        return f"{shown} has arrived already, or is of another job with this name."
    return ""


def _poll(remote: Remote, part: Part, limit_s: float, say: Callable[[str], None]) -> Iterator[bytes]:
    """Yield the archives of the job that other nodes write to the shared location, until `limit_s` seconds have
    passed."""
    id, until, seen = joined_run_id(part.job_id), time.monotonic() + limit_s, set[str]()
    while True:
        sizes = remote.sizes(id)
        for name in sorted(name for name in sizes if _PACKED_NAME.match(name) and name not in seen):
            seen.add(name)
            try:
                data = remote.read(id, name, archive.MAX_PACKED_BYTES)
            except BadFile as error:
                say(f"left out: {error}")
                continue
            if data is not None:
                yield data
        if time.monotonic() >= until:
            return
        time.sleep(_POLL_S)
