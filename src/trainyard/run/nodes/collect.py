"""Merge the parts that other nodes delivered into the head's run folder, which then has the files of all ranks."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from trainyard.errors import TrainyardError
from trainyard.launch.supervisor.part_transfer import FOLDER, Transfer, read_transfers
from trainyard.record import Sample
from trainyard.run.nodes.hosts import Hosts
from trainyard.run.parts.archive import unpack
from trainyard.store.disk_space import write_whole
from trainyard.store.run_folder import decode_sample, rank_files

_COPIED = ("facts", "traces", "profiles")
"""Folders with one file of a rank, which the node has on which the rank ran last."""


class Collected(NamedTuple):
    """The parts that were merged. `nodes`: how many; `bytes`: size of their archives; `seconds`: the longest transfer.
    `missing`: a sentence on each part that is missing."""

    nodes: int
    bytes: int
    seconds: float
    missing: tuple[str, ...]


def collect(folder: Path, hosts: Hosts) -> Collected:
    """Merge the parts of all other nodes into the run's folder, and remove their archives. A part that is missing or
    damaged is described in `missing`; the other nodes' data are kept."""
    transfers = read_transfers(folder)
    merged: list[Transfer] = []
    missing: list[str] = []
    for node in range(1, hosts.nodes):
        transfer = transfers.get(node, Transfer(problem="it did not arrive"))
        unpacked = folder / FOLDER / f"node{node}"
        try:
            if transfer.problem:
                missing.append(f"the part of node {node} is missing: {transfer.problem}")
            elif transfer.bytes:
                archive = _archive(folder, hosts, node, transfer)
                shutil.rmtree(unpacked, ignore_errors=True)  # of an interrupted merge
                unpack(archive.read_bytes(), unpacked, f"the part of node {node}")
                merge(unpacked, folder)
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
    )


def _archive(folder: Path, hosts: Hosts, node: int, transfer: Transfer) -> Path:
    """The file with a node's archive: in the shared folder if it was left there, else as it was received."""
    name = f"node{node}.part"
    return hosts.shared / folder.name / FOLDER / name if transfer.shared and hosts.shared else folder / FOLDER / name


def merge(part: Path, folder: Path) -> None:
    """Merge the files of an unpacked part into the run's folder.

    A rank may have run on several nodes, one after another: its samples and events are those of all, each once; its
    facts, traces and logs are those of the node with its latest attempt.
    """
    for path in rank_files(part / "samples", ".jsonl"):
        own = folder / "samples" / path.name
        own_samples, part_samples = _read_samples(own), _read_samples(path)
        is_latest = max(part_samples, default=(-1, -1)) >= max(own_samples, default=(-1, -1))
        lines = {**part_samples, **own_samples}
        write_whole(own, b"".join(lines[key] for key in sorted(lines)))
        if is_latest:
            _copy_rank(part, folder, path.name.partition(".")[0])
    for path in rank_files(part / "life", ".jsonl"):
        own = folder / "life" / path.name
        own.parent.mkdir(exist_ok=True)
        write_whole(own, b"".join(dict.fromkeys([*_lines(own), *_lines(path)])))
    for path in (part / "logs").glob("agent*"):
        shutil.copyfile(path, folder / "logs" / path.name)


def _copy_rank(part: Path, folder: Path, rank: str) -> None:
    """Copy the facts, traces and logs of `rank`, such as `rank3`, from a part to the run's folder."""
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
