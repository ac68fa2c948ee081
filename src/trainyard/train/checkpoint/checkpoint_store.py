"""The folder of a run's checkpoints: what is on it, and how one comes to it, leaves it or is set aside. No torch.

step-000120/          the state when 120 steps had ended, whole: it comes here in one rename, its manifest in it
.step-000120.<token>/ one that is being written; what a killed attempt left is removed by the next
bad-step-000120/      one whose files are not what was written, in its step-000120/; why.txt has the reason

Names count steps that have ended, as all that people read does; a `step` in code, manifests and samples is counted
from 0, so that this is the state after step 119.
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
_WHOLE = re.compile(r"(bad-)?step-(\d{6,})(\.\d+)?\Z", re.ASCII)
_FULL = {errno.ENOSPC, errno.EDQUOT}
_BLOCK = 1 << 24


class CheckpointStore:
    """`token` tells the parts of this attempt from those of another that may still be writing."""

    def __init__(self, run: Path, token: str = "") -> None:
        self.root = run / FOLDER
        self.token = token

    def folder(self, step: int) -> Path:
        return self.root / _name(step)

    def part(self, step: int) -> Path:
        return self.root / f".{_name(step)}.{self.token}"

    def steps(self) -> list[int]:
        """Of what is whole, as far as its name says, newest first."""
        return sorted((step for step, bad, _ in self._all() if not bad), reverse=True)

    def _all(self) -> Iterator[tuple[int, bool, Path]]:
        for path in self.root.iterdir() if self.root.is_dir() else ():
            if (match := _WHOLE.match(path.name)) and path.is_dir():
                step, bad = int(match[2]) - 1, bool(match[1])
                if bad or path.name == _name(step):  # not a user's copy under a similar name
                    yield step, bad, path

    def read(self, step: int) -> Manifest:
        """Raises `BadFile` with the reason when it is not the manifest of that step."""
        path = self.folder(step) / manifests.NAME
        if os.path.lexists(path) and not is_regular(path, links=False):
            raise BadFile(f"{manifests.NAME} is not a regular file.")
        try:
            with path.open("rb") as file:
                data = file.read(manifests.LARGEST + 1)
        except OSError as error:
            raise BadFile(f"{manifests.NAME} cannot be read: {error.strerror or error}.") from error
        if len(data) > manifests.LARGEST:
            raise FileTooLarge(f"{manifests.NAME} has more than {manifests.LARGEST:,} bytes.")
        manifest = manifests.unseal(data)
        if manifest.step != step:
            raise BadFile(f"{manifests.NAME} is the one after step {manifest.step + 1}.")
        if wrong := manifests.strangers(self.folder(step), manifest):
            raise BadFile(wrong)
        return manifest

    def newest(self) -> int:
        """The step of the last one whose manifest is in order, -1 where there is none; its files are not read."""
        for step in self.steps():
            with suppress(BadFile):
                return self.read(step).step
        return -1

    def last_good(self) -> tuple[Manifest | None, list[str]]:
        """The last one whose files are what was written, read whole; and why each later one was passed over."""
        rejected: list[str] = []
        for step in self.steps():
            wrong = self.wrong(step)
            if not wrong:
                return self.read(step), rejected
            rejected.append(f"the checkpoint after step {step + 1} was passed over: {wrong.rstrip('.')}")
        return None, rejected

    def wrong(self, step: int) -> str:
        """Why it is not what was written; empty where it is. Reads all of it."""
        try:
            manifest = self.read(step)
            return manifests.damage(self.folder(step), manifest, sorted(manifest.files))
        except BadFile as error:
            return error.says

    def commit(self, manifest: Manifest) -> None:
        """Seals the part of this step and makes it whole; each file must have reached the disk before."""
        part = self.part(manifest.step)
        write(part / manifests.NAME, [manifests.seal(manifest)])
        self._whole(part, manifest.step)

    def adopt(self, other: CheckpointStore, step: int) -> None:
        """Takes another run's; its files are the same ones on the disk where that can be, for they never change."""
        part = self.part(step)
        part.mkdir(parents=True)
        for path in other.folder(step).iterdir():
            try:
                os.link(path, part / path.name)
            except OSError:  # another file system, or one without links
                shutil.copyfile(path, part / path.name)
            fault_point("checkpoint.adopted")
        self._whole(part, step)

    def _whole(self, part: Path, step: int) -> None:
        folder, gone = self.folder(step), self._gone(step)
        sync_folder(part)
        fault_point("checkpoint.sealed")
        if replaces := os.path.lexists(folder):  # by an attempt that outlived its end
            folder.rename(gone)
        part.rename(folder)
        sync_folder(self.root)
        fault_point("checkpoint.renamed")
        if replaces:
            _remove(gone)

    def drop(self, step: int) -> None:
        """The part that was begun."""
        shutil.rmtree(self.part(step), ignore_errors=True)

    def clear(self) -> None:
        """What other attempts began and did not end."""
        for part in self.root.glob(".step-*"):
            shutil.rmtree(part, ignore_errors=True)

    def set_aside(self, step: int, why: str) -> Path:
        """Moves it into a new folder, together with the reason; the new folder's path. Nothing is written into the
        checkpoint's own folder: a link in there could lead anywhere."""
        aside, number = self.root / f"bad-{_name(step)}", 0
        while os.path.lexists(aside):
            number += 1
            aside = self.root / f"bad-{_name(step)}.{number}"
        aside.mkdir()
        (aside / "why.txt").write_text(why + "\n", "utf-8")
        fault_point("checkpoint.set_aside")
        self.folder(step).rename(aside / _name(step))
        return aside

    def retain(self, keep: int) -> None:
        """Removes all but the last `keep`, and whatever was set aside before the first of those."""
        kept = self.steps()[:keep]
        for step, _, path in list(self._all()):
            if kept and step < kept[-1]:
                gone = self._gone(step)
                path.rename(gone)  # in one step, as others see it
                fault_point("checkpoint.retired")
                _remove(gone)

    def _gone(self, step: int) -> Path:
        return self.root / f".{_name(step)}.gone.{self.token}"


def _remove(folder: Path) -> None:
    """The folder with all in it, or the link to one."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder)


def _name(step: int) -> str:
    return f"step-{step + 1:06d}"


def write(path: Path, parts: Iterable[bytes | memoryview]) -> File:
    """A new file of `parts`, one after the other, on the disk when this returns."""
    total, size = hashlib.sha256(), 0
    with path.open("xb", buffering=0) as file:
        for part in parts:
            whole = memoryview(part)
            for at in range(0, len(whole), _BLOCK):
                block = whole[at : at + _BLOCK]
                total.update(block)
                size += len(block)
                while block:
                    block = block[file.write(block) :]
        fault_point("checkpoint.file.written")
        os.fsync(file.fileno())
    fault_point("checkpoint.file.synced")
    return File(bytes=size, sha256=total.hexdigest())


def is_full(error: BaseException) -> bool:
    """Whether the disk, or the user's share of it, is."""
    return isinstance(error, OSError) and error.errno in _FULL
