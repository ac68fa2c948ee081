"""Merge the parts that other nodes delivered into the head's run folder, which then has the files of all ranks."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from trainyard.errors import TrainyardError
from trainyard.launch.supervisor.part_transfer import FOLDER, Transfer, read_transfers
from trainyard.record import NodeShare, Sample
from trainyard.run.nodes.hosts import Hosts
from trainyard.run.parts.archive import unpack
from trainyard.run.parts.part import ranks_by_node
from trainyard.store.disk_space import write_whole
from trainyard.store.run_folder import decode_sample, rank_files

_COPIED = ("facts", "traces", "profiles")
"""Folders with one file of a rank, which the node has on which the rank ran last."""


class Collected(NamedTuple):
    """The parts that were merged. `nodes`: how many; `bytes`: size of their archives; `seconds`: the longest transfer.
    `missing`: a sentence on each part that is missing. `shares`: the ranks by the node on which they ran last, then
    those whose samples of the last attempt are missing."""

    nodes: int
    bytes: int
    seconds: float
    missing: tuple[str, ...]
    shares: tuple[NodeShare, ...]


def collect(folder: Path, hosts: Hosts, ranks: int) -> Collected:
    """Merge the parts of all other nodes into the run's folder, and remove their archives. A part that is missing or
    damaged is described in `missing`; the other nodes' data are kept. `ranks`: number of ranks of the job."""
    transfers = read_transfers(folder)
    merged: list[Transfer] = []
    missing: list[str] = []
    node_of_rank = dict.fromkeys(range(ranks), socket.gethostname())
    for node in range(1, hosts.nodes):
        transfer = transfers.get(node, Transfer(problem="it did not arrive"))
        unpacked = folder / FOLDER / f"node{node}"
        try:
            if transfer.problem:
                missing.append(f"the part of node {node} is missing: {transfer.problem}")
            elif transfer.bytes:
                archive = _archive(folder, hosts, node, transfer)
                shutil.rmtree(unpacked, ignore_errors=True)  # of an interrupted merge
                part = unpack(archive.read_bytes(), unpacked, f"the part of node {node}")
                node_of_rank |= dict.fromkeys(merge(unpacked, folder), part.node)
                merged.append(transfer)
                archive.unlink()
        except (TrainyardError, OSError) as error:
            missing.append(f"the part of node {node} cannot be used: {error}")
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
            (folder / FOLDER / f"node{node}.part").unlink(missing_ok=True)
    return Collected(
        nodes=len(merged),
        bytes=sum(transfer.bytes for transfer in merged),
        seconds=max((transfer.seconds for transfer in merged), default=0.0),
        missing=tuple(missing),
        shares=_shares(folder, node_of_rank),
    )


def _shares(folder: Path, node_of_rank: Mapping[int, str]) -> tuple[NodeShare, ...]:
    """The ranks by node, and those without samples of the last attempt. `node_of_rank`: rank -> the host on which it
    ran last, as far as the parts state it."""
    last = {
        rank: max((attempt for attempt, _ in _read_samples(folder / "samples" / f"rank{rank}.jsonl")), default=-1)
        for rank in node_of_rank
    }
    present = {rank: node for rank, node in node_of_rank.items() if 0 <= last[rank] == max(last.values())}
    absent = [rank for rank in node_of_rank if rank not in present]
    shares = [NodeShare(node=node, ranks=ranks) for node, ranks in ranks_by_node(present, sorted(present)).items()]
    return (*shares, *([NodeShare(node="", ranks=tuple(sorted(absent)), missing=True)] if absent else []))


def _archive(folder: Path, hosts: Hosts, node: int, transfer: Transfer) -> Path:
    """The file with a node's archive: in the shared folder if it was left there, else as it was received."""
    name = f"node{node}.part"
    return hosts.shared / folder.name / FOLDER / name if transfer.shared and hosts.shared else folder / FOLDER / name


def merge(part: Path, folder: Path) -> tuple[int, ...]:
    """Merge the files of an unpacked part into the run's folder; return the ranks that ran last on the part's node.

    A rank may have run on several nodes, one after another: its samples and events are those of all, each once; its
    facts, traces and logs are those of the node with its latest attempt.
    """
    latest: list[int] = []
    for path in rank_files(part / "samples", ".jsonl"):
        own = folder / "samples" / path.name
        own_samples, part_samples = _read_samples(own), _read_samples(path)
        is_latest = max(part_samples, default=(-1, -1)) >= max(own_samples, default=(-1, -1))
        lines = {**part_samples, **own_samples}
        write_whole(own, b"".join(lines[key] for key in sorted(lines)))
        if is_latest:
            rank = path.name.partition(".")[0]
            latest.append(int(rank.removeprefix("rank")))
            _copy_rank(part, folder, rank)
    for path in rank_files(part / "life", ".jsonl"):
        own = folder / "life" / path.name
        own.parent.mkdir(exist_ok=True)
        write_whole(own, b"".join(dict.fromkeys([*_lines(own), *_lines(path)])))
    for path in (part / "logs").glob("agent*"):
        shutil.copyfile(path, folder / "logs" / path.name)
    return tuple(latest)


def _copy_rank(part: Path, folder: Path, rank: str) -> None:
    """Copy the facts, trace and logs of `rank`, such as `rank3`, from a part to the run's folder. The trace and the
    reduced profile that the run has of an earlier attempt are removed."""
    for subfolder in ("traces", "profiles"):
        for path in (folder / subfolder).glob(f"{rank}.*"):
            path.unlink()
    for subfolder in (*_COPIED, "logs"):
        for path in (part / subfolder).glob(f"{rank}.*"):
            (folder / subfolder).mkdir(exist_ok=True)
            shutil.copyfile(path, folder / subfolder / path.name)


def _read_samples(path: Path) -> dict[tuple[int, int], bytes]:
    """(attempt, step) -> the line of the file with that sample; lines that are cut off are left out."""
    return {_key(decode_sample(line)): line for line in _lines(path)}


def _key(sample: Sample) -> tuple[int, int]:
    return sample.attempt, sample.step


def _lines(path: Path) -> Iterable[bytes]:
    """The complete lines of a file, with their newline; none if it does not exist."""
    if not path.exists():
        return []
    return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n") and line.strip()]
