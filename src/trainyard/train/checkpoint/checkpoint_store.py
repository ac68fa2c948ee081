"""The folder of a run's checkpoints: adding, removing and quarantining them atomically. Needs no torch.

step-000120/          the complete state after 120 steps, its manifest included; it appears by one rename
.step-000120.<token>/ a checkpoint being written; the next attempt removes the remains of a killed one
bad-step-000120/      a damaged checkpoint, in its step-000120/ subfolder; why.txt has the reason

Folder names count completed steps, as everything shown to users does. A `step` in code, manifests and samples counts
from 0: step-000120 is the state after step 119.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from trainyard.errors import BadFile, FileTooLarge
from trainyard.fault_points import fault_point
from trainyard.formats.atomic import sync_folder
from trainyard.formats.regular_files import is_regular
from trainyard.train.checkpoint import manifest as manifests
from trainyard.train.checkpoint.manifest import File, Manifest

FOLDER = "checkpoints"
_COMPLETE_NAME = re.compile(r"(bad-)?step-(\d{6,})(\.\d+)?\Z", re.ASCII)
_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT}
_WRITE_BYTES = 1 << 24


class CheckpointStore:
    """The checkpoints in a run's folder.

    `token` distinguishes the unfinished checkpoints of this attempt from those of another that may still be writing.
    """

    def __init__(self, run: Path, token: str = "") -> None:
        self.root = run / FOLDER
        self.token = token

    def folder(self, step: int) -> Path:
        """The folder of the complete checkpoint after `step`, whether or not it exists."""
        return self.root / _name(step)

    def unfinished_folder(self, step: int) -> Path:
        """The folder into which this attempt writes the checkpoint after `step`."""
        return self.root / f".{_name(step)}.{self.token}"

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, judged by folder name, newest first."""
        return sorted((step for step, bad, _ in self._all() if not bad), reverse=True)

    def _all(self) -> Iterator[tuple[int, bool, Path]]:
        """Yields (step counted from 0, whether it is marked as bad, folder) of each complete checkpoint, in no
        particular order. `_COMPLETE_NAME` matches `step-000120` and `bad-step-000120.1`."""
        for path in self.root.iterdir() if self.root.is_dir() else ():
            if (match := _COMPLETE_NAME.match(path.name)) and path.is_dir():
                step, bad = int(match[2]) - 1, bool(match[1])
                if bad or path.name == _name(step):  # not a user's copy under a similar name
                    yield step, bad, path

    def read(self, step: int) -> Manifest:
        """Reads the manifest of a step. Raises `BadFile` if it is missing, damaged or of another step."""
        path = self.folder(step) / manifests.NAME
        if os.path.lexists(path) and not is_regular(path, links=False):
            raise BadFile(f"{manifests.NAME} is not a regular file.")
        try:
            with path.open("rb") as file:
                data = file.read(manifests.MAX_BYTES + 1)
        except OSError as error:
            raise BadFile(f"{manifests.NAME} cannot be read: {error.strerror or error}.") from error
        if len(data) > manifests.MAX_BYTES:
            raise FileTooLarge(f"{manifests.NAME} has more than {manifests.MAX_BYTES:,} bytes.")
        manifest = manifests.unseal(data)
        if manifest.step != step:
            raise BadFile(f"{manifests.NAME} is the one after step {manifest.step + 1}.")
        if unexpected := manifests.unlisted_files(self.folder(step), manifest):
            raise BadFile(unexpected)
        return manifest

    def newest(self) -> int:
        """The newest step with a valid manifest, -1 without one. Reads manifests only."""
        for step in self.steps():
            with suppress(BadFile):
                return self.read(step).step
        return -1

    def last_good(self) -> tuple[Manifest | None, list[str]]:
        """The manifest of the newest undamaged checkpoint, all of whose files were verified (None if there is none),
        and the reason for rejecting each newer one."""
        rejected: list[str] = []
        for step in self.steps():
            damage = self.describe_damage(step)
            if not damage:
                return self.read(step), rejected
            rejected.append(f"the checkpoint after step {step + 1} was skipped: {damage.rstrip('.')}")
        return None, rejected

    def describe_damage(self, step: int) -> str:
        """Describes the damage of a checkpoint; empty if it is intact. Reads all of its files."""
        try:
            manifest = self.read(step)
            return manifests.damage(self.folder(step), manifest, sorted(manifest.files))
        except BadFile as error:
            return error.message

    def commit(self, manifest: Manifest) -> None:
        """Adds the manifest and publishes the checkpoint. Its other files must be on disk already."""
        part = self.unfinished_folder(manifest.step)
        write(part / manifests.NAME, [manifests.seal(manifest)])
        self._publish(part, manifest.step)

    def copy_from(self, source: CheckpointStore, step: int) -> None:
        """Copies a checkpoint of another run's store, by hard links if possible, as its files never change."""
        unfinished_folder = self.unfinished_folder(step)
        unfinished_folder.mkdir(parents=True)
        for path in source.folder(step).iterdir():
            try:
                os.link(path, unfinished_folder / path.name)
            except OSError:  # another file system, or one without links
                shutil.copyfile(path, unfinished_folder / path.name)
            fault_point("checkpoint.adopted")
        self._publish(unfinished_folder, step)

    def _publish(self, unfinished_folder: Path, step: int) -> None:
        """Renames a complete folder to the checkpoint's name, durably: a crash leaves either the old checkpoint or the
        new one."""
        folder, replaced_folder = self.folder(step), self._retired_folder(step)
        sync_folder(unfinished_folder)
        fault_point("checkpoint.sealed")  # tests inject crashes at these points
        if replaces := os.path.lexists(folder):  # of an earlier attempt that was still writing after it was replaced
            folder.rename(replaced_folder)
        unfinished_folder.rename(folder)
        sync_folder(self.root)
        fault_point("checkpoint.renamed")
        if replaces:
            _remove(replaced_folder)

    def drop(self, step: int) -> None:
        """Removes the unfinished checkpoint of this attempt."""
        shutil.rmtree(self.unfinished_folder(step), ignore_errors=True)

    def clear(self) -> None:
        """Removes the unfinished checkpoints of other attempts."""
        for part in self.root.glob(".step-*"):
            shutil.rmtree(part, ignore_errors=True)

    def set_aside(self, step: int, reason: str) -> Path:
        """Moves a damaged checkpoint into a new folder, together with the reason, and returns the new folder.

        Nothing is written into the checkpoint's own folder: a link in it could lead anywhere.
        """
        destination, number = self.root / f"bad-{_name(step)}", 0
        while os.path.lexists(destination):
            number += 1
            destination = self.root / f"bad-{_name(step)}.{number}"
        destination.mkdir()
        (destination / "why.txt").write_text(reason + "\n", "utf-8")
        fault_point("checkpoint.set_aside")
        self.folder(step).rename(destination / _name(step))
        return destination

    def retain(self, keep: int) -> None:
        """Removes all but the newest `keep` checkpoints, and those set aside that are older than the oldest of
        these."""
        kept_steps = self.steps()[:keep]
        for step, _, path in list(self._all()):
            if kept_steps and step < kept_steps[-1]:
                retired_folder = self._retired_folder(step)
                path.rename(retired_folder)  # removal is atomic for readers
                fault_point("checkpoint.retired")
                _remove(retired_folder)

    def _retired_folder(self, step: int) -> Path:
        """The hidden name that a checkpoint gets before its files are removed."""
        return self.root / f".{_name(step)}.gone.{self.token}"


def _remove(folder: Path) -> None:
    """Removes a folder with its contents, or a link to a folder."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder)


def _name(step: int) -> str:
    """The folder name of the checkpoint after `step` (counted from 0): the number of completed steps."""
    return f"step-{step + 1:06d}"


def write(path: Path, parts: Iterable[bytes | memoryview]) -> File:
    """Writes a new file from the concatenated `parts`, durably: it is on disk when this returns. Returns its size and
    digest."""
    digest, size = hashlib.sha256(), 0
    with path.open("xb", buffering=0) as file:
        for part in parts:
            view = memoryview(part)
            for start in range(0, len(view), _WRITE_BYTES):
                block = view[start : start + _WRITE_BYTES]
                digest.update(block)
                size += len(block)
                while block:
                    block = block[file.write(block) :]
        fault_point("checkpoint.file.written")
        os.fsync(file.fileno())
    fault_point("checkpoint.file.synced")
    return File(bytes=size, sha256=digest.hexdigest())


def is_full(error: BaseException) -> bool:
    """Whether the error means that the disk is full or the quota is exhausted."""
    return isinstance(error, OSError) and error.errno in _FULL_ERRNOS
