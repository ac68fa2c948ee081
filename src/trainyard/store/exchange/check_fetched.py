"""Fetch a run from a remote store that may be damaged or hostile, into a hidden folder that is renamed to the run's id
once everything is verified.

The remote store must list a digest for every file (SHA256SUMS, which a push writes), and only listed files are fetched.
That detects damage. It detects forgery only if the list is signed, since everyone who can write to the remote store can
write the list. `id` is a run's id, the name of its folder on both sides; file names are relative to that folder.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from trainyard.errors import BadFile, BadInput, DamagedFile, FileTooLarge, MissingFile, WrongRunState
from trainyard.fault_points import fault_point
from trainyard.store import digests
from trainyard.store import run_folder as folders
from trainyard.store.disk_space import free_bytes, writing
from trainyard.store.exchange import signature
from trainyard.store.exchange.remote_store import Remote
from trainyard.store.unfinished_writes import is_abandoned, writer
from trainyard.units import show_size

MAX_BYTES_BY_FILE = {digests.FILE: 1 << 24, digests.HEAD: 1 << 26, "job.toml": 1 << 24, "ledgers.json": 1 << 30}
"""Limits of the files that are read whole. A list of 100,000 files has 10 MB."""
_MAX_SAMPLE_FILE_BYTES = 1 << 30
_MAX_FILES = 100_000
"""Limits of one file of samples, and of the number of files of a run."""


class Fetched(NamedTuple):
    """Number of files and bytes that were fetched. `signer`: who signed the run's digests, if that was checked."""

    files: int
    bytes: int
    signer: str


class Digests(NamedTuple):
    """The list of a run's digests in the remote store, as bytes, and its signature. `signer`: who signed it, if that
    was checked."""

    data: bytes
    signature: bytes | None
    signer: str


def fetch(runs: Path, remote: Remote, id: str, signers: Path | None) -> Fetched:
    """Fetch the run `id` into the folder `runs`, by way of a hidden folder in it.

    `signers`: a file of allowed signers, one of which must have signed the run; None to accept any run. Raises
    `BadFile` for a run that is damaged or not signed, `BadInput` if something else has its name here. A failed fetch
    leaves nothing.
    """
    if (runs / id).exists():
        raise BadInput(f"{runs / id}: is in the way, and not a run: it has no {digests.HEAD}.", "Move it away.")
    remote_digests = read_digests(remote, id, signers)
    listed = digests.parse(remote_digests.data, remote.path(id, digests.FILE))
    sizes = _check_sizes(remote, id, listed, runs)
    staging_folder = runs / f".pull-{id}-{writer()}"
    try:
        with writing(staging_folder):
            for name in folders.PARTS:
                (staging_folder / name).mkdir(parents=True)
        for name, size in sizes.items():
            _fetch_file(remote, id, name, staging_folder / name, size, listed[name])
        _check_run(staging_folder, remote, id)
        _write_digests(staging_folder, remote_digests)
        _remove_killed_pulls(runs, id)
        with writing(staging_folder):
            fault_point("pull.synced")
            staging_folder.rename(runs / id)
        fault_point("pull.renamed")
    finally:
        shutil.rmtree(staging_folder, ignore_errors=True)
    return Fetched(
        files=len(sizes) + 1,
        bytes=sum(sizes.values()) + len(remote_digests.data),
        signer=remote_digests.signer,
    )


def read_digests(remote: Remote, id: str, signers: Path | None) -> Digests:
    """Read the list of a run's digests and its signature from the remote store.

    `signers`: a file of allowed signers, None to accept any run. Raises `BadFile` for a run without digests, or, if
    `signers` are given, without a signature by one of them.
    """
    data, signed = _read_list(remote, id), remote.read(id, digests.SIGNATURE, signature.MAX_BYTES)
    if signers is None:
        return Digests(data=data, signature=signed, signer="")
    if signed is None:
        raise BadFile(
            f"{remote.path(id)}: the run is not signed, and only signed runs are pulled with --verify.",
            f"Sign it from where it is kept: trainyard runs push {id} --sign KEY --to URL.",
        )
    signer = signature.verify(data, signed, signers, remote.path(id, digests.SIGNATURE))
    return Digests(data=data, signature=signed, signer=signer)


