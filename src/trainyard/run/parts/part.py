"""A part: the share of one node in a run of many nodes, described by `part.json` in the node's run folder.

All nodes of a job agree on its `job_id` (`job_member.py`); each stores its own part on its own disk, in a run folder
with an id of its own. `join.py` makes one run of the parts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from trainyard import __version__
from trainyard.errors import BadFile, BadInput, FileTooLarge, described
from trainyard.formats.decoding import UNREADABLE
from trainyard.formats.regular_files import open_regular
from trainyard.limits import DEVICES
from trainyard.redact import redact_json
from trainyard.store.disk_space import write_whole

FILE = "part.json"
SCHEMA = "trainyard/part/1"
MAX_BYTES = 1 << 24
"""Size up to which a `part.json` is read; that of a job of 100,000 ranks has about 5 MB."""
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}\Z")
_RUN_ID = re.compile(r"[0-9a-f]{8}\Z")
_MAX_NODE_NAME = 255


class ClockStamp(msgspec.Struct, frozen=True, kw_only=True):
    """Two clocks of a rank's host, read right after each other. `wall_ns`: ns since the epoch; `monotonic_ns`: ns since
    an arbitrary instant, which differs between hosts."""

    wall_ns: int
    monotonic_ns: int


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The share of one node in a run.

    `job_id`: agreed by all nodes of the job. `node`: the node's host name. `ranks`: the global numbers of its ranks,
    ascending. `world_size`: number of ranks of the job. `started`: when the part began (ISO 8601, UTC). `trainyard`:
    the version that recorded it. `code`: `sha` and `dirty` of the working tree, as in `Provenance`; empty outside of
    git. `run`: id of the part's own run folder. `agreed_by`: how the nodes agreed on `job_id`: `process group`, or the
    names of environment variables. `hosts`: rank -> host name, of ranks of all nodes as far as this node knows them.
    `clocks`: rank -> its host's clocks at its first recorded step, of this node's ranks.
    """

    job_id: str
    node: str
    ranks: tuple[int, ...]
    world_size: int
    started: str = ""
    trainyard: str = __version__
    code: dict[str, str] = {}
    run: str = ""
    agreed_by: str = ""
    hosts: dict[int, str] = {}
    clocks: dict[int, ClockStamp] = {}
    schema: Literal["trainyard/part/1"] = SCHEMA

    def __post_init__(self) -> None:
        """Check every value that names files or sizes something. Raises `BadInput`."""
        if not _JOB_ID.match(self.job_id):
            raise BadInput(f"{self.job_id!r} is not a job id: letters, digits and . _ : @ + -, at most 128.")
        if self.run and not _RUN_ID.match(self.run):
            raise BadInput(f"{self.run!r} is not a run id: 8 hexadecimal digits.")
        if not 1 <= self.world_size <= DEVICES.most:
            raise BadInput(f"world_size = {self.world_size:,} is not between 1 and {DEVICES.most:,}.")
        for name in (self.node, *self.hosts.values()):
            if not name or len(name) > _MAX_NODE_NAME or not name.isprintable():
                raise BadInput(f"{name[:_MAX_NODE_NAME]!r} is not a host name of at most {_MAX_NODE_NAME} characters.")
        if not self.ranks or list(self.ranks) != sorted(set(self.ranks)):
            raise BadInput(f"the ranks of node {self.node} are not distinct numbers in ascending order.")
        for rank in (self.ranks[0], self.ranks[-1], *self.hosts, *self.clocks):
            if not 0 <= rank < self.world_size:
                raise BadInput(f"rank {rank} is outside of a job of {self.world_size:,} ranks.")


def joined_run_id(job_id: str) -> str:
    """The id of the run that the parts of job `job_id` are joined into: the same on every node."""
    return hashlib.sha256(f"trainyard job {job_id}".encode()).hexdigest()[:8]


def write_part(folder: Path, part: Part) -> None:
    """Write `part.json` into a run's folder, without secrets."""
    write_whole(folder / FILE, encode(part))


def encode(part: Part) -> bytes:
    """The contents of a `part.json`, without secrets. Numbers are kept."""
    document = {"schema": part.schema, **msgspec.to_builtins(part, str_keys=True)}
    return redact_json(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n", keep_numbers=True)


def read_part(folder: Path, shown: str = "") -> Part:
    """Read the `part.json` of a folder. `shown`: the folder's name in messages. Raises `BadFile`, also for a file that
    is missing or larger than `MAX_BYTES`."""
    shown = f"{shown or folder}/{FILE}"
    with open_regular(folder / FILE, shown) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise FileTooLarge(f"{shown}: more than {MAX_BYTES:,} bytes, which is too large for such a file.")
    return decode(data, shown)


def decode(data: bytes, shown: str) -> Part:
    """Decode the contents of a `part.json`. `shown`: the file's name in messages. Raises `BadFile`."""
    try:
        return msgspec.json.decode(redact_json(data, keep_numbers=True), type=Part)
    except (*UNREADABLE, BadInput) as error:
        raise BadFile(f"{shown}: not a part of a run: {described(error)[0]}.") from error


def ranks_by_node(hosts: Mapping[int, str], ranks: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Node -> those of `ranks` that ran on it; ranks whose host is unknown are under the empty name. `hosts`: rank ->
    host name."""
    nodes: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        nodes.setdefault(hosts.get(rank, ""), []).append(rank)
    return {node: tuple(numbers) for node, numbers in nodes.items()}