def _read_list(remote: Remote, id: str) -> bytes:
    """The contents of the run's SHA256SUMS in the remote store. Raises `WrongRunState` for a run that has not ended,
    `MissingFile` if there is no list although it has."""
    data = remote.read(id, digests.FILE, MAX_BYTES_BY_FILE[digests.FILE])
    if data is not None:
        return data
    shown, head = remote.path(id, digests.HEAD), remote.read(id, digests.HEAD, MAX_BYTES_BY_FILE[digests.HEAD])
    if head is not None and folders.decode_head(head, shown).state == "incomplete":
        raise WrongRunState(
            f"{remote.path(id)}: the run has not ended, or was killed.", "Only runs that ended are pulled."
        )
    raise MissingFile(
        f"{remote.path(id)}: there is no {digests.FILE}: an earlier version pushed the run, or the list was removed.",
        f"Push it again from where it is kept: trainyard runs push {id} --to URL.",
    )


def _check_sizes(remote: Remote, id: str, listed: dict[str, str], runs: Path) -> dict[str, int]:
    """Check names and sizes of the files to fetch before any is fetched: file name -> size in bytes.

    `listed`: file name -> digest; `runs`: the folder to fetch to. Raises `BadFile` for missing files, unusual names,
    sizes or numbers of files beyond the limits, and too little free space.
    """
    remote_sizes = remote.sizes(id)
    for name in sorted(remote_sizes):
        if reason := digests.name_problem(name):
            raise BadFile(f"{remote.path(id)}: has a file {reason}: {name!r}.")
    if missing := sorted(listed.keys() - remote_sizes.keys()):
        raise MissingFile(
            f"{remote.path(id, missing[0])}: missing, {len(missing)} of {len(listed)} files are not there."
        )
    if len(listed) > _MAX_FILES:
        raise FileTooLarge(f"{remote.path(id)}: {len(listed):,} files, but a run has at most {_MAX_FILES:,}.")
    sizes = {name: remote_sizes[name] for name in sorted(listed)}
    for name, size in sizes.items():
        max_bytes = MAX_BYTES_BY_FILE.get(name, _MAX_SAMPLE_FILE_BYTES if name.startswith("samples/") else None)
        if max_bytes is not None and size > max_bytes:
            raise FileTooLarge(
                f"{remote.path(id, name)}: {show_size(size)}, but at most {show_size(max_bytes)} are read."
            )
    if (total := sum(sizes.values())) > (free := free_bytes(runs)):
        raise BadFile(f"{remote.path(id)}: {show_size(total)} to fetch, but {show_size(free)} are free in {runs}.")
    return sizes


def _fetch_file(remote: Remote, id: str, name: str, path: Path, size: int, digest: str) -> None:
    """Fetch a file of `size` bytes to `path`. Raises `DamagedFile` if its digest is not `digest`."""
    with writing(path, size):
        path.parent.mkdir(parents=True, exist_ok=True)
    fetched_digest = remote.fetch(id, name, path, size)
    fault_point("pull.fetched")
    if fetched_digest != digest:
        raise DamagedFile(
            f"{remote.path(id, name)}: was altered after it was written: its digest is not the listed one."
        )


def _check_run(staging_folder: Path, remote: Remote, id: str) -> None:
    """Raise `BadFile` if the fetched folder `staging_folder` does not hold the run `id`, or one that has not ended."""
    shown = remote.path(id)
    run = folders.read(staging_folder, shown)
    if run.id != id:
        raise BadFile(f"{shown}: folder {id} holds run {run.id}, not {id}.")
    if run.state == "incomplete":
        raise BadFile(f"{shown}: the run has not ended.")


def _write_digests(staging_folder: Path, remote_digests: Digests) -> None:
    """Write the digests and their signature, and flush every fetched file to disk before the folder gets its name."""
    with writing(staging_folder):
        (staging_folder / digests.FILE).write_bytes(remote_digests.data)
        if remote_digests.signature is not None:
            (staging_folder / digests.SIGNATURE).write_bytes(remote_digests.signature)
        for path in staging_folder.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())


def _remove_killed_pulls(runs: Path, id: str) -> None:
    """Remove what killed pulls of the run left. Call it before the run is renamed into place: a pull that is killed
    later is not repeated, and would leave the folders for good."""
    for rest in runs.glob(f".pull-{id}-*"):
        if is_abandoned(rest):
            shutil.rmtree(rest, ignore_errors=True)
